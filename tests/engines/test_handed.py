"""Leases of launchers that are all in this process: handed over, and given back by the clock."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path

import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Event, Freed, Granted, Refused, Sick, Wanted
from gpulaunch.core.model import Gpu
from gpulaunch.engines.local.leases import CardLeases, LeaseUser
from gpulaunch.engines.pool import open_pool
from gpulaunch.gpus.machine import CardReading, LookCallback


class Polite(LeaseUser):
    """Leaves a card to others as often as there are answers."""

    def __init__(self, answers: Iterable[bool]) -> None:
        self.answers = iter(answers)

    def is_for_others(self, gpu: str) -> bool:
        return next(self.answers, False)


class Launcher:
    def __init__(
        self, loop: Loop, pool: str, lingering: bool, user: LeaseUser | None = None
    ) -> None:
        self.loop = loop
        self.events: list[Event] = []
        cards = open_pool(None, 1, {}, pool)
        user = user or LeaseUser()
        user.lingering = lingering
        self.cards = CardLeases(cards, loop, self.events.append, {}, user)
        self.gpu, self.key = cards.gpus[0].uuid, cards.gpus[0].key

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


def test_a_request_that_waits_for_its_own_keepers_is_answered_where_the_lock_is_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, pool = Loop(), uuid.uuid4().hex[:12]
    one, other = Launcher(loop, pool, True), Launcher(loop, pool, False)
    one.cards.acquire(one.gpu)
    one.hears(Granted)
    other.cards.acquire(other.gpu)
    one.hears(Wanted)
    one.cards.release(one.gpu)
    other.hears(Freed)
    other.cards.acquire(other.gpu)
    other.hears(Granted)
    one.cards.acquire(one.gpu)
    assert not one.events, "to it, its own keepers have the card for a moment"
    monkeypatch.setenv("GPULAUNCH_LEASE_DIR", str(tmp_path))
    os.mkfifo(tmp_path / f"{one.key}.lock".replace("/", "_"))
    other.cards.close_in_child()  # as when its process ends
    one.hears(Refused)
    assert not one.cards.holds(one.gpu)
    one.cards.close()
    loop.close()


def test_a_card_that_comes_free_is_left_to_others_while_they_wait_and_no_longer() -> None:
    loop = Loop()
    pool = uuid.uuid4().hex[:12]
    asked = iter([True] * 3)
    one = Launcher(loop, pool, False)
    polite = Launcher(loop, pool, False, Polite(asked))
    one.cards.acquire(one.gpu)
    one.hears(Granted)
    polite.cards.acquire(polite.gpu)
    polite.hears(Refused)
    one.cards.close_in_child()  # as when its process ends: nothing is handed over
    polite.hears(Freed)
    assert next(asked, None) is None, "it asked until nobody else waited"
    polite.cards.acquire(polite.gpu)
    polite.hears(Granted)
    polite.cards.close()
    loop.close()


def test_a_card_that_nobody_takes_is_left_to_others_for_a_while_alone() -> None:
    loop = Loop()
    pool = uuid.uuid4().hex[:12]
    one, polite = Launcher(loop, pool, False), Launcher(loop, pool, False, Polite(repeat(True)))
    one.cards.acquire(one.gpu)
    one.hears(Granted)
    polite.cards.acquire(polite.gpu)
    polite.hears(Refused)
    one.cards.close_in_child()  # as when its process ends: nothing is handed over
    polite.hears(Freed)
    polite.cards.close()
    loop.close()


def test_a_card_whose_memory_does_not_come_back_in_30_seconds_is_sick_and_given_back() -> None:
    clock = [0.0]
    loop, pool = Loop(lambda: clock[0]), uuid.uuid4().hex[:12]
    launcher, other = (Launcher(loop, pool, lingering=False) for _ in range(2))
    used, looks = [0], launcher.cards._probe

    def look(gpu: Gpu, then: LookCallback) -> None:
        then(CardReading(gpu.uuid, total=gpu.memory, used=used[0]))

    looks.look = look  # type: ignore[method-assign]
    launcher.cards.acquire(launcher.gpu)
    launcher.hears(Granted)
    used[0] = 30 << 30
    launcher.cards.drain(launcher.gpu)
    while not launcher.events:
        clock[0] += 0.1
        loop.turn(block=False)
    (refused,) = launcher.events
    assert isinstance(refused, Refused)
    assert refused.why == Sick("its memory was not given back within 30 s of its last job")
    assert 30.0 <= clock[0] < 31.0
    other.cards.acquire(other.gpu)
    other.hears(Granted)
    for each in (launcher, other):
        each.cards.close()
    loop.close()
