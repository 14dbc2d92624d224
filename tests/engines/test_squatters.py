"""Another user's process has a card's name, or the right to gather, and answers as it likes."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import (
    Acquire,
    Event,
    Freed,
    GangGranted,
    Granted,
    Occupied,
    Refused,
    ReserveGang,
)
from gpulaunch.engines.local import lease_waiters
from gpulaunch.engines.local.lease_waiters import CONNECTS, Pace
from gpulaunch.engines.local.leases import CardLeases
from gpulaunch.engines.pool import open_pool
from gpulaunch.gpus import lease
from gpulaunch.gpus.lease import gather_name, lease_name
from gpulaunch.gpus.socket_locks import bind_name

TURNS = 500


class Squatter:
    """Holds a name and does the same to all who come."""

    def __init__(self, loop: Loop, name: str, answer: Callable[[socket.socket], None]) -> None:
        self.visits = 0
        self._answer = answer
        self._links: list[socket.socket] = []
        self._loop = loop
        self._sock = bind_name(name)
        loop.watch(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        link, _ = self._sock.accept()
        self.visits += 1
        self._links.append(link)
        with suppress(OSError):
            self._answer(link)

    def close(self) -> None:
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        for link in self._links:
            link.close()


def pass_a_pipe(link: socket.socket) -> None:
    read, write = os.pipe()
    socket.send_fds(link, [b"L"], [read, write] * 20)
    os.close(read)
    os.close(write)


def spam(link: socket.socket) -> None:
    link.sendall(b"L" * 1000)


def hang_up(link: socket.socket) -> None:
    link.close()


def say_nothing(link: socket.socket) -> None:
    return


class Launcher:
    """Cards whose events are kept, and a core that asks again for a card that came free."""

    def __init__(self, loop: Loop, environ: dict[str, str]) -> None:
        self.events: list[Event] = []
        pool = open_pool(None, 1, {}, uuid.uuid4().hex[:12])
        self.gpu, self.key = pool.gpus[0].uuid, pool.gpus[0].key
        self.cards = CardLeases(pool, loop, self._post, environ)

    def _post(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Freed):
            self.cards.acquire(event.gpu)


@pytest.fixture
def loop() -> Iterator[Loop]:
    with_timers = Loop()
    yield with_timers
    with_timers.close()


@pytest.fixture
def scope() -> str:
    return uuid.uuid4().hex[:12]


@pytest.fixture
def launcher(loop: Loop, scope: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    # The clock never comes: what is seen is all that answers alone can cause.
    monkeypatch.setattr(lease, "POLL", 3600.0)
    monkeypatch.setattr(lease_waiters, "POLL", 3600.0)
    made = Launcher(loop, {"GPULAUNCH_LEASED": scope})
    yield made
    made.cards.close()


@pytest.mark.parametrize("answer", [pass_a_pipe, spam, hang_up, say_nothing])
def test_what_a_squatter_answers_costs_a_waiter_a_few_looks(
    answer: Callable[[socket.socket], None], launcher: Launcher, loop: Loop, scope: str
) -> None:
    squatter = Squatter(loop, lease_name(launcher.key, scope), answer)
    launcher.cards.acquire(launcher.gpu)
    for _ in range(TURNS):
        loop.turn(block=False)
    assert 1 <= squatter.visits <= CONNECTS + 1
    assert len([event for event in launcher.events if isinstance(event, Refused)]) == 1
    assert not [event for event in launcher.events if isinstance(event, Freed)]
    squatter.close()


@pytest.mark.parametrize("answer", [pass_a_pipe, spam, hang_up, say_nothing])
def test_the_card_is_taken_when_the_squatter_is_gone(
    answer: Callable[[socket.socket], None],
    launcher: Launcher,
    loop: Loop,
    scope: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "POLL", 0.01)
    squatter = Squatter(loop, lease_name(launcher.key, scope), answer)
    launcher.cards.acquire(launcher.gpu)
    while not squatter.visits:
        loop.turn()
    squatter.close()
    while not any(isinstance(event, Granted) for event in launcher.events):
        loop.turn()


@pytest.mark.parametrize("answer", [pass_a_pipe, spam, hang_up, say_nothing])
def test_the_right_to_gather_is_waited_for_as_quietly(
    answer: Callable[[socket.socket], None],
    launcher: Launcher,
    loop: Loop,
    scope: str,
) -> None:
    squatter = Squatter(loop, gather_name(scope), answer)
    launcher.cards.carry_out(ReserveGang(True))
    for _ in range(TURNS):
        loop.turn(block=False)
    assert 1 <= squatter.visits <= 2 * CONNECTS + 2  # who has it is looked at each time
    assert not [event for event in launcher.events if isinstance(event, GangGranted)]
    squatter.close()


def test_an_unfit_lock_is_that_card_s_matter(
    launcher: Launcher, scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAUNCH_LEASE_DIR", str(tmp_path))
    os.mkfifo(tmp_path / (lease_name(launcher.key, scope).replace("/", "_") + ".lock"))
    launcher.cards.carry_out(Acquire(launcher.gpu))
    (refused,) = launcher.events
    assert isinstance(refused, Refused)
    assert isinstance(refused.why, Occupied)
    assert "is a FIFO: remove it" in refused.why.by


def test_what_is_spent_comes_back_one_by_one() -> None:
    pace = Pace(burst=3, seconds=2.0)
    assert [pace.spend("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert pace.spend("b", 0.0)
    assert not pace.spend("a", 1.0)
    assert pace.spend("a", 2.0)
    assert not pace.spend("a", 2.5)
    assert [pace.spend("a", 1000.0) for _ in range(4)] == [True, True, True, False]
