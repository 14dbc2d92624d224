from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpulaunch.journal.codec import encode
from tests.cli.launcher import COMMAND, Launcher
from tests.cli.terminal import terminal
from tests.views.history import History

JOBS = """
    jobs:
      - {name: slow, run: 'echo begun; until [ -e go ]; do sleep 0.05; done; echo gone'}
      - {name: next-名前, run: 'true'}
"""
IGNORING = 'trap "" HUP; exec "$@"'
LEFT = "\x1b[?1049l"
"""What gives the terminal its own screen back."""


@contextmanager
def live(launcher: Launcher) -> Iterator[subprocess.Popen[str]]:
    """A run on one pretend card whose first job ends when `go` exists."""
    launcher.file("jobs.yaml", JOBS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        launcher.wait_for("attempt_started")
        yield run


def installed(launcher: Launcher) -> Launcher:
    """The same by the command that the installation made, where there is one."""
    command = Path(sysconfig.get_path("scripts")) / "gpulaunch"
    assert command.exists(), command
    return Launcher(launcher.path, launcher.environ, [str(command)])


def test_a_live_run_is_watched_and_left_alone(launcher: Launcher) -> None:
    with live(launcher) as run, terminal(installed(launcher), "top") as screen:
        screen.wait_for("simulated cards")
        screen.wait_for("Waiting 1")
        screen.wait_for("waits for a card: GPU 0 is busy with slow")
        screen.press("\r")
        screen.wait_for("begun")
        screen.press("q")
        screen.press("q")
        assert screen.ended() == 0
        assert LEFT in screen.raw
        assert run.poll() is None
        (launcher.path / "go").touch()
        assert run.wait(60) == 0
    assert set(launcher.states().values()) == {"succeeded"}


def test_a_job_of_a_run_elsewhere_is_cancelled_from_the_screen(launcher: Launcher) -> None:
    elsewhere = Launcher(launcher.file("elsewhere/readme", "").parent)
    with (
        live(launcher) as run,
        terminal(elsewhere, "top", launcher.status()["run"]["id"]) as screen,
    ):
        screen.wait_for("Waiting 1")
        screen.press("c")
        screen.wait_for("Cancel slow?")
        screen.press("y")
        assert run.wait(60) == 1
        screen.wait_for("failed")
        screen.press("\x03")
        assert screen.ended() == 0
    assert launcher.states() == {"slow": "cancelled", "next-名前": "succeeded"}


def test_a_killed_supervisor_and_a_vanished_directory_are_shown(launcher: Launcher) -> None:
    with live(launcher) as run, terminal(launcher, "top") as screen:
        screen.wait_for("Waiting 1")
        os.kill(run.pid, signal.SIGKILL)
        screen.wait_for("its supervisor is gone")
        shutil.rmtree(launcher.run, ignore_errors=True)
        screen.wait_for("directory is gone")
        screen.press("q")
        assert screen.ended() == 0


def test_an_interrupted_run_opens_as_well(launcher: Launcher) -> None:
    with live(launcher) as run:
        os.kill(run.pid, signal.SIGKILL)
        run.wait(60)
    with terminal(launcher, "top") as screen:
        screen.wait_for("interrupted")
        screen.wait_for("was running when the run was cut off")
        screen.press("[")
        screen.wait_for("into the run, moment")
        screen.press("q")
        assert screen.ended() == 0


def test_sigterm_leaves_the_terminal_as_it_was(launcher: Launcher) -> None:
    with live(launcher), terminal(launcher, "top") as screen:
        before = screen.flags()
        screen.wait_for("Waiting 1")
        assert not screen.flags() & termios.ECHO
        os.kill(screen.process.pid, signal.SIGTERM)
        assert screen.ended() == 143
        assert LEFT in screen.raw
        assert screen.flags() == before


def test_a_closed_terminal_ends_it_even_where_hangups_are_ignored(launcher: Launcher) -> None:
    nohup = Launcher(launcher.path, launcher.environ, ["sh", "-c", IGNORING, "sh", *COMMAND])
    with live(launcher) as run, terminal(nohup, "top") as screen:
        screen.wait_for("Waiting 1")
        screen.close()
        assert screen.process.wait(60) == -signal.SIGHUP
        assert run.poll() is None


def test_no_colours_are_written_where_none_are_wanted(launcher: Launcher) -> None:
    with live(launcher):
        colours = {}
        for wanted in ("", "1"):
            with terminal(launcher, "top", NO_COLOR=wanted) as screen:
                screen.wait_for("Waiting 1")
                screen.press("q")
                assert screen.ended() == 0
                colours[wanted] = [code for code in range(30, 38) if f"\x1b[{code}" in screen.raw]
    assert colours[""]
    assert not colours["1"]


def test_a_terminal_that_cannot_redraw_gets_one_line(launcher: Launcher) -> None:
    with terminal(launcher, "top", TERM="dumb") as screen:
        assert screen.ended() == 2
        assert len(screen.raw.splitlines()) == 1
        assert "TERM=dumb" in screen.raw
        assert "gpulaunch status says the same" in screen.raw
        assert "\x1b" not in screen.raw


def test_what_is_no_terminal_gets_one_line(launcher: Launcher) -> None:
    done = launcher("top")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "gpulaunch: top fills a terminal, and standard input is none: gpulaunch status says the"
        " same\n"
    )


def test_a_run_that_is_not_there_gets_one_line(launcher: Launcher) -> None:
    with terminal(launcher, "top", "nothing") as screen:
        assert screen.ended() == 2
        assert screen.raw.startswith("gpulaunch: no run 'nothing': ")
        assert "\x1b" not in screen.raw


def test_a_damaged_line_is_told_of_when_the_screen_is_left(launcher: Launcher) -> None:
    run = History(1).open().jobs("a", "b")
    lines = [encode(number, *dated) for number, dated in enumerate(run.facts, 1)]
    lines[1] = lines[1].replace(b'"a"', b'"A"')
    launcher.file("damaged/events.jsonl", b"".join(lines).decode())
    with terminal(launcher, "top", "damaged") as screen:
        screen.wait_for("nanobodies")
        screen.press("q")
        assert screen.ended() == 0
        assert "line 2 (byte" in screen.text
