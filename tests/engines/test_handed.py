"""Leases handed from one launcher to another, both in this process: none is dropped on the way."""

from __future__ import annotations

import gc
import uuid

from gpulaunch.core.events import Event, Freed, Granted, Refused, Wanted
from gpulaunch.engines.local.cards import CardLeases, LeaseUser
from gpulaunch.engines.pool import open_pool
from gpulaunch.loop import Loop


class Launcher:
    def __init__(self, loop: Loop, pool: str, lingering: bool) -> None:
        self.loop = loop
        self.events: list[Event] = []
        cards = open_pool(None, 1, {}, pool)
        user = LeaseUser()
        user.lingering = lingering
        self.cards = CardLeases(cards, loop, self.events.append, {}, user)
        self.gpu = cards.gpus[0].uuid

    def hears(self, kind: type[Event]) -> None:
        """Until something of that kind has come; what came before it is forgotten."""
        while not any(isinstance(event, kind) for event in self.events):
            self.loop.turn()
        self.events.clear()


def test_a_lease_that_comes_back_to_one_who_takes_its_keepers_for_the_holder_is_kept() -> None:
    loop = Loop()
    pool = uuid.uuid4().hex[:12]
    one, other = Launcher(loop, pool, True), Launcher(loop, pool, False)
    one.cards.acquire(one.gpu)
    one.hears(Granted)
    other.cards.acquire(other.gpu)
    other.hears(Refused)
    one.hears(Wanted)
    one.cards.release(one.gpu)
    other.hears(Freed)
    other.cards.acquire(other.gpu)
    other.hears(Granted)
    one.cards.acquire(one.gpu)
    assert not one.events, "to it, its own keepers have the card for a moment"
    other.hears(Wanted)
    other.cards.release(other.gpu)
    one.hears(Granted)
    gc.collect()
    assert one.cards.holds(one.gpu)
    other.cards.acquire(other.gpu)
    other.hears(Refused)
    one.cards.close()
    other.cards.close()
    loop.close()
