"""The driver between the core and a pretend host: what comes before what, and how long it waits."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import closing

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import (
    Acquire,
    Drain,
    Drained,
    Elsewhere,
    Event,
    Granted,
    Instruction,
    Launch,
    Refused,
    Submitted,
)
from gpulaunch.core.facts import Fact
from gpulaunch.core.model import Gpu, Instant, Job
from gpulaunch.core.run import Run
from gpulaunch.run.driver import Driver

GPU = Gpu("GPU-0", 0, "0000:01:00.0", "A100", 80 << 30)


class World:
    """A run of one job on one card, and its host, by a clock that the test sets."""

    def __init__(self, wait: float | None) -> None:
        self.time = 1.0  # just after boot: the loop's own clock is past every time here
        self.loop = Loop()
        self.seen: list[str] = []
        self.driver = Driver(Run([GPU]), self.loop, self, wait, lambda: Instant(self.time, 0.0))
        self.driver.post(Submitted((Job("a", "true"),)))

    def record(self, facts: Sequence[Fact], now: Instant) -> None:
        self.seen += [type(fact).__name__ for fact in facts if "Attempt" in type(fact).__name__]

    def carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Acquire | Launch):
            self.seen.append(type(instruction).__name__)

    def card_awaited(self) -> None:
        self.seen.append("waits")

    def wait_over(self) -> None:
        self.seen.append("over")

    def refuse(self) -> None:
        self.driver.post(Refused(GPU.uuid, Elsewhere("somebody")))


def driven(wait: float | None, act: Callable[[World], None]) -> list[str]:
    world = World(wait)
    with closing(world.loop):
        world.driver.settle()
        act(world)
    return world.seen


def test_the_intent_is_recorded_before_the_launch() -> None:
    def act(world: World) -> None:
        world.driver.post(Granted(GPU.uuid, 80 << 30))
        world.driver.settle()

    assert driven(None, act) == ["Acquire", "AttemptLaunched", "Launch"]


def test_a_wait_is_not_over_while_a_card_is_being_looked_at() -> None:
    def act(world: World) -> None:
        world.time += 0.5
        world.driver.settle()
        world.driver.post(Granted(GPU.uuid, 80 << 30))
        world.driver.settle()

    assert driven(0.0, act) == ["Acquire", "AttemptLaunched", "Launch"]


def test_a_wait_is_over_once_its_time_has_passed_and_no_card_may_come() -> None:
    def act(world: World) -> None:
        world.refuse()
        world.driver.settle()
        world.time += 0.5
        world.driver.settle()
        world.driver.settle()

    assert driven(0.5, act) == ["Acquire", "waits", "over"]


def test_a_wait_wakes_the_loop_by_itself() -> None:
    def act(world: World) -> None:
        world.refuse()
        world.driver.settle()
        world.time += 0.5
        world.driver.turn()

    assert driven(0.5, act) == ["Acquire", "waits", "over"]


def test_a_wait_begins_anew_after_no_card_was_wanted() -> None:
    def act(world: World) -> None:
        world.refuse()
        world.driver.settle()
        world.driver.want_no_card()
        world.time += 0.5
        world.driver.settle()

    assert driven(0.5, act) == ["Acquire", "waits"]


class Endless(Run):
    """A core that answers whatever it hears by an instruction."""

    def handle(self, events: Sequence[Event], now: Instant) -> list[Fact | Instruction]:
        return [Drain(GPU.uuid)]


class Endlessly:
    """Has an endless core, whose instructions an engine answers at once."""

    def __init__(self, loop: Loop) -> None:
        self.carried_out = 0
        self.driver = Driver(Endless([GPU]), loop, self)
        self.driver.post(Drained(GPU.uuid, 0))

    def record(self, facts: Sequence[Fact], now: Instant) -> None:
        """No fact comes."""

    def carry_out(self, instruction: Instruction) -> None:
        self.carried_out += 1
        assert self.carried_out < 10_000, "nothing else is heard any more"
        self.driver.post(Drained(GPU.uuid, 0))

    def card_awaited(self) -> None:
        """No card is wanted."""

    def wait_over(self) -> None:
        """No card is wanted."""


def test_signals_timers_and_requests_are_heard_however_much_core_and_engine_have_to_say() -> None:
    heard: list[str] = []
    theirs, ours = socket.socketpair()
    with closing(Loop()) as loop, theirs, ours:
        loop.on_signals([signal.SIGUSR1], lambda number: heard.append("signal"))
        loop.call_after("timer", 0.0, lambda: heard.append("timer"))
        loop.watch(ours.fileno(), lambda: heard.append(ours.recv(16).decode()))
        theirs.send(b"request")
        os.kill(os.getpid(), signal.SIGUSR1)
        endless = Endlessly(loop)
        endless.driver.settle()
        assert endless.driver.busy
        for _ in range(3):
            endless.driver.turn()  # and does not wait for anything
    assert sorted(heard) == ["request", "signal", "timer"]
