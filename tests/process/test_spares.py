"""The child that a resting keeper has forked ahead: it becomes the next job, or nothing at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.core.model import Exited
from gpulaunch.process.client import ProgramStarted, Spawner
from tests.helpers import held_by, wait_until
from tests.process.support import Slot, children_of, keepers_of


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner() as spawner:
        yield spawner


def spare_of(monitor: int) -> int:
    (spare,) = wait_until(lambda: children_of(monitor))
    return spare


def test_the_spare_becomes_the_job(spawner: Spawner, tmp_path: Path) -> None:
    with Slot(spawner, tmp_path) as slot:
        _, monitor = keepers_of(spawner)
        spare = spare_of(monitor)
        slot.launch("sh", "-c", "echo $$; sleep 1000")
        assert slot.expect(ProgramStarted).pid == spare
        wait_until(lambda: slot.log.read_text().strip() == str(spare))


def test_while_a_job_runs_there_is_no_spare_beside_it(spawner: Spawner, tmp_path: Path) -> None:
    with Slot(spawner, tmp_path) as slot:
        _, monitor = keepers_of(spawner)
        slot.launch("sleep", "1000")
        pid = slot.expect(ProgramStarted).pid
        slot.pair.stop("cancelled")
        assert children_of(monitor) in ([pid], [])


def test_a_spare_that_is_killed_costs_the_next_job_nothing(
    spawner: Spawner, tmp_path: Path
) -> None:
    with Slot(spawner, tmp_path) as slot:
        _, monitor = keepers_of(spawner)
        os.kill(spare_of(monitor), signal.SIGKILL)
        wait_until(lambda: children_of(monitor) == [])
        ended = slot.run("sh", "-c", "exit 3")
        assert (ended.end.outcome, ended.end.leftovers) == (Exited(3), 0)
        assert spare_of(monitor), "after an attempt there is another"
        assert slot.run("true").end.outcome == Exited(0)


def test_a_job_whose_spare_was_stopped_begins_once_it_is_woken(
    spawner: Spawner, tmp_path: Path
) -> None:
    with Slot(spawner, tmp_path) as slot:
        _, monitor = keepers_of(spawner)
        spare = spare_of(monitor)
        os.kill(spare, signal.SIGSTOP)
        slot.launch("sleep", "1000")
        os.kill(spare, signal.SIGCONT)
        assert slot.expect(ProgramStarted).pid == spare


@pytest.mark.parametrize("victims", ["monitor", "guardian and monitor", "the supervisor"])
def test_a_spare_dies_with_its_keeper(spawner: Spawner, tmp_path: Path, victims: str) -> None:
    with Slot(spawner, tmp_path) as slot:
        guardian, monitor = keepers_of(spawner)
        spare = spare_of(monitor)
        if victims == "the supervisor":
            slot.pair.close()
        else:
            for pid in (guardian, monitor) if victims.startswith("guardian") else (monitor,):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{spare}"))
        wait_until(lambda: children_of(spawner.pid) == [])


def test_a_spare_holds_none_of_the_next_jobs_files(spawner: Spawner, tmp_path: Path) -> None:
    """It inherits what the keeper has: the leases, and nothing that a job before it had open."""
    with Slot(spawner, tmp_path) as slot:
        _, monitor = keepers_of(spawner)
        slot.run("true")
        spare = spare_of(monitor)
        held = held_by(spare)
        assert not any(str(tmp_path) in path for path in held)
        assert not any("memfd:gpulaunch-launch" in path for path in held)
