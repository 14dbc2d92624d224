"""A pair that is told beforehand of its next attempt: nothing of it is run before it is to go."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gpulaunch.core.model import Exited, MissingOutput
from gpulaunch.process.client import AttemptOver, Gone, ProgramStarted, Spawner, message_of
from gpulaunch.process.command import Command
from tests.helpers import wait_until
from tests.process.support import Slot, children_of, keepers_of, made_before, marked, token


def command(slot: Slot, *argv: str, **limits: object) -> Command:
    files = {"log": str(slot.folder / "f.log"), "end": str(slot.folder / "f.end")}
    return Command("f.1", argv, **(files | limits))  # type: ignore[arg-type]


def foresee(slot: Slot, *argv: str, **limits: object) -> Command:
    made = command(slot, *argv, **limits)
    slot.pair.foresee(made, message_of(made))
    return made


def waiting(slot: Slot) -> list[int]:
    """The children that the compiled keepers have forked ahead; Python's have one of no job."""
    _, monitor = keepers_of(slot.spawner)
    return children_of(monitor)


def test_it_runs_once_it_is_told_to_go(slot: Slot) -> None:
    foresee(slot, "sh", "-c", "echo $GREETING", env_set={"GREETING": "hello"}, cwd=str(slot.folder))
    slot.pair.go()
    started = slot.expect(ProgramStarted)
    over = slot.expect(AttemptOver)
    assert (started.attempt, over.attempt, over.end.outcome) == ("f.1", "f.1", Exited(0))
    assert (slot.folder / "f.log").read_text() == "hello\n"


def test_nothing_is_run_or_made_of_one_that_never_goes(slot: Slot, tmp_path: Path) -> None:
    foresee(slot, "touch", str(tmp_path / "ran"))
    slot.pair.unforesee()
    slot.launch("true")
    assert slot.expect(AttemptOver).attempt == "job.1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.end", "1.log"]


def test_another_may_be_foreseen_after_one_that_never_goes(slot: Slot) -> None:
    foresee(slot, "false")
    slot.pair.unforesee()
    foresee(slot, "true")
    slot.pair.go()
    assert slot.expect(AttemptOver).end.outcome == Exited(0)


def test_an_output_from_before_the_word_to_go_is_not_the_attempts(
    slot: Slot, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    foresee(slot, "true", outputs=(str(output),))
    made_before(output)
    slot.pair.go()
    assert isinstance(slot.expect(AttemptOver).end.outcome, MissingOutput)


def test_its_time_is_counted_from_the_word_to_go(slot: Slot) -> None:
    foresee(slot, "true")
    before = time.monotonic()
    slot.pair.go()
    end = slot.expect(AttemptOver).end
    assert end.started is not None
    assert end.started.mono >= before


def test_it_runs_although_its_child_was_killed_meanwhile(slot: Slot) -> None:
    foresee(slot, "true")
    (child,) = wait_until(lambda: waiting(slot))
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: Path(f"/proc/{child}/stat").read_text().split()[2] == "Z")
    slot.pair.go()
    assert slot.expect(AttemptOver).end.outcome == Exited(0)


@pytest.mark.parametrize("victim", ["supervisor", "monitor", "guardian", "spawner"])
def test_nobody_is_left_and_nothing_was_run_whoever_dies(
    spawner: Spawner, tmp_path: Path, victim: str
) -> None:
    mark = token()
    with Slot(spawner, tmp_path) as slot:
        guardian, monitor = keepers_of(spawner)
        foresee(slot, "touch", str(tmp_path / mark))
        slot.pair.lend()  # answered once what came before it has been done
        wait_until(slot.pair.on_readable)
        if victim == "supervisor":
            slot.pair.close()
        else:
            pid = {"monitor": monitor, "guardian": guardian, "spawner": spawner.pid}[victim]
            os.kill(pid, signal.SIGKILL)
            if victim == "spawner":
                slot.pair.close()
            else:
                slot.expect(Gone)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (guardian, monitor)))
        wait_until(lambda: not marked(mark))
    assert not list(tmp_path.iterdir())


def test_an_idle_pair_ends_when_it_is_told_whatever_it_foresees(slot: Slot) -> None:
    foresee(slot, "true")
    slot.pair.end()
    slot.expect(Gone)
    assert not (slot.folder / "f.log").exists()
