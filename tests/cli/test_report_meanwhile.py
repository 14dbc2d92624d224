"""A run that is over and still writes its report: it answers, and is waited for."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Retry
from gpulaunch.core.facts import RunClosed
from gpulaunch.journal.read import replay
from gpulaunch.journal.rundir import RunDir
from gpulaunch.run.control_client import call, live_runs
from gpulaunch.run.control_handlers import attended
from gpulaunch.run.control_protocol import NoAnswerError
from gpulaunch.run.control_server import ControlServer
from tests.cli.launcher import Launcher
from tests.journal.made import STARTED, made

OVER = (*STARTED, RunClosed("failed", None, 1))


def test_what_is_over_still_says_who_it_is(tmp_path: Path) -> None:
    run = made(tmp_path, facts=OVER)
    with (
        ControlServer(run.read_manifest().run) as server,
        attended(server, run, replay(run.events)),
    ):
        (mine,) = [one for one in live_runs() if one.id == server.run]
        assert (mine.dir, mine.name, mine.state) == (run.path, "fold", "failed")
        with pytest.raises(NoAnswerError, match=r"is over .failed.: it only writes its report"):
            call(server.run, Retry(None))


def test_what_is_over_and_still_answers_is_not_alive_elsewhere(launcher: Launcher) -> None:
    run = made(launcher.path, facts=OVER)
    with (
        ControlServer(run.read_manifest().run) as server,
        attended(server, run, replay(run.events)),
    ):
        refused = launcher("cancel", "--all")
    assert refused.status == 2
    assert f"no run of {launcher.path} is alive" in refused.err
    assert str(run.path) not in refused.err


def test_ps_names_a_run_that_does_not_answer_as_one(launcher: Launcher) -> None:
    run = made(launcher.path)
    with ControlServer(run.read_manifest().run) as server:
        shown = launcher("ps").out
        assert "stopped?" in shown.partition(server.run)[2]


def test_a_run_is_waited_for_until_its_report_is_written(launcher: Launcher) -> None:
    run = made(launcher.path, facts=OVER)
    server = ControlServer(run.read_manifest().run)
    try:
        with launcher.begun("wait", run.path) as waiting, closing(Loop()) as loop:
            server.serve(loop, lambda conn, asking: None)
            while not server._conns:
                loop.turn()
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(1)
            server.close()
            assert waiting.wait(60) == 1
    finally:
        server.close()


def test_what_is_over_is_gone_on_with_once_its_report_is_written(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, gpus: 0, run: test -e mended}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    run = RunDir(launcher.run)
    launcher.file("mended", "")
    with ControlServer(run.read_manifest().run) as server, launcher.begun("retry") as again:
        with attended(server, run, replay(run.events)):
            assert again.stderr
            while "waits until the report of" not in (line := again.stderr.readline()):
                assert line, "it did not wait"
        server.close()
        assert again.wait(60) == 0
    assert launcher.states() == {"a": "succeeded"}
