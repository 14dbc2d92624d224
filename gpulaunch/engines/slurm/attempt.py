"""The attempts that Slurm has, or is about to get, and the rows of its queue that show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.text import consecutive
from gpulaunch.core.causes import ByCluster
from gpulaunch.core.events import StopAttempt
from gpulaunch.core.model import AttemptId, Job
from gpulaunch.engines.slurm.limits import Lane
from gpulaunch.engines.slurm.node_files import NodeStart, Withdrawn
from gpulaunch.engines.slurm.reading import NEVER_MET, QueueRow

T = TypeVar("T")
MAX_NUMBERS_PER_CALL = 200
"""Slurm's job numbers, or ranges of an array's tasks, on one command line."""
REQUEUED = ByCluster("requeued")
_STUCK = re.compile(r"launch.fail|retrieval.failed|special.exit", re.I)
"""Reasons of a job that Slurm could not start and holds: it never starts by itself."""

Sign: TypeAlias = tuple[str, int]
"""Slurm's state of an attempt, empty for none, and how often Slurm restarted it."""
UNCONFIRMED: Sign = ("", -1)


class SlurmJob(Struct, frozen=True):
    """What Slurm has of an attempt: its number (empty while unknown), and its job's name.

    `known_at` is the monotonic time at which it got the number. `need` is the array task that it
    follows, `token` what it shares with others, `lane` the options by which the site's limits go.
    """

    id: str = ""
    title: str = ""
    known_at: float = 0.0
    need: str = ""
    token: str = ""
    lane: Lane = ()


class Unaccounted(Struct, frozen=True):
    """Slurm shows the attempt over, unknown or back in its queue, and its end is unknown.

    `since` is a monotonic time; `beat` is the node's last sign of life.
    """

    since: float
    beat: float | None = None


class Sighting(Struct, frozen=True):
    """What Slurm's queue has shown of an attempt.

    `row`: at the last look. `asked`: the queue was read since it got its number. `preempted`: Slurm
    said once that it makes room for another. `recalled`: why the engine takes it out of the queue
    although nobody asked for its end. `confirmed`: what `scontrol` has confirmed.
    """

    row: QueueRow | None = None
    asked: bool = False
    preempted: bool = False
    recalled: ByCluster | None = None
    confirmed: Sign = UNCONFIRMED
    unaccounted: Unaccounted | None = None

    @property
    def is_over(self) -> bool:
        """True if Slurm has finished the attempt's job, or knows it no longer."""
        return self.row.phase == "over" if self.row else self.asked

    @property
    def phase(self) -> str:
        return self.row.phase if self.row else ""


class Began(Struct, frozen=True):
    """A node has claimed the attempt. `seen_at`: when that showed here; `told`: it was posted."""

    start: NodeStart
    seen_at: float
    told: bool = False


Holder: TypeAlias = Literal["nobody", "a node"] | Began | Withdrawn
"""Who has claimed an attempt, as far as it shows here: link(2) lets one have it. A node's record
shows later than its claim. `Withdrawn`: a launcher."""


class SlurmAttempt(Struct, frozen=True):
    """An attempt that was launched and has not ended.

    Three parties change it, each by itself: the launcher submits and stops it (`slurm`, `stop`),
    Slurm queues it (`sight`), a node or a launcher claims it (`holder`). `after`: the attempts
    that had to succeed when it was submitted. `adopted`: an earlier launcher submitted it.
    `end_seen_at`: when the record of its end was first seen. `told_to_end`: a stop file was left
    for a first start that Slurm has forgotten.
    """

    attempt: AttemptId
    job: Job
    slurm: SlurmJob = SlurmJob()
    sight: Sighting = Sighting()
    holder: Holder = "nobody"
    stop: StopAttempt | None = None
    after: tuple[AttemptId, ...] = ()
    adopted: bool = False
    end_seen_at: float | None = None
    told_to_end: bool = False

    @property
    def id(self) -> str:
        return self.slurm.id

    @property
    def row(self) -> QueueRow | None:
        return self.sight.row

    @property
    def start(self) -> NodeStart | None:
        return self.holder.start if isinstance(self.holder, Began) else None

    @property
    def at_once(self) -> bool:
        """True if the attempt is to end without its grace."""
        return self.stop is not None and self.stop.now

    @property
    def begun(self) -> bool:
        return self.holder == "a node" or isinstance(self.holder, Began)

    @property
    def withdrawn(self) -> bool:
        return isinstance(self.holder, Withdrawn)

    def looked(self, row: QueueRow | None, asked_at: float, now: float) -> SlurmAttempt:
        """Return the attempt with the row that Slurm, asked at that time, showed; None for none."""
        before, start = self.sight, self.start
        preempted, recalled, back = before.preempted, before.recalled, False
        if row is not None:
            preempted = preempted or row.preempted
            if not isinstance(self.holder, Began) or self.holder.seen_at < asked_at:
                recalled = recalled or to_recall(row, start)
            back = bool(recalled) and start is not None and row.waits
        gone = back or row is None or row.phase == "over"
        confirmed = before.confirmed if self.must_be_confirmed(row) else UNCONFIRMED
        unaccounted = (before.unaccounted or Unaccounted(now)) if gone else None
        sight = Sighting(row, True, preempted, recalled, confirmed, unaccounted)
        return replace(self, sight=sight)

    def must_be_confirmed(self, row: QueueRow | None) -> bool:
        """Return True if the attempt would be ended, or called lost, because of this row alone.

        For an attempt that never began only a missing row needs confirming: once the launcher has
        taken its claim, no node starts it.
        """
        if row is None or row.inferred:
            return True
        if not self.begun:
            return False
        restart = self.start.restart if self.start else 0
        return row.phase == "over" or row.waits or row.restarts > restart

    @property
    def reachable(self) -> bool:
        """True while its number is certainly its own.

        A controller that was killed may give the number to another job.
        """
        return self.sight.unaccounted is None and not (self.adopted and self.row is None)

    @property
    def doubtful(self) -> bool:
        """True while Slurm has finished it, or would start it again, and its end is unknown."""
        return self.sight.unaccounted is not None or bool(self.sight.recalled)

    @property
    def is_to_begin_anew(self) -> bool:
        """True if Slurm will start the attempt's job once more."""
        if self.row is None or self.start is None or self.row.phase == "over":
            return False
        return bool(self.sight.recalled) or self.row.restarts > self.start.restart

    @property
    def runs(self) -> bool:
        """True if the attempt was given its cards and is not known to be over."""
        if self.row is not None and self.row.phase != "queued":
            return self.row.phase == "running"
        return self.begun


def to_recall(row: QueueRow, start: NodeStart | None) -> ByCluster | None:
    """Return why the job is to be taken out of Slurm's queue; None if it is to stay.

    `row` was read after `start` was known. A job that never began and that a person holds stays.
    """
    if start is not None:
        return REQUEUED if row.waits else None
    stuck = row.waits and _STUCK.search(f"{row.state} {row.reason}")
    return ByCluster("not_begun", said=row.reason or row.state) if stuck else None


def sign_of(row: QueueRow | None) -> Sign:
    return ("", 0) if row is None else (row.state, row.restarts)


class QueueSnapshot:
    """Slurm's queue at one moment, by job number."""

    def __init__(self, rows: Sequence[QueueRow]) -> None:
        self._single = {str(row): row for row in rows if not row.tasks}
        self._alike = [row for row in rows if row.tasks]
        self._arrays = {row.id: row.name for row in rows}
        self._named = {(row.name, row.task): row for row in rows if not row.tasks}

    def row_of(self, one: SlurmAttempt) -> QueueRow | None:
        """Return the attempt's row; None if Slurm does not know the attempt any more.

        A row with another title is not its own: a controller that was killed loses its last
        seconds and gives their numbers out again.
        """
        row = self._numbered(one)
        return row if row is None or not one.slurm.title or row.name == one.slurm.title else None

    def other_number_of(self, one: SlurmAttempt) -> str:
        """Return another number under which the attempt waits or runs; empty if there is none.

        It has one where it was submitted twice, or where its own number was misread.
        """
        _, _, task = one.id.partition("_")
        index = int(task) if task else None
        row = self._named.get((one.slurm.title, index)) if one.slurm.title else None
        if row is None and one.slurm.title and index is not None:
            alike = (r for r in self._alike if r.name == one.slurm.title and index in r.tasks)
            row = next(alike, None)
        if row is None or row.phase == "over":
            return ""
        number = row.id if index is None else f"{row.id}_{index}"
        return "" if number == one.id else number

    def _numbered(self, one: SlurmAttempt) -> QueueRow | None:
        number, _, task = one.id.partition("_")
        row = self._find(one.id)
        if row is not None or not task:
            return row
        if number in self._single:
            return self._single[number]
        if number in self._arrays and one.sight.phase in ("", "queued") and one.start is None:
            # A task that is cancelled while it waits vanishes, although its array is listed. If
            # the task that it follows is over as well, Slurm cancelled it for that one's failure.
            reason = NEVER_MET if one.slurm.need and not self._is_under_way(one.slurm.need) else ""
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


def in_parts(some: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield what is named in parts that fit on one command line each."""
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
        for some in consecutive(tasks):
            span = f"[{some[0]}-{some[-1]}]" if len(some) > 1 else some[0]
            found.append((f"{number}_{span}", [f"{number}_{task}" for task in some]))
    return found
