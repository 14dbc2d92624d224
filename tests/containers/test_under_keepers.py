"""Real keepers, whose job is a carrier: they see a job like any other.

They have the tests' own user, so a user's podman is not among the engines.
"""

from __future__ import annotations

import os
import random
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpulaunch.core.model import Exited, Outcome, Signaled, Stopped, TimedOut
from gpulaunch.engines.client import AttemptOver, Spawner
from tests.containers.carried import Bench, Contained
from tests.containers.daemons import PATIENCE
from tests.containers.test_carrier import FOREVER, KILLS, SEED
from tests.helpers import wait_until
from tests.process.support import Slot, keepers_of

SLEEPY = f"echo up > $WORK/up; {FOREVER}"


@pytest.fixture(params=["bare", "docker", "podman_root"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return request.getfixturevalue(f"{request.param}_bench")  # type: ignore[no-any-return]


@pytest.fixture
def spawner(bench: Bench) -> Iterator[Spawner]:
    """Compiled keepers; what they start finds the engine as its environment has it."""
    with Spawner(str(bench.keeper), environ=bench.engine.environ) as spawner:
        yield spawner


@pytest.fixture
def slot(spawner: Spawner, tmp_path: Path) -> Iterator[Slot]:
    with Slot(spawner, tmp_path) as slot:
        yield slot


def launch(slot: Slot, bench: Bench, *argv: str, **limits: object) -> Contained:
    job = Contained(bench, argv)
    environ = {os.fsdecode(name): os.fsdecode(value) for name, value in job.environ.items()}
    slot.launch(*map(os.fsdecode, job.argv), env_set=environ, **limits)
    return job


def outcome(slot: Slot) -> tuple[Outcome, int]:
    end = slot.expect(AttemptOver).end
    return end.outcome, end.leftovers


def test_its_end_is_the_program_s_and_nothing_is_left_over(slot: Slot, bench: Bench) -> None:
    for script, end in (("exit 3", Exited(3)), ("kill -6 $$", Signaled(6))):
        job = launch(slot, bench, "sh", "-c", script)
        assert outcome(slot) == (end, 0), slot.log.read_text()
        assert job.cleared()


def test_a_timeout_ends_it(slot: Slot, bench: Bench) -> None:
    job = launch(slot, bench, "sh", "-c", SLEEPY, timeout=3.0)
    assert outcome(slot) == (TimedOut("timeout", 3.0, Signaled(15)), 0)
    assert job.cleared()


def test_after_its_grace_it_is_killed(slot: Slot, bench: Bench) -> None:
    job = launch(slot, bench, "sh", "-c", f"trap '' TERM; {SLEEPY}", grace=0.1)
    job.await_file("up")
    slot.pair.stop("stopped")
    assert isinstance(outcome(slot)[0], Stopped)
    wait_until(lambda: not job.alive(), PATIENCE)
    forgotten(job)


def test_a_kill_of_all_keepers_at_any_moment_leaves_no_process(
    bench: Bench, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    for number in range(max(KILLS // 2, 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with (
            Spawner(str(bench.keeper), environ=bench.engine.environ) as spawner,
            Slot(spawner, folder) as slot,
        ):
            keepers = [spawner.pid, *keepers_of(spawner)]
            job = launch(slot, bench, "sh", "-c", f"echo begun >> $WORK/begun; {FOREVER}")
            select.select([spawner], [], [], chance.uniform(0, 1.0))
            for pid in keepers:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda job=job: not job.alive(), PATIENCE, "no process of it is left")
            forgotten(job)
            begun = job.file("begun")
            assert not begun.exists() or begun.read_text() == "begun\n"


def forgotten(job: Contained) -> None:
    """Remove, as by its record, what never ran, or what a killed client did not remove."""
    if not job.bench.bare:
        with suppress(AssertionError):  # its engine is removing it, or has
            job.bench.engine.command("rm", "--force", job.name)
    job.await_gone()
