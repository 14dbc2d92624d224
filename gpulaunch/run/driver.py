"""THE loop of a run: wait, handle, record, carry out.

    signals ┐                                      ┌▶ facts ───────▶ host.record
    keepers ┼▶ Loop ─▶ post(event) ─▶ Run.handle ──┤
    cards   ┘            ▲                         └▶ instructions ▶ host.carry_out
                         └──────────── timers ◀──────────┘

Facts are recorded before the instructions that rest on them are carried out. What becomes of either
is the host's: the supervisor of a run, `exec`, or an executor's manager.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gpulaunch.base.loop import Loop
from gpulaunch.core import events as ev
from gpulaunch.core.facts import Fact
from gpulaunch.core.model import Instant
from gpulaunch.core.run import Run

ROUNDS = 50
"""Times that events are handled, and what comes of them at once, before the loop looks again for
signals, timers and requests: an engine that answers at once could keep them out for ever."""


class Host(Protocol):
    """Whoever drives a run: records its facts and carries its instructions out."""

    def record(self, facts: Sequence[Fact], now: Instant) -> None:
        """Take the facts of some events that were handled together, in order; maybe none."""

    def carry_out(self, instruction: ev.Instruction) -> None:
        """Begin to carry an instruction out; timers never come here."""

    def card_awaited(self) -> None:
        """Learn, after each turn, that no first card can be had for now."""

    def wait_over(self) -> None:
        """Learn that no card came free in the time that `wait` gave."""


def now() -> Instant:
    """Return the time, monotonic and UTC."""
    return Instant(time.monotonic(), time.time())


class Driver:
    """Drives one Run. `turn` it, or turn the loop and then `settle` what was posted.

    `wait`: seconds from the first request for a card to the first launch; None: for ever.
    """

    def __init__(
        self,
        run: Run,
        loop: Loop,
        host: Host,
        wait: float | None = None,
        clock: Callable[[], Instant] = now,
    ) -> None:
        self._run = run
        self._loop = loop
        self._host = host
        self._wait = wait
        self._clock = clock
        self._inbox: list[ev.Event] = []
        self._looking: set[str] = set()
        self._since: float | None = None
        self._waited = 0.0
        self._launched = False

    @property
    def busy(self) -> bool:
        """True while an event is not handled yet."""
        return bool(self._inbox)

    def post(self, event: ev.Event) -> None:
        """Queue an event for the core.

        All that are queued are handled together, in order, before the loop waits again.
        """
        self._inbox.append(event)

    def turn(self) -> None:
        """Wait until something happens, and settle it."""
        self._loop.turn()
        self.settle()

    def settle(self) -> None:
        """Handle all that was posted, and what is posted on the way.

        After `ROUNDS` times something may be left: the driver is busy then, and the loop's next
        turn does not wait.
        """
        self._handle_posted()
        self._mind_the_wait()
        self._handle_posted()
        if self._inbox:
            self._loop.call_at("settle", 0.0, lambda: None)

    def want_no_card(self) -> None:
        """Forget since when a card is wanted: the wait begins anew with the next request."""
        self._since = None

    def stop_waiting(self) -> None:
        """Let the time stand still that a first card is waited for, until `wait_on`."""
        if self._since is not None:
            self._waited, self._since = self._clock().mono - self._since, None

    def wait_on(self) -> None:
        """Go on to wait for a first card, if one was waited for before `stop_waiting`."""
        waited, self._waited = self._waited, 0.0
        if waited:
            self._begin_to_wait(self._clock().mono - waited)

    def _handle_posted(self) -> None:
        for _ in range(ROUNDS):
            if not self._inbox:
                break
            events, self._inbox = self._inbox, []
            if self._looking:
                for event in events:
                    if isinstance(event, ev.Granted | ev.Refused):
                        self._looking.discard(event.gpu)
            at = self._clock()
            facts: list[Fact] = []
            instructions: list[ev.Instruction] = []
            for result in self._run.handle(events, at):
                if isinstance(result, ev.Instruction):
                    instructions.append(result)
                else:
                    facts.append(result)
            self._host.record(facts, at)
            for instruction in instructions:
                self._carry_out(instruction, at)

    def _carry_out(self, instruction: ev.Instruction, at: Instant) -> None:
        match instruction:
            case ev.SetTimer(timer, due):
                self._loop.call_at(timer, due, lambda: self.post(ev.TimerFired(timer)))
                return
            case ev.Acquire(gpu):
                self._looking.add(gpu)
                self._begin_to_wait(at.mono)
            case ev.Release(gpu):
                self._looking.discard(gpu)
            case ev.Launch():
                self._launched = True
        self._host.carry_out(instruction)

    def _begin_to_wait(self, since: float) -> None:
        if self._since is None and not self._launched:
            self._since = since
            if self._wait is not None:
                self._loop.call_at("wait", since + self._wait, self._mind_the_wait)

    def _mind_the_wait(self) -> None:
        # While a card is being looked at, it is not known yet whether it can be had.
        if self._since is None or self._launched or self._looking or self._inbox:
            return
        if self._wait is not None and self._clock().mono >= self._since + self._wait:
            self._since = None
            self._host.wait_over()
        else:
            self._host.card_awaited()
