"""`gpulaunch exec` stands where CUDA_VISIBLE_DEVICES=1 CMD stood."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpulaunch.base.errors import EXEC_WAIT_RAN_OUT
from tests.cli.launcher import Launcher
from tests.helpers import held_by, wait_until

CLOSER = """
import os, signal, sys
os.closerange(3, 4096)                     # as closefrom(3): sudo, daemons
if "daemon" in sys.argv and os.fork():
    sys.exit(0)
if "daemon" in sys.argv:
    os.setsid()
    os.closerange(0, 3)
open("closed", "w").write(str(os.getpid()))
signal.pause()
"""


def test_exec_becomes_the_command(launcher: Launcher) -> None:
    result = launcher(
        "exec",
        "--simulate",
        "2",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; exit 7",
    )
    assert (result.status, result.out) == (7, "0 PCI_BUS_ID\n")


def test_exec_keeps_pid_and_standard_input(launcher: Launcher) -> None:
    with launcher.begun(
        "exec", "--simulate", "1", "--", "sh", "-c", "echo $$; exec sleep 60"
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    assert launcher("exec", "--simulate", "1", "--", "cat", stdin="through").out == "through"


def test_exec_of_two_cards_takes_both_or_waits(launcher: Launcher) -> None:
    result = launcher(
        "exec", "-g", "2", "--simulate", "2", "--", "sh", "-c", "echo $GPULAUNCH_GPU_UUID"
    )
    assert result.out == "SIM-0,SIM-1\n"
    result = launcher("exec", "-g", "3", "--simulate", "2", "--", "true")
    assert result.status == 125
    assert "3 cards" in result.err


def test_exec_without_a_card_hides_them(launcher: Launcher) -> None:
    result = launcher(
        "exec", "-g", "0", "--simulate", "1", "--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]"
    )
    assert result.out == "[]\n"


def test_exec_says_what_cannot_be_executed(launcher: Launcher) -> None:
    assert launcher("exec", "--simulate", "1", "--", "no-such-program").status == 127
    launcher.file("text", "no program")
    result = launcher("exec", "--simulate", "1", "--", "./text")
    assert result.status == 126
    assert "Traceback" not in result.err


def test_exec_on_a_machine_without_a_card(launcher: Launcher) -> None:
    launcher.environ["CUDA_VISIBLE_DEVICES"] = ""
    result = launcher("exec", "--", "true")
    assert result.status == 125
    assert "Traceback" not in result.err


def test_the_pool_inside_a_job_is_the_jobs_own(launcher: Launcher) -> None:
    """A launcher inside a job leases below its parent's lease, and is not held up by it."""
    launcher.environ["GPULAUNCH_SIM_POOL"] = "nested"
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: outer
            run: {sys.executable} -m gpulaunch exec --simulate 1 --no-wait -- echo inner
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert launcher.log("outer") == "inner\n"


def test_a_bare_number_of_cards_is_how_many_and_what_was_understood_is_said(
    launcher: Launcher,
) -> None:
    def on(*words: str) -> tuple[int, str, str]:
        script = "echo $GPULAUNCH_GPU_UUID"
        done = launcher("exec", "--simulate", "4", *words, "--", "sh", "-c", script)
        return done.status, done.out.strip(), done.err.strip()

    said = "gpulaunch exec: "
    assert on("--gpus", "3") == (0, "SIM-0,SIM-1,SIM-2", f"{said}3 of 4 simulated cards, any")
    assert on("--gpus", "3,") == (0, "SIM-3", f"{said}GPU 3 of 4 simulated cards")
    assert on("--gpus", "2,3") == (0, "SIM-2", f"{said}1 of GPUs 2, 3 of 4 simulated cards")
    assert on("--gpus", "3", "-g", "1") == (0, "SIM-0", f"{said}1 of 4 simulated cards, any")
    assert on("--gpus", "2", "-g", "3")[0] == 125
    assert on("--gpus", "9")[0] == 125
    assert on() == (0, "SIM-0", ""), "nothing was asked for, nothing is said"


# ── Commands that close the descriptors of their leases ─────────────────────────────────────────


@contextmanager
def closer(launcher: Launcher, *argv: str) -> Iterator[int]:
    """Run the program that closes what it inherits, and yield its PID, or its daemon's."""
    launcher.environ["GPULAUNCH_SIM_POOL"] = uuid.uuid4().hex
    program = str(launcher.file("closer.py", CLOSER))
    closed = launcher.path / "closed"
    with launcher.begun(*argv[:1], "--simulate", "1", "--", sys.executable, program, *argv[1:]):
        pid = int(wait_until(lambda: closed.exists() and closed.read_text()))
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)


def second(launcher: Launcher) -> tuple[int, str]:
    """Ask for the only card at once, and return the exit status and what was said."""
    done = launcher("exec", "--simulate", "1", "--no-wait", "--", "true")
    return done.status, done.err


def card_comes_free(launcher: Launcher) -> None:
    assert launcher("exec", "--simulate", "1", "--wait", "60s", "--", "true").status == 0


@pytest.mark.parametrize("command", ["exec", "hold"])
def test_a_command_that_closes_its_leases_keeps_its_card_and_is_named_as_its_holder(
    launcher: Launcher, command: str
) -> None:
    with closer(launcher, command) as pid:
        status, said = second(launcher)
        assert status == EXEC_WAIT_RAN_OUT
        assert f"(pid {pid}): closer.py" in said
    card_comes_free(launcher)


def test_a_daemon_that_closes_its_leases_keeps_its_card_though_the_command_has_ended(
    launcher: Launcher,
) -> None:
    with closer(launcher, "exec", "daemon"):
        assert second(launcher)[0] == EXEC_WAIT_RAN_OUT
    card_comes_free(launcher)


def holder_beside(command: int) -> int:
    """Return the process that holds the leases of a command: it has a pidfd of the command."""
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and (path / "comm").read_text() == "keeper-lease\n":
                infos = [info.read_text() for info in (path / "fdinfo").iterdir()]
                if any(f"Pid:\t{command}\n" in info for info in infos):
                    return int(path.name)
    raise AssertionError(f"nothing holds leases beside {command}")


def test_what_holds_the_leases_is_nobodys_child_and_has_nothing_else_open(
    launcher: Launcher,
) -> None:
    """It must not hold up who reads the command's output, nor show as a child of the command."""
    script = (
        "import os, signal; print(sorted(os.listdir('/proc/self/fd')))\n"
        "try: os.waitpid(-1, 0)\n"
        "except ChildProcessError: print('no child', flush=True)\n"
        "signal.pause()"
    )
    with launcher.begun("exec", "--simulate", "1", "--", sys.executable, "-c", script) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.stdout.readline() == "no child\n"
        inherited = {name for name in held_by(process.pid) if name.startswith("socket:")}
        assert held_by(holder_beside(process.pid)) == {
            *inherited,
            "/dev/null",
            "anon_inode:[pidfd]",
        }


def test_what_holds_the_leases_survives_what_kills_the_commands_group(launcher: Launcher) -> None:
    with closer(launcher, "exec") as pid:
        holder = holder_beside(pid)
        assert os.getsid(holder) == holder
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(holder, number)
        assert second(launcher)[0] == EXEC_WAIT_RAN_OUT


def test_exec_in_a_job_leaves_nothing_behind(launcher: Launcher) -> None:
    """What holds the leases there is ended with the job, and is no leftover of it."""
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: outer
            run: |
              {sys.executable} -m gpulaunch exec --simulate 1 -- sh -c 'touch up; exec sleep 600' &
              until [ -e up ]; do sleep 0.01; done
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    (ended,) = launcher.events("attempt_ended")
    assert ended["end"]["leftovers"] == 1
