"""What is said and left when a run ends, and when it cannot go on."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.helpers import wait_until

WAITING = "jobs: [{name: a, gpus: 0, run: 'until [ -e over ]; do sleep 0.05; done; exit 1'}]"


IN_LAUNCHER = """
            super().__init__(args, **more)
            self.stdin = Held(self.stdin)
            return
"""
IN_REPORT = """
            wait = "read told || exit 0; touch {path}/begun; until [ -e {path}/go ]; do sleep 0.05;"
            args = ["sh", "-c", wait + ' done; echo | "$@"', "sh", *args]
"""
HELD = """
class Held(io.FileIO):
    def __init__(self, pipe):
        super().__init__(os.dup(pipe.fileno()), "w")
        pipe.close()
    def write(self, told):
        pathlib.Path({path!r}, "begun").touch()
        while not os.path.exists({path!r} + "/go"):
            time.sleep(0.05)
        return super().write(told)
"""


def held_up(tmp_path: Path, how: str) -> dict[str, str]:
    """An environment in which a run's end is held up at its report until `go` is there."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(
        "import io, os, pathlib, subprocess, time\n"
        f"{HELD.format(path=str(tmp_path))}"
        "real = subprocess.Popen\n"
        "class Popen(real):\n"
        "    def __init__(self, args, **more):\n"
        "        if 'gpulaunch-report' in args:"
        f"{how.format(path=str(tmp_path))}"
        "        super().__init__(args, **more)\n"
        "subprocess.Popen = Popen\n"
    )
    return {"PYTHONPATH": str(hooks)}


def failed_by_ps(launcher: Launcher) -> list[int]:
    """How many jobs failed, of each run of this file that `ps` lists with its numbers."""
    listed = json.loads(launcher("ps", "--json").out)["runs"]
    mine = [one for one in listed if one["dir"] == str(launcher.run) and one["counts"]]
    return [one["counts"]["failed"] for one in mine]


@pytest.mark.parametrize("how", [IN_LAUNCHER, IN_REPORT], ids=["launcher", "report"])
def test_wait_returns_once_the_report_is_there(tmp_path: Path, how: str) -> None:
    launcher = Launcher(tmp_path, held_up(tmp_path, how))
    launcher.file("jobs.yaml", WAITING)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        launcher.wait_for("attempt_started")
        with Launcher(tmp_path).begun("wait") as waiting:
            try:
                launcher.file("over", "")
                wait_until((tmp_path / "begun").exists, 60)
                assert failed_by_ps(launcher) == [1]
                assert waiting.poll() is None
            finally:
                (tmp_path / "go").touch()
            assert waiting.wait(60) == 1
            assert (launcher.run / "report.html").exists()
        assert run.wait(60) == 1


def test_a_launcher_killed_at_its_report_lets_go_of_who_waits(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, held_up(tmp_path, IN_LAUNCHER))
    launcher.file("jobs.yaml", WAITING)
    launcher.file("over", "")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        wait_until((tmp_path / "begun").exists, 60)
        run.send_signal(signal.SIGKILL)
        run.wait(60)
    result = launcher("wait")
    assert result.status == 1
    assert "no report of its end is there: gpulaunch report" in result.err


def test_run_says_what_stands_before_it_starts_all_anew(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}, {name: b, run: exit 1}]")
    assert "starting all jobs anew" not in launcher("run", "jobs.yaml", "--simulate", "1").err
    last = launcher.run.name
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 1
    assert "1 succeeded, 1 failed" in result.err.split("run directory")[0]
    assert f"gpulaunch retry gpulaunch-runs/{last}" in result.err
    assert "gpulaunch run --continue jobs.yaml" in result.err
    assert "anew" not in launcher("run", "-q", "jobs.yaml", "--simulate", "1").err


def test_what_stands_is_not_said_of_a_start_that_is_refused(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: exit 1}]")
    launcher("run", "jobs.yaml", "--simulate", "1")
    launcher.file("jobs.yaml", "jobs: [{name: a, run: exit 1, gpus: 2}]")
    refused = launcher("run", "jobs.yaml", "--simulate", "1")
    assert refused.status == 2
    assert "needs 2 cards" in refused.err
    assert "anew" not in refused.err


def test_run_starts_though_the_last_journal_is_damaged(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: exit 1}]")
    launcher("run", "jobs.yaml", "--simulate", "1")
    journal = launcher.run / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:1], *lines[2:]]))  # what it says of its jobs is gone
    first = launcher.run
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 1, result.err
    assert launcher.run != first


def test_what_is_gone_is_not_advised_to_be_resumed(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITING)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        launcher.wait_for("attempt_started")
        shutil.rmtree(launcher.run)
        launcher.file("over", "")
        assert run.stderr is not None
        told = run.stderr.read()
        assert run.wait(90) == 4
    assert (
        "nothing of it can be resumed; start again: gpulaunch run jobs.yaml --simulate 1\n" in told
    )
    assert "gpulaunch resume" not in told
    assert "gpulaunch retry" not in told


def test_a_killed_job_is_told_who_may_have_sent_that(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        "jobs: [{name: own, run: 'kill -9 $$'}, {name: inner, run: 'sh -c \"kill -9 \\$\\$\"; :'}]",
    )
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 1
    jobs = launcher.jobs()
    for name in ("own", "inner"):
        last = jobs[name]["attempts"][-1]
        assert last["failure"] == "signal", last
        assert "dmesg" in last["advice"]
        assert "PYTHONFAULTHANDLER" not in last["advice"]


def test_a_killed_run_says_how_long_it_lived_and_how_to_go_on(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: sleep 1000}, {name: b, run: sleep 1.5}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as run:
        wait_until(lambda: launcher.events("attempt_ended"))
        run.send_signal(signal.SIGKILL)
        run.wait()
    shown = launcher("status").out
    assert "interrupted" in shown
    assert "0:00" not in shown.splitlines()[0]
    assert "gpulaunch resume" in shown


def test_many_failures_fit_a_screen_with_what_shows_them(launcher: Launcher) -> None:
    launcher.environ |= {"COLUMNS": "80", "LINES": "24"}
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: f-{{item}}
            gpus: 0
            foreach: {values: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}
            run: 'i={{item}}; echo "ValueError: no chain in $((i % 2))"; exit $((i % 2 + 1))'
          - {name: "then-{{item}}", foreach: {values: [1, 2, 3]}, needs: ["f-*"], run: "true"}
        """,
    )
    done = launcher("run", "jobs.yaml", "--simulate", "1", "--quiet", "--breaker", "0")
    assert done.status == 1
    for shown in (done.err, launcher("status").out):
        lines = [line for line in shown.splitlines() if not line[:1].isdigit()]
        assert len(lines) <= 24, "without what was said while it ran"
        assert any("ValueError: no chain in" in line for line in lines)


def test_a_run_whose_environment_was_removed_ends_as_it_would_have(launcher: Launcher) -> None:
    """Whatever draws its end is imported then, and not there any more."""
    gone = "raise ModuleNotFoundError('No module named rich', name='rich')"
    launcher.file("gone/rich/__init__.py", gone)
    launcher.environ["PYTHONPATH"] = str(launcher.path / "gone")
    launcher.file("jobs.yaml", "jobs: [{name: a, gpus: 0, run: exit 1}]")
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 1
    told = "gpulaunch: the end cannot be shown here: rich is not installed any more"
    where = f"gpulaunch status gpulaunch-runs/{launcher.run.name}"
    assert result.err.splitlines()[-1] == f"{told}: {where}"


def test_a_success_that_left_processes_behind_says_so_wherever_it_is_told(
    launcher: Launcher,
) -> None:
    launcher.file("train.sh", "nohup tail -f /dev/null > log &\necho begun\n")
    launcher.file(
        "jobs.yaml",
        "jobs: [{name: a, gpus: 0, run: bash train.sh}, {name: b, gpus: 0, run: 'true'}]",
    )
    ended = launcher("run", "jobs.yaml", "--simulate", "1", "--quiet")
    told = "1 job succeeded and left processes behind, which gpulaunch killed (a)"
    assert ended.status == 0
    assert told in ended.err
    warned = "train.sh:1:7: the last command runs in the background (&)"
    assert warned in launcher("check", "jobs.yaml", "--simulate", "1").err
    assert told in launcher("status").out
    lines = launcher("status", "--all").out.splitlines()
    (line,) = [one for one in lines if one.startswith("a ")]
    assert line.endswith("1 process left behind, killed")
    assert "left  1 process left behind, killed" in launcher("status", "a").out
    assert told in (launcher.run / "report.html").read_text()
    left = {name: job["attempts"][-1]["left_behind"] for name, job in launcher.jobs().items()}
    assert left == {"a": 1, "b": 0}
    head, first, second = launcher("results", "--csv").out.splitlines()
    column = head.split(",").index("left_behind")
    assert (first.split(",")[column], second.split(",")[column]) == ("1", "")


def test_status_tells_interrupted_jobs_from_those_that_never_started(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: sleep 600}, {name: b, run: sleep 600}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        launcher.wait_for("attempt_started")
        run.send_signal(signal.SIGHUP)
        assert run.wait(60) != 0
    stop = "stopped by SIGHUP (the terminal closed)"
    launcher.environ["COLUMNS"] = "200"  # nothing is cut
    told = launcher("status").out
    assert f"waiting  was started, and is not started again: {stop}: a" in told
    assert f"waiting  not started: {stop}: b" in told


def test_a_success_whose_log_says_otherwise_is_named_wherever_it_is_told(
    launcher: Launcher,
) -> None:
    launcher.file(
        "jobs.yaml",
        "jobs: [{name: a, gpus: 0, run: 'echo WARNING: ran out of memory, skipping batch'},"
        " {name: b, gpus: 0, run: echo fine}]",
    )
    ended = launcher("run", "jobs.yaml", "--simulate", "1", "--quiet")
    note = "exited 0, though its log says: "
    told = f"1 job succeeded, with a note: a {note}"
    assert ended.status == 0
    assert told in ended.err
    assert told in launcher("status").out
    assert f"note  {note}" in launcher("status", "a").out
    assert told in (launcher.run / "report.html").read_text()
    jobs = launcher.jobs()
    assert jobs["a"]["note"].startswith(note)
    assert jobs["b"]["note"] == ""
