"""The right to keep cards idle until they are enough for a wide job (gang scheduling).

    off ──ask──▶ asked ──granted──▶ granted ──started, nothing in reach──▶ off
                                       └─ no further card for a while ──▶ off, and a pause

One launcher on the machine has the right at a time, and all others then hand it their cards, each
as it next becomes idle. The cards that it keeps are lost to them meanwhile. So it waits for the
next card as long as another launcher last had one of those, and at least GANG_TIMEOUT: it succeeds
beside jobs of any length, and keeps cards idle no longer than others used them. After that it
releases them for a pause, for a launcher that needs them before it can give its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpulaunch.core.card import Card
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import ReserveGang, SetTimer, Timer

GANG_TIMEOUT = 45.0
"""Seconds that the reservation waits for the next card, at least."""
MAX_GANG_TIMEOUT = 1800.0
"""Seconds that it waits at most; after each reservation in vain, as many more."""
GANG_PAUSE = 10.0
GANG_PAUSE_JITTER = 5.0
"""Seconds until it may be asked for again, and what each run adds, up to this."""


class GangReservation:
    """Asks for the right, and says when it is overdue. Admission chooses the job and the cards."""

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
        """True once the reservation keeps cards and no further one has come for too long."""
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
        """Set the cards that are kept idle now. If they are more than before, wait anew."""
        if len(cards) > self._kept:
            turn = max(card.tenure.last for card in cards)
            self._wait(min(max(turn, GANG_TIMEOUT), MAX_GANG_TIMEOUT * (1 + self._in_vain)))
        self._kept = len(cards)

    def wait_on(self) -> None:
        """Wait GANG_TIMEOUT longer, as another card is certain to come."""
        self._wait(GANG_TIMEOUT)

    def pause(self) -> None:
        """Give the right up for a while, which differs between runs, so that others get cards."""
        self.give_up()
        self._in_vain += 1
        extra = GANG_PAUSE_JITTER * self._effects.jitter(f"pause {self._in_vain}")
        self._not_before = self._effects.now.mono + GANG_PAUSE + extra
        self._effects.emit(SetTimer(Timer("gang"), self._not_before))

    def _wait(self, seconds: float) -> None:
        self._until = self._effects.now.mono + seconds
        self._effects.emit(SetTimer(Timer("gang"), self._until))
