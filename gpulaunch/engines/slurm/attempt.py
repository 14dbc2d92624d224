"""Attempts that Slurm has, or is about to have, and which rows of its queue are about them."""

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
"""Numbers, or ranges of an array's tasks, on one command line."""


@dataclass(slots=True, eq=False)
class SlurmAttempt:
    """An attempt that was launched and has not ended.

    `id` is Slurm's, once it is known, and `title` how Slurm shows it; `row` what the last look at
    its queue showed. `need` is the task that it follows, item by item; `token` the one of which it
    shares the count with others in Slurm's hands; `lane`, once Slurm has it, of which of the site's
    limits it may be. Monotonic times: `known_at`, when Slurm had it; `over_at`, when it was first
    seen to be over, or unknown, or back in the queue; `start_at` and `end_at`, when the records of
    its start and its end were first seen. `adopted`: an earlier launcher handed it over. `asked`:
    Slurm was asked for it. `begun`: a node has claimed it, although `start` may not be to be seen
    yet; `withdrawn`: a launcher did, and why. `recalled`: why it is taken out of Slurm's queue,
    where nobody wished that. `preempted`: Slurm said once that it makes room for another.
    `start_told`: that it has begun, and on which cards, is told.
    `told_to_end`: the start of which Slurm knows nothing any more was left word. `after`:
    what was to succeed first, where this launcher handed it over. `succeeded`: that was told.
    `kill_said`: that one of its processes was killed for its memory, although it succeeded.
    `confirmed`: what a second witness has said as well (`Sign`). `beat`: the last sign of life of
    the node's side.
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
        """Take in what Slurm, asked at that monotonic time, shows of it."""
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
        """Whether something would be ended, or called lost, on this one word of Slurm's.

        Of what never began only Slurm's silence is doubted: once its claim is taken, none begins.
        """
        if row is None or row.inferred:
            return True
        if self.start is None and not self.begun:
            return False
        restart = self.start.restart if self.start else 0
        return row.phase == "over" or row.waits or row.restarts > restart

    @property
    def has_left(self) -> bool:
        """Slurm has done with it, or knows it no longer."""
        return self.row.phase == "over" if self.row else self.asked

    @property
    def reachable(self) -> bool:
        """Its number is its own still. A controller that was killed may give it to another job."""
        return self.over_at is None and not (self.adopted and self.row is None)

    @property
    def doubtful(self) -> bool:
        """Slurm has done with it, or would begin it anew, and how it ended is not known yet."""
        return self.over_at is not None or bool(self.recalled)

    @property
    def is_to_begin_anew(self) -> bool:
        """Slurm ends what it began of it, or has, and would begin once more."""
        if self.row is None or self.start is None or self.row.phase == "over":
            return False
        return bool(self.recalled) or self.row.restarts > self.start.restart

    @property
    def runs(self) -> bool:
        """It was given its cards, and is not known to be over."""
        if self.row is not None and self.row.phase != "queued":
            return self.row.phase == "running"
        return self.begun


Sign: TypeAlias = tuple[str, int]
"""What Slurm's word of an attempt comes to: a state, empty for none, and how often it was begun."""


def sign_of(row: QueueRow | None) -> Sign:
    return ("", 0) if row is None else (row.state, row.restarts)


class QueueSnapshot:
    """Slurm's queue at one moment, by the numbers of what is in it."""

    def __init__(self, rows: Sequence[QueueRow]) -> None:
        self._single = {str(row): row for row in rows if not row.tasks}
        self._alike = [row for row in rows if row.tasks]
        self._arrays = {row.id: row.name for row in rows}
        self._named = {(row.name, row.task): row for row in rows if not row.tasks}

    def row_of(self, held: SlurmAttempt) -> QueueRow | None:
        """What is said of the attempt; None where Slurm does not know it any more.

        A controller that was killed may have lost its last seconds, and gives their numbers anew.
        """
        row = self._numbered(held)
        return row if row is None or not held.title or row.name == held.title else None

    def other_number_of(self, held: SlurmAttempt) -> str:
        """Under which it waits or runs beside its own, which Slurm does not know, or has done with:
        it was handed over twice, or what was taken for its number was none. Empty: under none."""
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
            # A task that is cancelled while it waits goes without a trace; its array is there. One
            # that follows another goes so only until that is over, but for Slurm's memory.
            reason = NEVER_MET if held.need and not self._is_under_way(held.need) else ""
            name = self._arrays[number]
            return QueueRow(
                number, int(task), name=name, state="CANCELLED", reason=reason, inferred=True
            )
        return None

    def _find(self, id: str) -> QueueRow | None:
        """A job's, or a task's, by itself or among those that wait together."""
        number, _, task = id.partition("_")
        if (row := self._single.get(id)) is not None or not task:
            return row
        return next((row for row in self._alike if row.is_about(number, int(task))), None)

    def _is_under_way(self, id: str) -> bool:
        row = self._find(id)
        return row is not None and row.phase != "over"


def in_parts(some: Sequence[SlurmAttempt]) -> Iterator[Sequence[SlurmAttempt]]:
    """As many as may stand on one command line."""
    for start in range(0, len(some), MAX_NUMBERS_PER_CALL):
        yield some[start : start + MAX_NUMBERS_PER_CALL]


def ranges(ids: Iterable[str]) -> list[tuple[str, list[str]]]:
    """`12`, `13_[0-7]`, `13_9`: what Slurm is told, and which numbers each of them is of."""
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
