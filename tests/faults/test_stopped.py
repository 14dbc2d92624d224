"""A launcher that is stopped keeps its cards, whoever waits names it, and it continues.

The cards are simulated, shared by GPULAUNCH_SIM_POOL; leases are the real ones.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from gpulaunch.journal.ends import Ends
from tests.cli.launcher import Launcher
from tests.helpers import wait_until

# Each job waits for a file of its name, and fails if another has its card's file locked.
JOB = """
import fcntl, os, sys, time
root, name = sys.argv[1:]
with open(f"{root}/begun-{name}", "a") as begun:
    begun.write("x")
locks = []
kind = fcntl.LOCK_SH if os.environ.get("SHARES") else fcntl.LOCK_EX
for card in os.environ["GPULAUNCH_GPU_INDEX"].split(","):
    locks.append(open(f"{root}/card-{card}", "a"))
    try:
        fcntl.flock(locks[-1], kind | fcntl.LOCK_NB)
    except BlockingIOError:
        open(f"{root}/DOUBLE-{name}-{card}", "w").close()
        sys.exit(1)
while not (os.path.exists(f"{root}/go-{name}") or os.path.exists(f"{root}/go")):
    time.sleep(0.01)
"""


class Run:
    """A launcher on two cards whose jobs end when told to."""

    def __init__(self, place: Path, pool: str, name: str, jobs: list[tuple[str, str]]) -> None:
        environ = {"GPULAUNCH_SIM_POOL": pool}
        if (place / "leases").exists():
            environ["GPULAUNCH_LEASE_DIR"] = str(place / "leases")
        self.launcher = Launcher(place / name, environ)
        self.launcher.path.mkdir()
        self.names = [job for job, _ in jobs]
        self.launcher.file("../job.py", JOB)
        script = f"run: [{sys.executable}, -I, -S, {place}/job.py, {place}"
        lines = [f"  - {{name: {job}, {rest}{script}, {job}]}}" for job, rest in jobs]
        self.launcher.file("jobs.yaml", "\n".join(["jobs:", *lines, ""]))
        self.process: subprocess.Popen[str]

    def begin(self, stack: ExitStack) -> None:
        begun = self.launcher.begun("run", "jobs.yaml", "--simulate", "2", "--run-dir", "r")
        self.process = stack.enter_context(begun)

    @property
    def dir(self) -> Path:
        return self.launcher.path / "r"

    def wait_for(self, kind: str, count: int = 1) -> None:
        self.launcher.wait_for(kind, count, self.dir)

    def running(self, count: int) -> list[str]:
        """The jobs that have begun, once there are so many."""

        def enough() -> list[str] | None:
            found = [name for name in self.names if begun(self.launcher.path.parent, name)]
            return found if len(found) >= count else None

        return wait_until(enough, 60, f"{count} jobs of {self.dir} begin") or []

    def recorded(self, job: str) -> bool:
        """Whether the job's keepers have recorded its end."""
        return Ends(self.dir / "ends").of(f"{job}.1") is not None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def ends_well(self) -> None:
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, out + err
        jobs = self.launcher.jobs(self.dir)
        assert {job["state"] for job in jobs.values()} == {"succeeded"}
        for name, job in jobs.items():
            assert begun(self.launcher.path.parent, name) == 1, job["attempts"]


def begun(place: Path, job: str) -> int:
    """How often the job's own program has begun."""
    file = place / f"begun-{job}"
    return len(file.read_text()) if file.exists() else 0


def has_begun(place: Path, job: str) -> None:
    wait_until(lambda: begun(place, job), 60, f"{job} begins")


@pytest.fixture(params=["names", "locks"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where runs and their jobs' files are; with a directory of locks, or without."""
    if request.param == "locks":
        (tmp_path / "leases").mkdir(mode=0o1777)
    return tmp_path


@pytest.fixture
def pool() -> str:
    return uuid.uuid4().hex[:12]


def stop_supervisor(run: Run) -> None:
    run.signal(signal.SIGSTOP)


def stop_group(run: Run) -> None:
    """As Ctrl-Z does: all of the terminal's foreground process group.

    SIGSTOP stands in for SIGTSTP, which the kernel does not deliver to an orphaned group.
    """
    os.killpg(run.process.pid, signal.SIGSTOP)


@pytest.mark.parametrize("stop", [stop_supervisor, stop_group])
def test_a_stopped_run_keeps_its_cards_until_it_continues(
    place: Path, pool: str, stop: Callable[[Run], None]
) -> None:
    one = Run(place, pool, "one", [("a", ""), ("b", ""), ("c", ""), ("d", "")])
    other = Run(place, pool, "other", [("x", ""), ("y", "")])
    with ExitStack() as stack:
        one.begin(stack)
        first, second = one.running(2)
        stop(one)
        for name in (first, second):
            (place / f"go-{name}").touch()
            wait_until(partial(one.recorded, name), 60, f"{name} ends")
        refused = other.launcher("exec", "--simulate", "2", "--no-wait", "--", "true")
        assert refused.status != 0
        assert f"(pid {one.process.pid}, run " in refused.err
        assert f"kill -CONT {one.process.pid} continues it" in refused.err
        other.begin(stack)
        other.wait_for("run_opened")
        os.killpg(one.process.pid, signal.SIGCONT)
        (place / "go").touch()
        one.ends_well()
        other.ends_well()
    assert not list(place.glob("DOUBLE-*"))


def test_a_run_that_is_killed_while_stopped_leaves_nothing_held(place: Path, pool: str) -> None:
    one = Run(place, pool, "one", [("a", ""), ("b", "")])
    other = Run(place, pool, "other", [("x", "gpus: 2, ")])
    with ExitStack() as stack:
        one.begin(stack)
        one.running(2)
        one.signal(signal.SIGSTOP)
        other.begin(stack)
        one.process.kill()
        has_begun(place, "x")
        (place / "go").touch()
        other.ends_well()


@pytest.mark.parametrize("seed", range(int(os.environ.get("GPULAUNCH_TEST_STOPS", "1"))))
def test_no_card_is_ever_used_twice_whenever_two_runs_are_stopped_and_go_on(
    place: Path, pool: str, seed: int
) -> None:
    luck = random.Random(f"{seed} {place.name}")
    names = [(run, f"{run}{number}") for run in "ab" for number in range(5)]
    kinds = ["", "", "gpus: 2, "]
    runs = {
        run: Run(place, pool, run, [(n, luck.choice(kinds)) for r, n in names if r == run])
        for run in "ab"
    }
    rest = [name for _, name in names]
    luck.shuffle(rest)
    with ExitStack() as stack:
        for run in runs.values():
            run.begin(stack)
        for run in runs.values():
            run.wait_for("run_opened")
        while rest:
            stopped = luck.choice("ab")
            runs[stopped].signal(signal.SIGSTOP)
            for name in (rest.pop() for _ in range(min(2, len(rest)))):
                (place / f"go-{name}").touch()
            runs[stopped].signal(signal.SIGCONT)
        (place / "go").touch()
        for run in runs.values():
            run.ends_well()
    assert not list(place.glob("DOUBLE-*"))


def test_a_run_that_waits_names_the_holder_that_is_stopped_until_it_continues(
    place: Path, pool: str
) -> None:
    one = Run(place, pool, "one", [("a", ""), ("b", "")])
    other = Run(place, pool, "other", [("x", "")])

    def tells(stopped: bool) -> bool:
        """Whether each card, and the reason for which the job waits, say this of the holder."""
        state = other.launcher.status(other.dir)
        said = [each["reason"] for kind in ("gpus", "jobs") for each in state[kind]]
        how = f", stopped: fg in its terminal or kill -CONT {one.process.pid} continues it)"
        # A run is opened before it has its job.
        return len(said) == 3 and all(
            f"(pid {one.process.pid}, run " in words and (how in words) == stopped for words in said
        )

    with ExitStack() as stack:
        one.begin(stack)
        one.running(2)
        other.begin(stack)
        other.wait_for("run_opened")
        wait_until(lambda: tells(stopped=False), 60, "both cards are held")
        for _ in range(2):
            one.signal(signal.SIGSTOP)
            wait_until(lambda: tells(stopped=True), 60, "the holder is stopped")
            one.signal(signal.SIGCONT)
            wait_until(lambda: tells(stopped=False), 60, "the holder continues")
        (place / "go").touch()
        one.ends_well()
        other.ends_well()
