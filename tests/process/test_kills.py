"""SIGKILL of the supervisor, alone and with keepers, at random moments under nasty jobs.

A dozen kills as it stands; GPULAUNCH_TEST_KILLS=N makes it N, with a line of figures at the end.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpulaunch.base.wording import cause
from gpulaunch.core.model import Exited, Interrupted, TimedOut
from gpulaunch.journal.ends import EndRecord, read_end
from tests.helpers import goes_along, wait_until
from tests.process.support import children_of, marked, token

pytestmark = pytest.mark.usefixtures("keeper")  # of both kinds
PAIRS = 3
MIX = ["daemons", "daemons-exit", "ignore-term", "tree", "stopped", "slow-hopper", "hopper", "ok"]
MIX += ["subreaper"]
KILLS = int(os.environ.get("GPULAUNCH_TEST_KILLS", "0"))
ROOT = Path(__file__).parents[2]


class Run:
    """A supervisor in its own process, and what it started."""

    def __init__(self, folder: Path, nasty: str, modes: list[str]) -> None:
        self.folder = folder
        self.mark = token()
        folder.mkdir()
        program = Path(__file__).with_name("supervisor.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(folder), nasty, self.mark, str(PAIRS), *modes],
            env={**os.environ, "PYTHONPATH": str(ROOT), "MARK": self.mark},
            start_new_session=True,
            preexec_fn=goes_along(),
        )
        wait_until((folder / "up").exists)

    @property
    def jobs(self) -> list[int]:
        supervisor = self.process.pid
        return [pid for pid in marked(self.mark) if pid != supervisor]

    def keepers(self) -> list[tuple[int, int]]:
        """(guardian, monitor) of every pair."""
        (spawner,) = children_of(self.process.pid)
        guardians = children_of(spawner)
        return [(guardian, monitor) for guardian in guardians for monitor in children_of(guardian)]

    def kill(self, victims: str, chance: random.Random) -> None:
        """The supervisor and, of one pair, the keepers named."""
        pids = {"supervisor": self.process.pid}
        if "spawner" in victims:
            (pids["spawner"],) = wait_until(lambda: children_of(self.process.pid))
        elif victims != "supervisor":
            pids["guardian"], pids["monitor"] = chance.choice(wait_until(self.keepers))
        for who in victims.split():
            with contextlib.suppress(ProcessLookupError):  # its own job was quicker
                os.kill(pids[who], signal.SIGKILL)
        self.process.wait()

    def ends(self) -> list[EndRecord]:
        """All that were laid out; empty while one of them is not written."""
        found = [read_end(path) for path in sorted(self.folder.glob("*.end"))]
        return [] if None in found else [end for end in found if end]

    def free(self) -> Iterator[bool]:
        for number in range(PAIRS):
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.bind(f"\0gpulaunch-test/{self.mark}/{number}")
                except OSError:
                    yield False
                else:
                    yield True


@contextmanager
def run_of(folder: Path, nasty: str, modes: list[str]) -> Iterator[Run]:
    run = Run(folder, nasty, modes)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


def settle(run: Run) -> float:
    """How long it took until all leases were free; nothing may be alive at that moment."""
    at = time.monotonic()
    wait_until(lambda: all(run.free()), 60.0, "leases free")
    took = time.monotonic() - at
    assert run.jobs == []
    wait_until(lambda: marked(run.mark, "environ") == [], what="keepers gone")
    return took


@pytest.mark.parametrize(
    ("victims", "share"),
    [
        ("supervisor", 1.0),
        ("supervisor monitor", 0.5),
        ("monitor supervisor", 0.25),
        ("supervisor guardian", 0.5),
        ("guardian supervisor", 0.25),
        ("supervisor spawner", 0.25),
        ("spawner supervisor", 0.25),
        ("monitor guardian supervisor", 0.25),
    ],
)
def test_no_process_survives_a_kill(tmp_path: Path, nasty: str, victims: str, share: float) -> None:
    chance = random.Random(victims)
    times = int(max(KILLS, 12) * share)
    slowest = 0.0
    for number in range(times):
        modes = MIX + (["kill-parent"] if number % 4 == 3 else [])
        chance.shuffle(modes)
        with run_of(tmp_path / str(number), nasty, modes) as run:
            signal.sigtimedwait([], chance.random() * 0.5)
            run.kill(victims, chance)
            slowest = max(slowest, settle(run))
    if KILLS:  # alone, it is the grace and some 50 ms
        print(f"\nkilled {victims}: {times} times, 0 survivors, slowest {slowest:.2f} s")


def test_every_attempt_has_its_end_on_file_when_the_supervisor_alone_is_killed(
    tmp_path: Path, nasty: str
) -> None:
    modes = ["ok", "ok", "ok", "daemons", "ignore-term", "tree"]
    with run_of(tmp_path / "run", nasty, modes) as run:
        wait_until(lambda: len(run.jobs) >= 10)
        run.kill("supervisor", random.Random(1))
        settle(run)
        ends = run.ends()
    assert len(ends) > PAIRS
    kinds = {type(record.end.outcome) for record in ends}
    assert kinds <= {Interrupted, TimedOut, Exited}
    cut_short = [
        record.end.outcome for record in ends if isinstance(record.end.outcome, Interrupted)
    ]
    assert {cause(outcome.by) for outcome in cut_short} == {"the supervisor is gone"}


def test_a_stopped_supervisor_leaves_running_jobs_unaffected(tmp_path: Path, nasty: str) -> None:
    with run_of(tmp_path / "run", nasty, ["daemons-exit"]) as run:
        wait_until(lambda: run.jobs)
        os.kill(run.process.pid, signal.SIGSTOP)
        ends = wait_until(lambda: [] if run.jobs else run.ends())
        assert {record.end.outcome for record in ends} == {Exited(0)}
        os.kill(run.process.pid, signal.SIGCONT)
        wait_until(lambda: len(list(run.folder.glob("*.end"))) > len(ends))
        run.kill("supervisor", random.Random(2))
        settle(run)
