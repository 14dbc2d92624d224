"""What gpulaunch inherits from whoever starts it: signals, masks, rights, limits, descriptors.

A run behaves as ever, no process of gpulaunch ignores or blocks what it needs, and jobs find
defaults.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from gpulaunch.engines import programs
from tests.cli.launcher import COMMAND, Launcher
from tests.helpers import goes_along, wait_until

NEEDED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that no process of ours may ignore because its parent did."""
BEGIN = """
import os, resource, signal, sys
{}
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
LEFT = {
    **{
        f"{name} ignored": f"signal.signal(signal.{name}, signal.SIG_IGN)"
        for name in ("SIGCHLD", "SIGTERM", "SIGPIPE", "SIGALRM", "SIGUSR1")
    },
    "all signals blocked": "signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())",
    "nohup": "signal.signal(signal.SIGHUP, signal.SIG_IGN)",
    "background": "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGQUIT)]",
    "no rights": "os.umask(0o777)",
    "few descriptors": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))",
    "no core files": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "nice": "os.nice(5)",
    "a descriptor": "os.dup2(os.open('/', os.O_RDONLY), 77)",
    "no standard input": "os.close(0)",
    "no standard output": "os.close(1)",
    "no standard error": "os.close(2)",
}
JOB = """
jobs:
  - name: a
    run: |
      cat /proc/self/status > seen
      ls /proc/self/fd > fds
      touch begun
      until [ -e go ]; do sleep 0.02; done
"""


@contextmanager
def begun(launcher: Launcher, prelude: str, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """gpulaunch, started by a program that has executed `prelude` first."""
    begin = [sys.executable, "-c", BEGIN.format(prelude), *COMMAND[1:], *argv]
    with subprocess.Popen(
        begin,
        cwd=launcher.path,
        env=launcher.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=goes_along(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def signals(status: str, field: str) -> set[int]:
    """The signals of a line of /proc/PID/status."""
    (line,) = (line for line in status.splitlines() if line.startswith(f"{field}:"))
    bits = int(line.split()[1], 16)
    return {number for number in range(1, 65) if bits & 1 << number - 1}


def ignoring(pid: int, which: Collection[int], whole: bool = True) -> list[str]:
    """The processes of the launcher's that ignore one of these signals; not `whole`: all but it.

    One that has just been started, and is not at its own first line yet, does so for a moment.
    """
    found = []
    processes = psutil.Process(pid).children(recursive=True)
    for process in [psutil.Process(pid), *processes] if whole else processes:
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            if signals(status, "SigIgn") & set(which):
                found.append(status)
    return found


@pytest.mark.parametrize("left", LEFT)
def test_a_run_and_its_jobs_are_as_ever_whatever_the_parent_has_left(
    launcher: Launcher, left: str
) -> None:
    launcher.file("jobs.yaml", JOB)
    with begun(launcher, LEFT[left], "run", "jobs.yaml", "--simulate", "1", "-q") as process:
        wait_until((launcher.path / "begun").exists)
        seen = (launcher.path / "seen").read_text()
        assert signals(seen, "SigIgn") == set()
        assert signals(seen, "SigBlk") == set()
        assert "77" not in (launcher.path / "fds").read_text().split()
        wait_until(lambda: not ignoring(process.pid, NEEDED))
        status = Path(f"/proc/{process.pid}/status")  # while it forks, it blocks them itself
        wait_until(lambda: not signals(status.read_text(), "SigBlk"))
        (launcher.path / "go").touch()
        assert process.wait(60) == 0
    assert launcher.states() == {"a": "succeeded"}
    assert launcher.run.stat().st_mode & 0o777 == 0o700
    assert (launcher.run / "report.html").exists()


@pytest.mark.parametrize("left", ["SIGTERM ignored", "all signals blocked", "nohup"])
def test_a_run_can_be_ended_whatever_the_parent_has_left(launcher: Launcher, left: str) -> None:
    launcher.file("jobs.yaml", JOB)
    with begun(launcher, LEFT[left], "run", "jobs.yaml", "--simulate", "1", "-q") as process:
        wait_until((launcher.path / "begun").exists)
        if left == "nohup":
            process.send_signal(signal.SIGHUP)  # which it does not hear
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize("left", ["SIGCHLD ignored", "SIGTERM ignored", "all signals blocked"])
def test_a_command_on_a_free_card_finds_defaults(launcher: Launcher, left: str) -> None:
    command = ["exec", "--simulate", "1", "--", "cp", "/proc/self/status", "seen"]
    with begun(launcher, LEFT[left], *command) as process:
        assert process.wait(60) == 0
    seen = (launcher.path / "seen").read_text()
    assert signals(seen, "SigIgn") == set()
    assert signals(seen, "SigBlk") == set()


def test_a_library_s_caller_that_ignores_sigchld_leaves_helpers_as_they_should_be(
    launcher: Launcher,
) -> None:
    launcher.file("jobs.yaml", JOB)
    launcher.file(
        "program.py",
        """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        from gpulaunch.run import Choices, RunOptions, run
        raise SystemExit(run("jobs.yaml", RunOptions(Choices(simulate=1))).status)
        """,
    )
    launcher.command = [sys.executable, "program.py"]
    with launcher.begun() as process:
        wait_until((launcher.path / "begun").exists)
        wait_until(lambda: not ignoring(process.pid, {signal.SIGCHLD}, whole=False))
        (launcher.path / "go").touch()
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.skipif(not programs.PROGRAM.exists(), reason="no keepers' program was built here")
def test_the_keepers_program_works_where_sigchld_is_ignored() -> None:
    code = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from gpulaunch.engines.programs import find_keepers
print(find_keepers())
"""
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(programs.PROGRAM)


def test_a_directory_that_was_removed_is_one_line(launcher: Launcher) -> None:
    prelude = "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
    line = [sys.executable, "-c", BEGIN.format(prelude), *COMMAND[1:], "run", "jobs.yaml"]
    done = subprocess.run(
        line,
        cwd=launcher.path,
        env={**launcher.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
