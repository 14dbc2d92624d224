"""Attempts that Slurm has, or is about to have, and which rows of its queue are about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulaunch.core.events import StopAttempt
from gpulaunch.core.model import AttemptId, Job
from gpulaunch.engines.slurm.reading import NEVER_MET, Row
from gpulaunch.process.nodeside import Start


@dataclass(slots=True, eq=False)
class Held:
    """An attempt that was launched and has not ended.

    `id` is Slurm's, once it is known, and `title` how Slurm shows it; `row` what the last look at
    its queue showed. `need` is the task that it follows, item by item; `token` the one of which it
    shares the count with others in Slurm's hands. Monotonic times: `known_at`, when Slurm had it;
    `over_at`, when it was first seen to be over, or unknown; `end_at`, when the record of its end
    was first seen. `adopted`: an earlier launcher handed it over.
    """

    attempt: AttemptId
    job: Job
    id: str = ""
    title: str = ""
    need: str = ""
    token: str = ""
    row: Row | None = None
    start: Start | None = None
    known_at: float = 0.0
    over_at: float | None = None
    end_at: float | None = None
    wish: StopAttempt | None = None
    adopted: bool = False

    @property
    def reachable(self) -> bool:
        """Its number is its own still. A controller that was killed may give it to another job."""
        return self.over_at is None and not (self.adopted and self.row is None)

    @property
    def runs(self) -> bool:
        """It was given its cards, and is not known to be over."""
        if self.row is not None and self.row.phase != "queued":
            return self.row.phase == "running"
        return self.start is not None


class Queue:
    """Slurm's queue at one moment, by the numbers of what is in it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._single = {str(row): row for row in rows if not row.tasks}
        self._alike = [row for row in rows if row.tasks]
        self._arrays = {row.id: row.name for row in rows}

    def row_of(self, held: Held) -> Row | None:
        """What is said of the attempt; None where Slurm does not know it any more.

        A controller that was killed may have lost its last seconds, and gives their numbers anew.
        """
        row = self._numbered(held)
        return row if row is None or not held.title or row.name == held.title else None

    def _numbered(self, held: Held) -> Row | None:
        number, _, task = held.id.partition("_")
        row = self._find(held.id)
        if row is not None or not task:
            return row
        if number in self._single:
            return self._single[number]
        waited = held.row is None or held.row.phase == "queued"
        if number in self._arrays and waited and held.start is None:
            # A task that is cancelled while it waits goes without a trace; its array is there. One
            # that follows another goes so only until that is over, but for Slurm's memory.
            reason = NEVER_MET if held.need and not self._is_under_way(held.need) else ""
            name = self._arrays[number]
            return Row(number, int(task), name=name, state="CANCELLED", reason=reason)
        return None

    def _find(self, id: str) -> Row | None:
        """A job's, or a task's, by itself or among those that wait together."""
        number, _, task = id.partition("_")
        if (row := self._single.get(id)) is not None or not task:
            return row
        return next((row for row in self._alike if row.is_about(number, int(task))), None)

    def _is_under_way(self, id: str) -> bool:
        row = self._find(id)
        return row is not None and row.phase != "over"
