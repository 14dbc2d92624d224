"""Folds a run's facts into boards: as they come, and anew to play back the run's past.

A moment of the past is all that was recorded at one instant. A step on folds the next facts; a step
back folds from the beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from datetime import tzinfo

from gpulaunch.core.facts import JobAdded
from gpulaunch.core.model import Instant
from gpulaunch.errors import GpulaunchError
from gpulaunch.views.top.board import Board
from gpulaunch.views.top.link import Dated, RunLink, SampleStore

LONG_JOURNAL = 1000
"""Facts in one piece that show that a long journal is being read."""


class Intake:
    """Reads facts into a board, up to the first damage.

    `trouble`: why it stopped, in words; `complete`: it has read all facts so far.
    """

    def __init__(self, link: RunLink, board: Board) -> None:
        self._link = link
        self._board = board
        self.trouble = ""
        self.complete = False

    @property
    def refused(self) -> str:
        """Why nothing can be shown at all; else empty."""
        return self.trouble if self._board.ledger.last is None else ""

    def take(self) -> bool:
        """Read a piece; return True if anything came, and there may be more at once."""
        if self.trouble and self.complete:
            return False
        try:
            facts = self._link.read()
            if len(facts) >= LONG_JOURNAL:  # while a long journal is read, fewer redraws
                facts += self._link.read()
            for fact, at in facts:
                self._board.see(fact, at)
        except (GpulaunchError, OSError, KeyError, IndexError) as error:
            # Facts before the damage are shown; those after it are not reliable.
            self.trouble, facts = words_of(error), []
        self.complete = len(facts) < LONG_JOURNAL
        return bool(facts)


def words_of(error: Exception) -> str:
    """Return an error in words; a KeyError or IndexError is of a fact that fits nothing before."""
    if isinstance(error, GpulaunchError | OSError):
        return str(error)
    return f"the journal is damaged: it speaks of {error}, which nothing before it knows"


PART = 20
"""A leap goes over 1/PART of the run's time."""


class Playback:
    """A run's past at moment `step` of `steps` (from 1), at first the last one."""

    def __init__(
        self,
        facts: Iterable[Dated],
        samples: SampleStore | None = None,
        zone: tzinfo | None = None,
        earlier: Mapping[str, float] | None = None,
    ) -> None:
        self._facts = list(facts)
        self._samples, self._zone, self._earlier = samples, zone, earlier
        self._ends = _moments(self._facts)
        self._times = [self._facts[end - 1][1].utc for end in self._ends]
        self._seen = 0
        self.step = len(self._ends)
        self.board = self._fresh()
        self._fold()

    @property
    def steps(self) -> int:
        return len(self._ends)

    def go(self, by: int) -> Board:
        """Step so many moments on, or back (negative), to either end at most; return the board."""
        return self._to(self.step + by)

    def leap(self, parts: int) -> Board:
        """Step so many twentieths of the run's time, at least one moment; return the board."""
        if not self._times:
            return self.board
        length = (self._times[-1] - self._times[0]) / PART
        wanted = bisect_right(self._times, self._times[self.step - 1] + parts * length)
        far = max(wanted, self.step + 1) if parts > 0 else min(wanted, self.step - 1)
        return self._to(far)

    def _to(self, step: int) -> Board:
        self.step = min(max(step, min(1, self.steps)), self.steps)
        if self._ends and self._ends[self.step - 1] < self._seen:
            self.board, self._seen = self._fresh(), 0
        self._fold()
        return self.board

    def _fold(self) -> None:
        end = self._ends[self.step - 1] if self._ends else 0
        for fact, at in self._facts[self._seen : end]:
            self.board.see(fact, at)
        self._seen = end
        ledger = self.board.ledger
        self.board.state = ledger.state if ledger.closed else "running"

    def _fresh(self) -> Board:
        board = Board(self._zone, self._earlier)
        board.past, board.samples = True, self._samples
        return board


def _moments(facts: list[Dated]) -> list[int]:
    """Return where each moment ends. Reading the job file is one moment, however long."""
    ends: list[int] = []
    before: Instant | None = None
    planning = False
    for number, (fact, at) in enumerate(facts):
        adding = isinstance(fact, JobAdded)
        if before is not None and at != before and not (adding and planning):
            ends.append(number)
        before, planning = at, adding
    return [*ends, len(facts)] if facts else []
