"""What careless people and hostile surroundings do: never a traceback, never a wrong success."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest

from gpulaunch.journal.ends import Ends
from tests.cli.launcher import COMMAND, UNTIL_GO, Launcher
from tests.helpers import wait_until


def shell(launcher: Launcher, line: str) -> subprocess.CompletedProcess[str]:
    """A line for bash, in which `$G` is the command."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=launcher.path,
        env={**launcher.environ, "G": " ".join(COMMAND)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_modules_in_the_working_directory_are_not_executed(launcher: Launcher) -> None:
    for name in ("json", "re", "enum", "socket"):
        launcher.file(f"{name}.py", "open('ran', 'w').write('x')")
    # As the console script starts it: `python -m` itself puts the working directory first.
    script = "import sys; sys.path.pop(0); from gpulaunch.__main__ import main; main()"
    with_path = Launcher(launcher.path, {"PYTHONSAFEPATH": "1"}, [COMMAND[0], "-c", script])
    with_path("gpus")
    assert not (launcher.path / "ran").exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_hurt_nobody(launcher: Launcher, closed: str) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: echo done}]")
    assert shell(launcher, f"$G run jobs.yaml --simulate 1 {closed}").returncode == 0
    assert launcher.log("a") == "done\n"
    assert shell(launcher, f"$G exec --simulate 1 -- true {closed}").returncode == 0


@pytest.mark.parametrize("command", ["status --json", "schema", "-h", "--version", "logs a"])
def test_a_full_standard_output_is_one_line(launcher: Launcher, command: str) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: echo done}]")
    launcher("run", "jobs.yaml", "--simulate", "1")
    result = shell(launcher, f"$G {command} > /dev/full")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize("command", ["status", "status --all", "status a", "results", "ps"])
def test_what_is_printed_for_people_says_when_it_could_not_be(
    launcher: Launcher, command: str
) -> None:
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: '{UNTIL_GO}'}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        result = shell(launcher, f"$G {command} > /dev/full")
        launcher.file("go", "")
        assert process.wait(60) == 0
    assert result.returncode == 2
    assert result.stderr.endswith("gpulaunch: standard output: No space left on device\n")


def test_a_reader_that_goes_away_is_no_error(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: seq 100000}]")
    launcher("run", "jobs.yaml", "--simulate", "1")
    result = shell(launcher, "$G logs a | head -1; echo ${PIPESTATUS[0]}")
    assert result.stdout.startswith("1\n")
    assert not result.stderr


def test_exec_leaves_sigpipe_as_it_should_be(launcher: Launcher) -> None:
    result = shell(launcher, "$G exec --simulate 1 -- yes | head -1; echo ${PIPESTATUS[@]}")
    assert result.stdout == "y\n141 0\n"
    assert not result.stderr


def test_exec_adds_nothing_to_a_bare_environment(launcher: Launcher) -> None:
    result = shell(launcher, 'env -i "PATH=$PATH" $G exec --simulate 1 -- env')
    assert "LC_CTYPE" not in result.stdout


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("exec", "--simulate", "1", "--", ""), 127),
        (("exec", "--no-wiat", "true"), 125),
        (("map", "--bogus", "echo", ":::", "a"), 2),
        (("map", "--simulate", "1", ":::", "a"), 2),
        (("map", "--simulate", "1", "echo", ":::"), 2),
        (("run", "jobs.yaml", "--simulate", "1", "--gpus", ""), 2),
        (("run", "jobs.yaml", "--simulate", "1", "--new", "--continue"), 2),
        (("run", "absent.yaml"), 2),
        (("run", "."), 2),
        (("resume", "absent"), 2),
        (("drain", "--gpus", "1"), 2),
        (("nonsense",), 2),
        ((), 2),
    ],
)
def test_mistakes_are_said_in_a_line_and_never_with_a_traceback(
    launcher: Launcher, argv: tuple[str, ...], status: int
) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    result = launcher(*argv)
    assert result.status == status, result.err
    assert result.err
    assert "Traceback" not in result.err
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_map_takes_any_item(launcher: Launcher) -> None:
    items = ["we{{ird}}", "-n", "", "a b", "x/y", "x/y", "ü", "$(touch pwned)"]
    result = launcher("map", "--simulate", "2", "printf", "%s|", "{{item}}", ":::", *items)
    assert result.status == 0, result.err
    seen = [path.read_text() for path in (launcher.run / "logs").iterdir()]
    assert sorted(seen) == sorted(f"{item}|" for item in items)
    assert not (launcher.path / "pwned").exists()


def test_map_reads_items_from_standard_input(launcher: Launcher) -> None:
    launcher.file("d1/a.txt", "1")
    launcher.file("d2/a.txt", "2")
    result = launcher("map", "--simulate", "1", "cat", stdin="d1/a.txt\n\nd2/a.txt\n")
    assert result.status == 0, result.err
    assert {path.read_text() for path in (launcher.run / "logs").iterdir()} == {"1", "2"}


def test_wait_is_for_a_card_and_not_for_jobs_without_one(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: prep, gpus: 0, run: sleep 2.5}
          - {name: card, needs: [prep], run: 'true'}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--wait", "2s").status == 0


def test_retry_of_a_live_run_only_says_what_it_would_do_on_dry_run(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        "jobs: [{name: bad, run: exit 1}, {name: long, run: exec sleep 1000, grace: 0}]",
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "2"):
        launcher.wait_for("job_settled")
        assert "  bad  1 job" in launcher("retry", "--dry-run").out
        assert launcher.states()["bad"] == "failed"


def test_a_run_that_died_before_its_first_event_stands_in_nobodys_way(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    (launcher.run / "events.jsonl").write_bytes(b"")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    (launcher.run / "events.jsonl").unlink()
    assert launcher("run", "--continue", "jobs.yaml", "--simulate", "1").status == 0


def test_a_missing_interpreter_is_not_replaced_by_another(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: make, gpus: 0, run: 'true'}
          - {name: venv, needs: [make], venv: absent, run: python3 -c 1}
          - {name: python, needs: [make], python: ./absent, run: python3 -c 1}
          - {name: conda, needs: [make], conda: ./absent, run: python3 -c 1}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    jobs = launcher.jobs()
    for name in ("venv", "python", "conda"):
        assert jobs[name]["failure"] == "not_started"
        assert "absent" in jobs[name]["reason"]


def test_all_keepers_killed_at_once_leave_nothing_on_the_card(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: a
            run: |
              [ {{attempt}} = 2 ] && exit 0
              setsid sleep 1000 &
              sleep 1000
        """,
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        (event,) = launcher.wait_for("attempt_started")
        inner = parent(event["pid"])
        outer = parent(inner)
        victims = [parent(outer), outer, inner]
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        assert process.wait(60) == 0
    run_id = launcher.events("run_opened")[0]["run"]
    wait_until(lambda: not marked(f"GPULAUNCH_RUN_ID={run_id}"))


def test_times_are_the_keepers_and_not_the_supervisors(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml", f"jobs: [{{name: a, run: sleep 0.5}}, {{name: b, run: '{UNTIL_GO}'}}]"
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        launcher.wait_for("attempt_started", 2)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: Ends(launcher.run / "ends").of("a.1"))
        went_on = time.time()
        process.send_signal(signal.SIGCONT)
        launcher.file("go", "")
        assert process.wait(60) == 0
    (attempt,) = launcher.jobs()["a"]["attempts"]
    assert attempt["seconds"] > 0.4
    assert datetime.fromisoformat(attempt["ended"].replace("Z", "+00:00")).timestamp() < went_on


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def marked(variable: str, within: str = "") -> list[str]:
    """Processes with this in their environment (and, somewhere there, the other text)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if variable.encode() in environ.split(b"\0") and within.encode() in environ:
                found.append(entry.name)
    return found
