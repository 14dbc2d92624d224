"""The right to keep cards idle until they make up a wide job: asked for, held, given up in vain.

    off ──ask──▶ asked ──granted──▶ granted ──started, nothing in reach──▶ off
                                       └─ no further card for a while ──▶ off, and a pause

One launcher on the machine has it at a time, and all others then hand it their cards, each as it
next becomes idle. What it keeps is lost to them meanwhile: it waits for the next card as long as
others had one of those that it keeps, and at least PATIENCE. So it comes to its end against jobs of
any length, and keeps cards idle no longer than others used them. After that it lets go for a pause:
whoever waits for those cards, and cannot give its own before, gets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpulaunch.core.cards import Card
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import ReserveGang, SetTimer

TIMER = "gather"
GANG_TIMEOUT = 45.0
MAX_GANG_TIMEOUT = 1800.0
"""The longest at first; after each time in vain it may be so much longer."""
GANG_PAUSE = 10.0
GANG_PAUSE_JITTER = 5.0


class GangReservation:
    """Knows when to let go. Which job the cards are for, and which they are, is Admission's."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self.state: Literal["off", "asked", "granted"] = "off"
        self._kept = 0
        self._until = 0.0
        self._in_vain = 0
        self._not_before = 0.0

    @property
    def granted(self) -> bool:
        return self.state == "granted"

    @property
    def pausing(self) -> bool:
        return self._effects.now.mono < self._not_before

    @property
    def overdue(self) -> bool:
        """It keeps cards, and no further one has come for too long."""
        return self.granted and self._kept > 0 and self._effects.now.mono >= self._until

    def ask(self) -> None:
        if self.state == "off":
            self.state = "asked"
            self._effects.emit(ReserveGang(True))

    def grant(self) -> None:
        if self.state == "asked":
            self.state, self._kept = "granted", 0

    def give_up(self) -> None:
        if self.state != "off":
            self.state = "off"
            self._effects.emit(ReserveGang(False))

    def succeed(self) -> None:
        self._in_vain = 0
        self.give_up()

    def keep(self, cards: Sequence[Card]) -> None:
        """These are kept idle now. One more than before: it waits anew."""
        if len(cards) > self._kept:
            turn = max(card.last_tenure for card in cards)
            self._wait(min(max(turn, GANG_TIMEOUT), MAX_GANG_TIMEOUT * (1 + self._in_vain)))
        self._kept = len(cards)

    def wait_on(self) -> None:
        """More is certain to come."""
        self._wait(GANG_TIMEOUT)

    def pause(self) -> None:
        """Let go, and leave the cards to others for a while, not as long as any rival does."""
        self.give_up()
        self._in_vain += 1
        extra = GANG_PAUSE_JITTER * self._effects.jitter(f"pause {self._in_vain}")
        self._not_before = self._effects.now.mono + GANG_PAUSE + extra
        self._effects.emit(SetTimer(TIMER, self._not_before))

    def _wait(self, seconds: float) -> None:
        self._until = self._effects.now.mono + seconds
        self._effects.emit(SetTimer(TIMER, self._until))
