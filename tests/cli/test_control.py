"""Other terminals: cancel, retry, drain, wait, status, logs, ps, on a live run and after it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from gpulaunch.agent.proc import state_of
from gpulaunch.journal.manifest import boot_id, hostname
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.helpers import wait_until

LIVE = """
    jobs:
      - {name: long, run: exec sleep 1000, grace: 1}
      - {name: blocked, needs: [long], run: 'true'}
      - {name: bad, run: '[ -e good ]'}
      - {name: other, run: 'while [ ! -e stop ]; do sleep 0.05; done'}
"""


def test_cancel_retry_and_reasons_on_a_live_run(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIVE)
    with launcher.begun("run", "jobs.yaml", "--simulate", "3") as process:
        launcher.wait_for("job_settled")
        jobs = launcher.jobs()
        assert jobs["bad"]["state"] == "failed"
        assert "long" in jobs["blocked"]["reason"]
        assert str(launcher.run) in launcher("ps").out
        launcher.file("good", "")
        assert launcher("retry").status == 0
        wait_until(lambda: launcher.states()["bad"] == "succeeded")
        result = launcher("cancel", "-r", launcher.run, "lnog")
        assert result.status == 2
        assert "long" in result.err
        assert launcher("cancel", "-r", launcher.run, "long").status == 0
        wait_until(lambda: launcher.states()["long"] == "cancelled")
        assert launcher.states()["blocked"] == "skipped"
        launcher.file("stop", "")
        assert process.wait(60) == 1
    assert launcher("cancel", "-r", launcher.run, "long").status == 2


def test_cancel_all_ends_the_run(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIVE)
    with launcher.begun("run", "jobs.yaml", "--simulate", "3") as process:
        launcher.wait_for("attempt_started", 3)
        assert launcher("cancel", "-r", launcher.run, "--all").status == 0
        assert process.wait(60) == 1
    assert launcher.states()["other"] == "cancelled"


def test_a_live_run_of_another_machine_is_looked_at_and_left_alone(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", LIVE)
    with launcher.begun("run", "jobs.yaml", "--simulate", "3"):
        launcher.wait_for("job_settled")
        journal = launcher.run / "events.jsonl"
        moved = launcher.path / "seen-from-another-machine"
        moved.mkdir()
        (moved / "events.jsonl").write_bytes(journal.read_bytes())
        manifest = (launcher.run / "manifest.json").read_text()
        manifest = manifest.replace(f'"host": "{hostname()}"', '"host": "login1"')
        (moved / "manifest.json").write_text(manifest.replace(boot_id(), "another"))
        seen = launcher("status", moved)
        assert seen.status == 0
        assert f"whether it is alive shows on {hostname()} alone" in seen.out
        assert "is not alive" not in seen.out
        for words in (
            ("cancel", "-r", moved, "long"),
            ("drain", "-r", moved),
            ("retry", moved),
            ("resume", moved),
        ):
            refused = launcher(*words)
            assert refused.status == 2
            assert "is a run of login1" in refused.err
            assert "go on with it on login1" in refused.err


def seen_from_another_machine(launcher: Launcher) -> list[bytes]:
    """Make the finished run one of login1's, whose job still runs; return the journal's rest."""
    manifest = launcher.run / "manifest.json"
    told = manifest.read_text().replace(f'"host": "{hostname()}"', '"host": "login1"')
    manifest.write_text(told.replace(boot_id(), "another"))
    journal = launcher.run / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    (ended,) = (n for n, line in enumerate(lines) if b'"e":"attempt_ended"' in line)
    journal.write_bytes(b"".join(lines[:ended]))
    return lines[ended:]


def go_on(launcher: Launcher, rest: list[bytes]) -> None:
    with open(launcher.run / "events.jsonl", "ab") as file:
        file.write(b"".join(rest))


def test_the_end_of_another_machine_s_run_is_waited_for(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: echo first}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    rest = seen_from_another_machine(launcher)
    with launcher.begun("wait") as waiting:
        launcher.looked_at(waiting)
        go_on(launcher, rest)
        _, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, err
    assert "it is login1's run: waits until its journal tells that it has ended" in err
    assert err.endswith(": succeeded\n")


def test_logs_of_another_machine_s_run_are_followed(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: echo first}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    rest = seen_from_another_machine(launcher)
    with launcher.begun("logs", "-f", "a") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "first\n"
        wait_until(lambda: state_of(following.pid) in "SZ", what="asleep, or over")
        with open(launcher.run / "logs" / "a.1.log", "a") as log:
            log.write("second\n")
        go_on(launcher, rest)
        assert following.communicate(timeout=60)[0] == "second\n"
    assert following.returncode == 0


def test_drain_gives_cards_back_and_takes_them_again(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: 'j-{{n}}', matrix: {n: [1, 2, 3, 4]}, run: exec sleep 1000, grace: 1}
        """,
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "2"):
        launcher.wait_for("attempt_started", 2)
        assert launcher("drain", "-r", launcher.run, "--gpus", "[1]", "--now").status == 0
        ended = launcher.wait_for("attempt_ended")
        assert "charged" not in ended[0]
        wait_until(lambda: sum(s == "running" for s in launcher.states().values()) == 1)
        assert launcher("drain", "-r", launcher.run, "--off").status == 0
        launcher.wait_for("attempt_started", 3)
        assert launcher("drain", "-r", launcher.run, "--gpus", "[5]").status == 2


def runs(launcher: Launcher, run: Path) -> bool:
    """Its directory is there before its journal is."""
    begun = launcher.events("attempt_started", run)
    return bool(begun) and launcher.status(run)["run"]["state"] == "running"


def test_wait_exits_as_the_run_did(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: '{UNTIL_GO}; exit 1'}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        with launcher.begun("wait") as waiter:
            launcher.looked_at(waiter)
            launcher.file("go", "")
            assert waiter.wait(60) == 1
        assert process.wait(60) == 1
    launcher.file("jobs.yaml", "jobs: [{name: a, run: sleep 1000, grace: 1}]")
    with launcher.begun("run", "--new", "jobs.yaml", "--simulate", "1") as process:
        wait_until(lambda: runs(launcher, launcher.run))
        launcher.wait_for("attempt_started")
        with launcher.begun("wait") as waiter:
            launcher.looked_at(waiter)
            process.send_signal(signal.SIGTERM)
            assert waiter.wait(60) == 143


def test_wait_says_in_words_why_the_run_ended(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: exit 1}, {name: b, run: 'true'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--fail-fast").status == 1
    assert launcher("wait").err.endswith(": failed (--fail-fast after a failed)\n")


def test_logs_follow_until_the_job_ends(launcher: Launcher) -> None:
    script = rf"echo one; {UNTIL_GO}; printf '10%%\r20%%\n'; echo two"
    launcher.file("jobs.yaml", f"jobs:\n  - name: a\n    run: |\n      {script}\n")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1"):
        launcher.wait_for("attempt_started")
        with launcher.begun("logs", "a", "-f") as shown:
            assert shown.stdout
            assert shown.stdout.readline() == "one\n"
            launcher.file("go", "")
            assert shown.stdout.read() == "20%\ntwo\n"
    assert launcher("logs", "a", "-n", "1").out == "two\n"
    assert launcher("logs", "a", "--raw").out == "one\n10%\r20%\ntwo\n"
    assert launcher("logs", "b").status == 2


def test_ps_shows_live_runs(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "name: here\njobs: [{name: a, run: exec sleep 1000, grace: 0}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        runs = json.loads(launcher("ps", "--json").out)["runs"]
        (mine,) = [run for run in runs if run["dir"] == str(launcher.run)]
        assert mine["pid"] == process.pid
        assert mine["counts"]["running"] == 1


def test_status_of_nothing_is_one_clear_line(launcher: Launcher) -> None:
    result = launcher("status")
    assert result.status == 2
    assert result.err.count("\n") == 1


def test_a_run_elsewhere_is_named_in_that_line_whatever_its_directory_is_called(
    launcher: Launcher,
) -> None:
    odd = Launcher(launcher.path / os.fsdecode(b"r\xff\n"), launcher.environ)
    odd.path.mkdir()
    odd.file("jobs.yaml", f"jobs: [{{name: a, run: '{UNTIL_GO}'}}]")
    beside = Launcher(launcher.path / "beside", launcher.environ)
    beside.path.mkdir()
    with odd.begun("run", "jobs.yaml", "--simulate", "1") as process:
        odd.wait_for("attempt_started")
        result = beside("status")
        odd.file("go", "")
        assert process.wait(60) == 0
    assert result.status == 2
    assert result.err.count("\n") == 1
    named = f"/r\\xff\\n/gpulaunch-runs/{odd.run.name}'" in result.err
    assert named or " more\n" in result.err, "ten are named, of whichever tests run just now"


def test_every_command_that_asks_a_stopped_launcher_says_so_and_changes_nothing(
    launcher: Launcher,
) -> None:
    job = f"- {{name: a, run: '{UNTIL_GO}'}}\n  - {{name: b, after: a, run: 'true'}}\n"
    launcher.file("jobs.yaml", f"jobs:\n  {job}")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == "T")
        stopped = f"(pid {process.pid}) is stopped: fg in its terminal or kill -CONT {process.pid}"
        for command in (
            ["add", "--", "echo", "once"],
            ["cancel", "a"],
            ["cancel", "--all"],
            ["retry"],
            ["reload"],
            ["drain"],
            ["set", "b", "priority=3"],
        ):
            done = launcher(*command)
            assert done.status == 2, command
            assert stopped in done.err, command
            assert "Nothing was asked of it" in done.err
        assert stopped in launcher("resume").err
        assert stopped in launcher("status").out
        assert json.loads(launcher("status", "--json").out)["run"]["suspended"] is True
        assert f"stopped: fg in its terminal or kill -CONT {process.pid}" in launcher("ps").out
        process.send_signal(signal.SIGCONT)
        launcher.file("go", "")
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert launcher.states() == {"a": "succeeded", "b": "succeeded"}
