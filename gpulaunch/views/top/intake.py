"""The run's facts, a piece at a time, into a board; nothing after damage is believed."""

from __future__ import annotations

from gpulaunch.errors import GpulaunchError
from gpulaunch.views.top.board import Board
from gpulaunch.views.top.link import RunLink

LONG_JOURNAL = 1000
"""Facts at once: a journal that was long before it was opened."""


class Intake:
    """`trouble`: why no more is read, in words; `complete`: all that there is so far was."""

    def __init__(self, link: RunLink, board: Board) -> None:
        self._link = link
        self._board = board
        self.trouble = ""
        self.complete = False

    @property
    def refused(self) -> str:
        """Why nothing could be shown at all."""
        return self.trouble if self._board.ledger.last is None else ""

    def take(self) -> bool:
        """Whether anything came; there may be more at once then."""
        if self.trouble and self.complete:
            return False
        try:
            facts = self._link.read()
            if len(facts) >= LONG_JOURNAL:  # while a long journal is read, fewer redraws
                facts += self._link.read()
            for fact, at in facts:
                self._board.see(fact, at)
        except (GpulaunchError, OSError, KeyError, IndexError) as error:
            # What stood before the damage is shown; nothing after it can be believed.
            self.trouble, facts = words_of(error), []
        self.complete = len(facts) < LONG_JOURNAL
        return bool(facts)


def words_of(error: Exception) -> str:
    """For people; a KeyError or IndexError is what a fact raises that fits nothing before it."""
    if isinstance(error, GpulaunchError | OSError):
        return str(error)
    return f"the journal is damaged: it speaks of {error}, which nothing before it knows"
