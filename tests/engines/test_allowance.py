"""Launchers of one user on cards of a machine that allows the user so many: who gets which."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from socket import socket
from typing import TypeVar

import pytest
from msgspec.structs import replace

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import (
    Acquire,
    AllowanceFreed,
    AllowanceSpent,
    Event,
    Freed,
    Granted,
    Refused,
    Release,
    Wanted,
)
from gpulaunch.engines.local.leases import CardLeases, LeaseUser
from gpulaunch.engines.pool import open_pool
from gpulaunch.gpus.lease import AllowanceSpentError, AllowedLeases, Lease, leases_of, take
from gpulaunch.jobfile.config_model import Allowance
from tests.helpers import own_network, wait_until

E = TypeVar("E")


class Alone(LeaseUser):
    """Whoever else has a card is another launcher, even in this process."""

    lingering = False


class Side:
    """One launcher's leases, with a loop of its own; `cards` of the machine are its pool."""

    def __init__(self, keys: str, cards: tuple[int, ...], allowance: int) -> None:
        pool = open_pool(None, 4, {"GPULAUNCH_SIM_POOL": keys}, "r")
        gpus = [replace(gpu, key=f"{keys}-{gpu.index}") for gpu in pool.gpus if gpu.index in cards]
        limited = Allowance(allowance, "/etc/gpulaunch/config.yaml:3")
        self.pool = replace(pool, gpus=tuple(gpus), allowance=limited)
        self.loop = Loop()
        self.events: list[Event] = []
        self.leases = CardLeases(self.pool, self.loop, self.events.append, {}, Alone())

    def acquire(self, card: int) -> None:
        self.leases.carry_out(Acquire(f"SIM-{card}"))

    def release(self, card: int) -> None:
        self.leases.carry_out(Release(f"SIM-{card}"))

    def heard(self, kind: type[E]) -> E | None:
        """The next event of that kind that has come; those before it are dropped."""
        self.loop.turn(block=False)
        while self.events:
            event = self.events.pop(0)
            if isinstance(event, kind):
                return event
        return None

    def expect(self, kind: type[E]) -> E:
        return wait_until(lambda: self.heard(kind), 10.0, f"{kind}")  # type: ignore[return-value]

    def close(self) -> None:
        self.leases.close()
        self.loop.close()


Make = Callable[..., Side]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Side] = []
    keys = uuid.uuid4().hex[:8]

    def build(*cards: int, allowance: int) -> Side:
        made.append(Side(keys, cards, allowance))
        return made[-1]

    with own_network():
        yield build
        for side in made:
            side.close()


def has(side: Side, *cards: int) -> None:
    for card in cards:
        side.acquire(card)
        side.expect(Granted)


def is_refused(side: Side, card: int) -> None:
    side.acquire(card)
    assert isinstance(side.expect(Refused).why, AllowanceSpent)


def test_a_launcher_that_is_refused_hears_when_another_one_gives_a_card_back(make: Make) -> None:
    one, other = make(0, 1, 2, 3, allowance=2), make(0, 1, 2, 3, allowance=2)
    has(one, 0, 1)
    is_refused(other, 2)
    one.release(0)
    other.expect(AllowanceFreed)
    has(other, 2)
    is_refused(one, 3)


def test_who_takes_a_card_again_hears_of_those_that_come_free_later(make: Make) -> None:
    one, other = make(0, 1, 2, 3, allowance=2), make(0, 1, 2, 3, allowance=2)
    has(one, 0)
    has(other, 1)
    is_refused(other, 2)
    other.release(1)
    has(other, 1)
    one.release(0)
    other.expect(AllowanceFreed)
    has(other, 2)


def test_a_card_that_is_given_back_right_after_the_count_is_heard_of(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, other = (make(0, 1, 2, allowance=2) for _ in range(3))
    has(one, 0)
    has(two, 1)
    counted = AllowedLeases.take

    def then_one_is_given_back(allowed: AllowedLeases, key: str, scope: str) -> Lease:
        try:
            return counted(allowed, key, scope)
        except AllowanceSpentError:
            one.release(0)  # before `other` waits for any of them
            raise

    with monkeypatch.context() as patch:
        patch.setattr(AllowedLeases, "take", then_one_is_given_back)
        is_refused(other, 2)
    other.expect(AllowanceFreed)
    has(other, 2)


def test_a_launcher_without_a_card_is_given_the_next_of_its_user_s(make: Make) -> None:
    one, other = make(0, 1, allowance=1), make(0, 1, allowance=1)
    has(one, 0)
    is_refused(other, 1)
    assert one.expect(Wanted).wanted
    one.release(0)
    assert other.expect(AllowanceFreed)
    assert other.expect(Freed) == Freed("SIM-0")
    has(other, 0)
    is_refused(one, 1)


def test_a_card_that_it_has_no_use_for_gives_it_a_share_in_the_allowance(make: Make) -> None:
    one, other = make(0, allowance=1), make(1, allowance=1)
    has(one, 0)
    is_refused(other, 1)
    assert one.expect(Wanted).wanted
    one.release(0)
    other.expect(AllowanceFreed)
    assert leases_of(0) == []
    has(other, 1)


def test_a_card_that_was_handed_over_and_is_not_asked_for_makes_room_for_another(
    make: Make,
) -> None:
    one, other = make(0, 1, allowance=1), make(0, 1, allowance=1)
    has(one, 0)
    is_refused(other, 1)
    one.expect(Wanted)
    one.release(0)
    other.expect(AllowanceFreed)
    has(other, 1)
    assert [name[-1] for name in leases_of(0)] == ["1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="two users are root's")
def test_a_launcher_hears_when_the_card_goes_to_another_user(make: Make) -> None:
    """A connection that the holder has not accepted goes along with the lease."""
    other = make(1, allowance=1)
    with take("elsewhere") as lease, socket(fileno=os.dup(lease.filenos()[0])) as theirs:
        is_refused(other, 1)
        os.seteuid(65534)
        theirs.listen()  # as the launcher does that the lease is handed to
        os.seteuid(0)
        assert leases_of(0) == []
        other.expect(AllowanceFreed)
        has(other, 1)
