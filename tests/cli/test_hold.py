"""`gpulaunch hold`: a lease by name that ends in time, whoever is killed or stopped."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpulaunch.agent.proc import children_of, is_stopped
from tests.cli.launcher import Launcher
from tests.cli.terminal import Terminal, terminal
from tests.helpers import wait_until

POOL = ("--simulate", "1")
DAEMON = "setsid sh -c 'trap \"\" TERM HUP; echo $$ > daemon; exec sleep 600' & "


@pytest.fixture(autouse=True)
def one_card(launcher: Launcher) -> None:
    """All of a test's launchers see the same pretend card."""
    launcher.environ["GPULAUNCH_SIM_POOL"] = f"hold-{uuid.uuid4().hex[:12]}"


def is_free(launcher: Launcher) -> bool:
    return launcher("exec", *POOL, "--no-wait", "--", "true").status == 0


def pid_in(launcher: Launcher, name: str) -> int:
    path = launcher.path / name
    return int(wait_until(lambda: path.exists() and path.read_text().strip(), 30))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists() and "Z" not in _state(pid)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_hold_is_its_commands_own_and_ends_with_it(launcher: Launcher) -> None:
    command = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; cat; exit 7"]
    for form in ([], ["--for", "1h"]):
        result = launcher("hold", *POOL, *form, "--", *command, stdin="in\n")
        assert (result.status, result.out) == (7, "0\nin\n")
        assert "simulated GPU 0 is held" in result.err
        assert is_free(launcher)


def test_when_the_time_is_over_nothing_is_left_of_the_command(launcher: Launcher) -> None:
    """A daemon of its own session that ignores TERM has the grace, and no more."""
    held = ["hold", *POOL, "--for", "1s", "--grace", "1s", "--name", "demo"]
    began = time.monotonic()
    with launcher.begun(*held, "--", "sh", "-c", DAEMON + "sleep 600") as process:
        daemon = pid_in(launcher, "daemon")
        assert process.wait(60) == -signal.SIGTERM
        wait_until(lambda: not is_alive(daemon), 30)
        assert time.monotonic() - began > 2
        assert process.stderr is not None
        assert "the time is over" in process.stderr.read()
    wait_until(lambda: is_free(launcher), 30)


def test_the_command_is_told_by_term_and_may_end_in_its_own_way(launcher: Launcher) -> None:
    script = "trap 'echo saved > saved; exit 3' TERM; while :; do sleep 0.1; done"
    result = launcher("hold", *POOL, "--for", "1s", "--", "sh", "-c", script)
    assert result.status == 3
    assert (launcher.path / "saved").read_text() == "saved\n"


def test_what_a_command_leaves_behind_has_the_card_until_the_time_is_over(
    launcher: Launcher,
) -> None:
    held = ["hold", *POOL, "--for", "3s", "--grace", "0.2s", "--name", "demo"]
    until_there = "until [ -s daemon ]; do sleep 0.05; done"
    assert launcher(*held, "--", "sh", "-c", DAEMON + until_there).status == 0
    daemon = pid_in(launcher, "daemon")
    assert "for 'demo' until" in launcher("exec", *POOL, "--no-wait", "--", "true").err
    assert is_alive(daemon)
    wait_until(lambda: not is_alive(daemon), 30)
    wait_until(lambda: is_free(launcher), 30)


def test_a_child_without_the_variables_ends_in_time_too(launcher: Launcher) -> None:
    bare = "import os; open('bare', 'w').write(str(os.getpid())); __import__('signal').pause()"
    words = ["env", "-i", sys.executable, "-c", bare]
    script = "import subprocess, sys; subprocess.call(sys.argv[1:])"
    held = ["hold", *POOL, "--for", "2s", "--", sys.executable, "-c", script, *words]
    with launcher.begun(*held) as process:
        child = pid_in(launcher, "bare")
        assert process.wait(60) == -signal.SIGTERM
        wait_until(lambda: not is_alive(child), 30)


def test_a_run_in_a_hold_is_stopped_in_order_when_the_time_is_over(launcher: Launcher) -> None:
    """Its keepers are no target: they end the job, whose supervisor is killed here.

    The shell between ends first, so that nothing tells whose the job is.
    """
    launcher.file("jobs.yaml", f"jobs:\n  - grace: 3s\n    run: |\n      {DAEMON}sleep 600\n")
    shell = ["sh", "-c", '"$@" > run.log 2>&1 & wait', "sh"]
    run = [*shell, *launcher.command, "run", "jobs.yaml", *POOL]
    with launcher.begun("hold", *POOL, "--for", "6s", "--grace", "1s", "--", *run) as process:
        daemon = pid_in(launcher, "daemon")
        assert process.wait(60) == -signal.SIGTERM
        wait_until(lambda: not is_alive(daemon), 30)
    wait_until(lambda: is_free(launcher), 30)


@pytest.mark.parametrize("form", [(), ("--", "sleep", "600")])
def test_a_hold_that_is_stopped_keeps_the_cards_no_longer_than_it_was_to(
    launcher: Launcher, form: tuple[str, ...]
) -> None:
    with launcher.begun("hold", *POOL, "--for", "4s", *form) as process:
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", 30)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid), 30)
        told = launcher("exec", *POOL, "--no-wait", "--", "true").err
        assert f"(pid {process.pid}, stopped" in told
        assert launcher("exec", *POOL, "--wait", "30s", "--", "true").status == 0
        assert process.wait(60) == -signal.SIGTERM


# ── Without a command ───────────────────────────────────────────────────────────────────────────


def test_a_hold_without_a_command_says_how_another_terminal_uses_the_card(
    launcher: Launcher,
) -> None:
    with launcher.begun("hold", *POOL, "--name", "lunch demo", "--for", "1h") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(
            r"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0 GPULAUNCH_GPU_INDEX=0"
            r" GPULAUNCH_GPU_UUID=SIM-0 GPULAUNCH_LEASED=exec/\d+\n",
            line,
        )
        other = launcher("exec", *POOL, "--no-wait", "--", "true")
        assert other.status == 124
        assert re.search(r"held by \S+ for 'lunch demo' until \d\d:\d\d \(pid \d+\): ", other.err)
        eval_ = f"{line.strip()}; {' '.join(launcher.command)} exec {' '.join(POOL)} -- echo in"
        inside = subprocess.run(
            ["sh", "-c", eval_], env=launcher.environ, capture_output=True, text=True, check=False
        )
        assert inside.stdout == "in\n", inside.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    wait_until(lambda: is_free(launcher), 30)


def test_who_waits_is_answered_when_the_hold_ends(launcher: Launcher) -> None:
    with (
        launcher.begun("hold", *POOL, "--for", "3s") as holding,
        launcher.begun("exec", *POOL, "--", "echo", "mine") as waiting,
    ):
        assert waiting.wait(60) == 0
        assert waiting.stdout is not None
        assert waiting.stdout.read() == "mine\n"
        assert holding.wait(60) == 0


def test_a_run_that_waits_says_whose_the_card_is(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    with launcher.begun("hold", *POOL, "--name", "demo", "--for", "1h") as holding:
        assert holding.stdout is not None
        holding.stdout.readline()
        result = launcher("run", "jobs.yaml", *POOL, "--wait", "1s")
        assert result.status == 3
        assert "for 'demo' until" in result.err


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["--for", "0"], 125, "--for takes a time like 90m or 4h"),
        (["--for", "never"], 125, "expected a duration"),
        (["--name", "x" * 61], 125, "at most 60 bytes that can be printed"),
        (["--name", "a\x1b[2J"], 125, "at most 60 bytes that can be printed"),
        (["-g", "0"], 125, "0 is not in the range x>=1"),
        (["-g", "2"], 125, "2 cards"),
        (["fold-a"], 127, "fold-a: not found; hold keeps cards: a job is kept from starting by"),
        (["--for", "1h", "fold-a"], 127, "fold-a: not found; hold keeps cards"),
        (["--for", "1h", "--", "/etc/passwd"], 126, "cannot be executed: Permission denied"),
        (["--time", "4h"], 125, "--for TIME"),
    ],
)
def test_what_cannot_be_held_is_refused_in_a_line(
    launcher: Launcher, argv: list[str], status: int, said: str
) -> None:
    result = launcher("hold", *POOL, *argv)
    assert result.status == status
    assert said in result.err
    assert "Traceback" not in result.err


# ── At a terminal ───────────────────────────────────────────────────────────────────────────────

SHELL = ("bash", "--norc", "--noprofile", "-i")
OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def window(launcher: Launcher, *argv: str) -> Iterator[Terminal]:
    """The command at a terminal that sends its signals, as a window does."""
    own = Launcher(launcher.path, launcher.environ, [sys.executable, "-c", OWN_TERMINAL])
    with terminal(own, *launcher.command, *argv, PS1="$ ") as screen:
        yield screen


def test_a_shell_with_a_card_is_a_usable_one(launcher: Launcher) -> None:
    with window(launcher, "hold", *POOL, "--for", "1h", "--", *SHELL) as screen:
        screen.wait_for("$ ")
        screen.press("echo card-$CUDA_VISIBLE_DEVICES\n")
        screen.wait_for("card-0\r\n")
        screen.press("sleep 600\n")
        screen.wait_for("sleep 600\r\n")
        time_to_start = wait_until(lambda: _foreground(screen.process.pid, "sleep"), 30)
        assert time_to_start
        screen.press("\x1a")  # Ctrl-Z: job control
        screen.wait_for("Stopped")
        screen.press("fg\n")
        wait_until(lambda: _foreground(screen.process.pid, "sleep"), 30)
        screen.press("\x03")  # Ctrl-C ends the program, and neither the shell nor the hold
        screen.press("echo still-$((40 + 2))\n")
        screen.wait_for("still-42")
        screen.press("exit 3\n")
        assert screen.ended() == 3


def test_a_shell_whose_time_is_over_ends_and_leaves_the_terminal_as_it_was(
    launcher: Launcher,
) -> None:
    held = ["hold", *POOL, "--for", "2s", "--grace", "20s"]
    began = time.monotonic()
    with window(launcher, *held, "--", *SHELL) as screen:
        before = screen.flags()
        screen.wait_for("$ ")
        screen.press("sleep 600\n")
        assert screen.ended() == -signal.SIGHUP
        assert screen.flags() == before
        assert "the time is over" in screen.text
    assert time.monotonic() - began < 20  # a shell ignores TERM, and heeds HUP
    wait_until(lambda: is_free(launcher), 30)


def test_a_shell_that_heeds_no_signal_is_killed(launcher: Launcher) -> None:
    held = ["hold", *POOL, "--for", "3s", "--grace", "0.2s"]
    with window(launcher, *held, "--", *SHELL) as screen:
        screen.wait_for("$ ")
        screen.press("trap '' HUP; echo deaf-$((40 + 2))\n")
        screen.wait_for("deaf-42")
        assert screen.ended() == -signal.SIGKILL


def test_a_window_that_is_closed_ends_the_hold(launcher: Launcher) -> None:
    held = ["hold", *POOL, "--for", "1h", "--grace", "1s"]
    with window(launcher, *held, "--", *SHELL) as screen:
        screen.wait_for("$ ")
        screen.close()
        wait_until(lambda: is_free(launcher), 60)


def _foreground(pid: int, program: str) -> bool:
    """Whether a descendant of that name is there and is not stopped."""
    found = [pid]
    for one in found:
        found += children_of(one)
    names = {one: Path(f"/proc/{one}/comm") for one in found}
    return any(
        path.exists() and path.read_text().strip() == program and not is_stopped(one)
        for one, path in names.items()
    )
