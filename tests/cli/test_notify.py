"""`notify:` from outside: who is told, what is said where, and that no address gets out."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launcher import UNTIL_GO, Launcher
from tests.cli.test_failures import at_a_terminal
from tests.helpers import wait_until
from tests.notify import sinks

SECRET = "s3cret-t0ken"
RUN = ("run", "jobs.yaml", "--simulate", "2")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What listens on the loopback address is not asked for through anybody's proxy."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def told(launcher: Launcher) -> list[dict[str, Any]]:
    """What `cat >> told` was given."""
    path = launcher.path / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def notes(launcher: Launcher) -> list[str]:
    """What was noted; on a slow machine it is also said that the end waits."""
    told = [event["text"] for event in launcher.events("noted")]
    return [text for text in told if not text.startswith("the run's end waits")]


def job_file(launcher: Launcher, notify: str, *jobs: str) -> None:
    lines = "".join(f"  - {{{job}}}\n" for job in jobs)
    launcher.file("jobs.yaml", f"notify: {notify}\njobs:\n{lines}")


CAT = "{run: 'cat >> told', every: 2}"


def test_a_command_is_told_of_failures_and_of_the_end(launcher: Launcher) -> None:
    ok = "name: ok, run: 'until [ -e told ]; do sleep 0.02; done'"
    job_file(launcher, CAT, "name: bad, run: echo no card here; exit 3", ok)
    result = launcher(*RUN)
    assert result.status == 1, result.err
    first, last = told(launcher)
    assert (first["event"], first["run"]["counts"]["failed"]) == ("first_failure", 1)
    assert last["event"] == "finish"
    assert last["run"]["exit_status"] == 1
    assert last["run"]["dir"] == str(launcher.run)
    assert last["failures"][0]["first"] == "bad"
    assert last["next"] == f"gpulaunch retry {launcher.run}"
    assert notes(launcher) == []


def test_no_address_is_printed_or_recorded(launcher: Launcher) -> None:
    with sinks.web() as sink:
        sink.status = 500
        launcher.environ["HOOK"] = f"http://{sink.address}/{SECRET}"
        job_file(launcher, "[{to: env:HOOK}, {to: env:UNSET}]", "name: a, run: exit 1")
        results = [launcher("check", *RUN[1:]), launcher(*RUN, "--dry-run"), launcher(*RUN)]
    assert [result.status for result in results] == [0, 0, 1]
    assert [body["events"] for body in sink.bodies] == [["finish", "first_failure"]]
    assert "tells notify[0] (env:HOOK) on finish, first failure, pause" in results[1].out
    assert "jobs.yaml:1:31: notify[1].to: UNSET is not set" in results[0].err
    assert notes(launcher) == [
        "notify[1] (env:UNSET) was not told: UNSET is not set in this environment, or empty",
        "notify[0] (env:HOOK) was not told: HTTP status 500",
    ]
    assert "notify[0] (env:HOOK) was not told: HTTP status 500" in results[2].err
    assert not any(SECRET in result.out + result.err for result in results)
    for path in launcher.run.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_an_address_in_the_file_is_warned_of_and_a_wrong_one_refused(launcher: Launcher) -> None:
    job_file(launcher, f'{{to: "ntfy://{SECRET}"}}', "run: 'true'")
    result = launcher("check", *RUN[1:])
    assert result.status == 0
    assert "warning: jobs.yaml:1:14: notify.to: a password or token in the file" in result.err
    job_file(launcher, f'{{to: "nosuch://{SECRET}"}}', "run: 'true'")
    for command in ("check", "run"):
        wrong = launcher(command, *RUN[1:])
        assert wrong.status == 2
        assert "jobs.yaml:1:14: notify.to: Apprise knows no service nosuch://" in wrong.err
        assert SECRET not in wrong.err + result.err + result.out
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_a_wrong_address_in_the_environment_is_a_warning(launcher: Launcher) -> None:
    launcher.environ["HOOK"] = SECRET
    job_file(launcher, "{to: env:HOOK}", "name: a, run: 'true'")
    result = launcher(*RUN)
    assert result.status == 0, "the file is right, and the run is not worth less for it"
    assert "notify.to: the address in HOOK: it is no address" in result.err
    assert notes(launcher) == [
        "notify (env:HOOK) was not told: it is no address: those begin like mailto://"
    ]
    assert SECRET not in result.err


def test_a_program_that_is_not_there_is_warned_of(launcher: Launcher) -> None:
    job_file(launcher, "[{run: [./tell.sh]}, {run: [sh, -c, 'true']}]", "run: 'true'")
    result = launcher("check", *RUN[1:])
    assert result.status == 0
    assert (
        result.err == "warning: jobs.yaml:1:16: notify[0].run: there is no program ./tell.sh here\n"
    )


def test_ctrl_c_while_the_end_is_told_changes_nothing_but_the_waiting(launcher: Launcher) -> None:
    with sinks.web() as sink:
        sink.answers.clear()
        job_file(launcher, f'{{to: "http://{sink.address}/x"}}', "name: a, run: 'true'")
        with launcher.begun(*RUN) as process:
            (waits,) = launcher.wait_for("noted")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
    assert "the run's end waits until notify (http://127.0.0.1/…) is told" in waits["text"]
    assert launcher.status()["run"]["state"] == "succeeded"
    assert notes(launcher)[-1] == "notify (http://127.0.0.1/…) was not told: Ctrl-C came first"


def test_a_stopped_run_tells_so_and_its_resume_tells_its_own_end(launcher: Launcher) -> None:
    job_file(launcher, CAT, "name: a, run: '[ -e go ] || exec sleep 1000'")
    with launcher.begun(*RUN) as process:
        launcher.wait_for("attempt_started")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    (stopped,) = told(launcher)
    assert (stopped["event"], stopped["run"]["state"]) == ("finish", "stopped")
    assert stopped["run"]["exit_status"] == 130
    assert stopped["next"].startswith("gpulaunch resume ")
    launcher.file("go", "")
    assert launcher("resume").status == 0
    assert [one["run"]["state"] for one in told(launcher)] == ["stopped", "succeeded"]
    assert launcher("resume").status == 0
    assert len(told(launcher)) == 2, "nothing was done, nothing is told"


def test_retry_tells_its_own_first_failure_and_end(launcher: Launcher) -> None:
    job_file(launcher, CAT, "name: a, run: exit 1")
    assert launcher(*RUN).status == 1
    assert launcher("retry").status == 1
    assert [one["events"] for one in told(launcher)] == [["finish", "first_failure"]] * 2


def test_a_detached_run_tells_too(launcher: Launcher) -> None:
    launcher.environ["WHO"] = "night"
    job_file(launcher, "{run: 'echo $WHO >> told; cat >> summary'}", f"name: a, run: '{UNTIL_GO}'")
    assert launcher(*RUN, "--detach").status == 0
    launcher.file("go", "")
    assert launcher("wait").status == 0
    assert (launcher.path / "told").read_text() == "night\n"


def test_json_prints_the_journal_and_nothing_else(launcher: Launcher) -> None:
    job_file(launcher, "{run: exit 9}", "name: a, run: exit 1")
    result = launcher(*RUN, "--json")
    assert result.out == (launcher.run / "events.jsonl").read_text()
    assert launcher.events()[-1]["e"] == "run_closed"
    assert len(notes(launcher)) == 1


def test_a_plan_for_machines_names_who_is_told(launcher: Launcher) -> None:
    job_file(launcher, f'[{{to: "ntfy://{SECRET}", every: 1}}]', "run: 'true'")
    result = launcher(*RUN, "--dry-run", "--json")
    assert json.loads(result.out)["notify"] == [
        "notify[0] (ntfy://…) on finish, first failure, pause, idle card, every failure"
    ]


def test_a_run_that_nobody_is_told_of_starts_no_sender(launcher: Launcher, tmp_path: Path) -> None:
    spy = launcher.file("apprise.py", "import os; open(os.environ['SPIED'], 'w').close()")
    launcher.environ |= {"PYTHONPATH": f"{spy.parent}:{os.environ.get('PYTHONPATH', '')}"}
    launcher.environ["SPIED"] = str(tmp_path / "spied")
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    assert launcher(*RUN).status == 0
    assert not (tmp_path / "spied").exists()
    job_file(launcher, "{run: 'true'}", "name: a, run: 'true'")
    assert launcher(*RUN, "--new").status == 0
    assert not (tmp_path / "spied").exists(), "a command needs no library"


def test_a_sigkilled_supervisor_leaves_no_sender_behind(launcher: Launcher) -> None:
    job_file(
        launcher,
        "{run: 'echo $PPID $$ > pids.new; mv pids.new pids; sleep 1000'}",
        "name: bad, run: exit 1",
        "name: long, run: exec sleep 1000",
    )
    with launcher.begun(*RUN) as process:
        wait_until((launcher.path / "pids").exists, 30)
        process.kill()
        process.wait()
    for pid in (launcher.path / "pids").read_text().split():
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())


def test_a_pause_is_told_and_the_end_after_it(launcher: Launcher) -> None:
    jobs = [f"name: fold-{i}, run: '[ -e installed ]'" for i in range(5)]
    job_file(launcher, "{run: 'cat >> told', on: [paused, finish]}", *jobs)
    argv = ("run", "jobs.yaml", "--simulate", "1", "--no-progress", "--breaker", "3")
    with at_a_terminal(launcher, *argv) as run:
        (paused,) = wait_until(lambda: told(launcher), 30)
        assert paused["event"] == "paused"
        assert "3 jobs in a row failed" in paused["run"]["reason"]
        assert "gpulaunch retry" in paused["text"]
        launcher.file("installed", "")
        assert launcher("retry").status == 0
        wait_until(lambda: run.poll() is not None, 60, "the end of the run")
    assert [one["event"] for one in told(launcher)] == ["paused", "finish"]
    assert told(launcher)[1]["run"]["state"] == "succeeded"


def test_a_run_that_cannot_be_recorded_tells_so(launcher: Launcher) -> None:
    job_file(launcher, CAT, f"name: short, run: '{UNTIL_GO}'", "name: long, run: exec sleep 1000")
    with launcher.begun(*RUN) as process:
        launcher.wait_for("attempt_started", 2)
        shutil.rmtree(launcher.run)
        launcher.file("go", "")
        assert process.wait(60) == 4
    assert told(launcher)[0]["event"] == "paused"
    assert "cannot be recorded" in told(launcher)[0]["run"]["reason"]
    assert told(launcher)[-1]["event"] == "finish"
    assert told(launcher)[-1]["run"]["exit_status"] == 4
