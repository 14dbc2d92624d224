"""Reads the run's facts into a board, a piece at a time, up to the first damage."""

from __future__ import annotations

from gpulaunch.errors import GpulaunchError
from gpulaunch.views.top.board import Board
from gpulaunch.views.top.link import RunLink

LONG_JOURNAL = 1000
"""Facts in one piece that show that a long journal is being read."""


class Intake:
    """The reader. `trouble`: why it stopped, in words; `complete`: it has read all facts so far."""

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
