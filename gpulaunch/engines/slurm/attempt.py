"""The attempts that Slurm has, or is about to get, and the rows of its queue that show them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpulaunch.core.events import StopAttempt
from gpulaunch.core.model import AttemptId, Job
from gpulaunch.engines.slurm.judge import to_recall
from gpulaunch.engines.slurm.limits import Lane
from gpulaunch.engines.slurm.reading import NEVER_MET, QueueRow, spans
from gpulaunch.process.nodeside import NodeStart, Withdrawn

MAX_NUMBERS_PER_CALL = 200
"""Slurm's job numbers, or ranges of an array's tasks, on one command line."""


@dataclass(slots=True, eq=False)
class SlurmAttempt:
    """An attempt that was launched and has not ended.

    What Slurm says: `id` is its job number, once known, `title` its job name, and `row` its row at
    the last look at the queue. `asked`: the queue was read since the attempt got its number.
    `preempted`: Slurm said once that the attempt makes room for another. `confirmed`: the `Sign`
    that `scontrol` has confirmed. `lane`: the options by which the site's limits go.

    What comes first: `need` is the array task that it follows, `after` the attempts that had to
    succeed when this launcher submitted it, `token` the token that it shares with other attempts.

    Monotonic times: `known_at`, when Slurm gave it a number; `over_at`, when Slurm first showed it
    over, unknown or back in the queue; `start_at` and `end_at`, when the records of its start and
    its end were first seen; `beat` is the node's last sign of life.

    What has happened: `adopted`: an earlier launcher submitted it. `begun`: a node has claimed it,
    although `start` may not be visible yet. `withdrawn`: a launcher has claimed it, and why.
    `recalled`: why the engine takes it out of Slurm's queue although nobody asked for its end.
    `told_to_end`: a stop file was left for a first start that Slurm has forgotten.

    What was reported: `start_told`: its start, with its cards. `succeeded`: its success.
    `kill_said`: that one of its processes was killed for its memory, although it succeeded.
    """

    attempt: AttemptId
    job: Job
    id: str = ""
    title: str = ""
    need: str = ""
    token: str = ""
    lane: Lane | None = None
    row: QueueRow | None = None
    start: NodeStart | None = None
    known_at: float = 0.0
    over_at: float | None = None
    start_at: float | None = None
    start_told: bool = False
    end_at: float | None = None
    wish: StopAttempt | None = None
    adopted: bool = False
    asked: bool = False
    recalled: str = ""
    preempted: bool = False
    told_to_end: bool = False
    after: tuple[AttemptId, ...] = ()
    succeeded: bool = False
    kill_said: bool = False
    confirmed: Sign | None = None
    beat: float | None = None
    begun: bool = False
    withdrawn: Withdrawn | None = None

    def look(self, row: QueueRow | None, asked_at: float) -> None:
        """Store the row that Slurm, asked at that monotonic time, showed; None for no row."""
        self.row, self.asked = row, True
        back = False
        if not self.must_be_confirmed(row):
            self.confirmed = None
        if row is not None:
            self.preempted = self.preempted or row.preempted
            if self.start_at is None or self.start_at < asked_at:
                self.recalled = self.recalled or to_recall(row, self.start)
            back = bool(self.recalled) and self.start is not None and row.waits
        self.over_at = (self.over_at or time.monotonic()) if self.has_left or back else None
        if self.over_at is None:
            self.beat = None

    def must_be_confirmed(self, row: QueueRow | None) -> bool:
        """True if the attempt would be ended, or called lost, because of this row alone.

        For an attempt that never began only a missing row needs confirming: once the launcher has
        taken its claim, no node starts it.
        """
        if row is None or row.inferred:
            return True
        if self.start is None and not self.begun:
            return False
        restart = self.start.restart if self.start else 0
        return row.phase == "over" or row.waits or row.restarts > restart

    @property
    def has_left(self) -> bool:
        """True if Slurm has finished the attempt's job, or knows it no longer."""
        return self.row.phase == "over" if self.row else self.asked

    @property
    def reachable(self) -> bool:
        """True while its number is certainly its own.

        A controller that was killed may give the number to another job.
        """
        return self.over_at is None and not (self.adopted and self.row is None)

    @property
    def doubtful(self) -> bool:
        """True while Slurm has finished it, or would start it again, and its end is unknown."""
        return self.over_at is not None or bool(self.recalled)

    @property
    def is_to_begin_anew(self) -> bool:
        """True if Slurm will start the attempt's job once more."""
        if self.row is None or self.start is None or self.row.phase == "over":
            return False
        return bool(self.recalled) or self.row.restarts > self.start.restart

    @property
    def runs(self) -> bool:
        """True if the attempt was given its cards and is not known to be over."""
        if self.row is not None and self.row.phase != "queued":
            return self.row.phase == "running"
        return self.begun


Sign: TypeAlias = tuple[str, int]
"""Slurm's state of an attempt, empty for none, and how often Slurm restarted it."""


def sign_of(row: QueueRow | None) -> Sign:
    return ("", 0) if row is None else (row.state, row.restarts)


class QueueSnapshot:
    """Slurm's queue at one moment, by job number."""

    def __init__(self, rows: Sequence[QueueRow]) -> None:
        self._single = {str(row): row for row in rows if not row.tasks}
        self._alike = [row for row in rows if row.tasks]
        self._arrays = {row.id: row.name for row in rows}
        self._named = {(row.name, row.task): row for row in rows if not row.tasks}

    def row_of(self, held: SlurmAttempt) -> QueueRow | None:
        """Return the attempt's row; None if Slurm does not know the attempt any more.

        A row with another title is not its own: a controller that was killed loses its last
        seconds and gives their numbers out again.
        """
        row = self._numbered(held)
        return row if row is None or not held.title or row.name == held.title else None

    def other_number_of(self, held: SlurmAttempt) -> str:
        """Return another number under which the attempt waits or runs; empty if there is none.

        It has one where it was submitted twice, or where its own number was misread.
        """
        _, _, task = held.id.partition("_")
        index = int(task) if task else None
        row = self._named.get((held.title, index)) if held.title else None
        if row is None and held.title and index is not None:
            alike = (r for r in self._alike if r.name == held.title and index in r.tasks)
            row = next(alike, None)
        if row is None or row.phase == "over":
            return ""
        number = row.id if index is None else f"{row.id}_{index}"
        return "" if number == held.id else number

    def _numbered(self, held: SlurmAttempt) -> QueueRow | None:
        number, _, task = held.id.partition("_")
        row = self._find(held.id)
        if row is not None or not task:
            return row
        if number in self._single:
            return self._single[number]
        waited = held.row is None or held.row.phase == "queued"
        if number in self._arrays and waited and held.start is None:
            # A task that is cancelled while it waits vanishes, although its array is listed. If
            # the task that it follows is over as well, Slurm cancelled it for that one's failure.
            reason = NEVER_MET if held.need and not self._is_under_way(held.need) else ""
            name = self._arrays[number]
            return QueueRow(
                number, int(task), name=name, state="CANCELLED", reason=reason, inferred=True
            )
        return None

    def _find(self, id: str) -> QueueRow | None:
        """Return the row of a job or task, its own or the one of tasks that wait together."""
        number, _, task = id.partition("_")
        if (row := self._single.get(id)) is not None or not task:
            return row
        return next((row for row in self._alike if row.is_about(number, int(task))), None)

    def _is_under_way(self, id: str) -> bool:
        row = self._find(id)
        return row is not None and row.phase != "over"


def in_parts(some: Sequence[SlurmAttempt]) -> Iterator[Sequence[SlurmAttempt]]:
    """Yield the attempts in parts that fit on one command line each."""
    for start in range(0, len(some), MAX_NUMBERS_PER_CALL):
        yield some[start : start + MAX_NUMBERS_PER_CALL]


def ranges(ids: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return terms for Slurm's programs (`12`, `13_[0-7]`, `13_9`), each with its numbers."""
    found: list[tuple[str, list[str]]] = []
    arrays: dict[str, list[int]] = {}
    for id in ids:
        number, _, task = id.partition("_")
        if task:
            arrays.setdefault(number, []).append(int(task))
        else:
            found.append((number, [id]))
    for number, tasks in arrays.items():
        for span in spans(sorted(tasks)):
            first, _, last = span.partition("-")
            members = range(int(first), int(last or first) + 1)
            term = f"{number}_[{span}]" if last else f"{number}_{span}"
            found.append((term, [f"{number}_{task}" for task in members]))
    return found
