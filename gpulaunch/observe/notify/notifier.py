"""Notifies people of a run: sees facts as a view does, and sends the messages that are due.

Nothing is sent from within `see`, which stands between a fact and what follows from it: sending is
the loop's next turn. Only the run's end waits, DELIVERY_AT_END_TIMEOUT seconds at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpulaunch.base.loop import Loop
from gpulaunch.core.facts import Fact, RunClosed
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant
from gpulaunch.jobfile.notify_spec import Target
from gpulaunch.observe.notify.message import Occasions, compose
from gpulaunch.observe.notify.preflight import DELIVERY_TIMEOUT, Delivery

DELIVERY_AT_END_TIMEOUT = 15.0
"""Seconds that the end of a run waits at most for its messages to be sent."""
SILENT = 1.0
"""Seconds of that after which a line says what the run waits for."""


class Notifier:
    """`directory` is the run's, `base` where commands are run; `environ` holds addresses.

    `note` takes a line for people and the journal; it may come back as a fact.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        ledger: Ledger,
        loop: Loop,
        *,
        directory: Path,
        base: Path,
        environ: Mapping[str, str],
        note: Callable[[str], None],
        clock: Callable[[], Instant],
        limit: float = DELIVERY_TIMEOUT,
        patience: float = DELIVERY_AT_END_TIMEOUT,
    ) -> None:
        self._targets = targets
        self._ledger = ledger
        self._loop = loop
        self._directory = str(directory.absolute())
        self._base = str(base)
        self._environ = environ
        self._note = note
        self._clock = clock
        self._patience = patience
        self._occasions = Occasions(targets)
        self._delivery = Delivery(loop, limit)
        self._failed: set[int] = set()
        self._last: dict[int, tuple[tuple[str, ...], RunClosed]] = {}
        self._told_end: tuple[object, ...] | None = None
        self.waiting = False

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None:
        self._occasions.see(fact)
        self._plan()

    def farewell(self, end: RunClosed, turn: Callable[[], None]) -> None:
        """Send the messages on the run's end; wait for all under way by taking the loop's turns.

        Does nothing where the same was told already.
        """
        told = (end, dict(self._ledger.counts))
        if told == self._told_end:
            return
        self._told_end = told
        self._loop.forget("notify")
        for number, events in self._occasions.finish(self._clock().mono):
            if number in self._delivery.busy:
                self._last[number] = events, end  # a message under way must arrive first
            else:
                self._send(number, events, end)
        self._loop.call_after("notify:said", SILENT, self._say)
        self._loop.call_after("notify:over", self._patience, self.give_up)
        self.waiting = True
        while self._delivery.busy:
            turn()
        self.waiting = False
        self._loop.forget("notify:said")
        self._loop.forget("notify:over")

    def give_up(self, why: str = "") -> None:
        """Wait no longer for the messages under way."""
        self._last.clear()
        self._delivery.give_up(why or f"no answer within {self._patience:g} s")

    def close(self) -> None:
        self._delivery.close()

    def _plan(self) -> None:
        at = self._occasions.next_at(self._delivery.busy)
        if at is not None and not self.waiting:
            self._loop.call_at("notify", at, self._send_due)

    def _send_due(self) -> None:
        for number, events in self._occasions.due(self._clock().mono, self._delivery.busy):
            self._send(number, events, None)
        self._plan()

    def _send(self, number: int, events: Sequence[str], end: RunClosed | None) -> None:
        try:
            self._tell(number, events, end)
        except Exception as error:
            # A bug in a message must not end a night's run.
            self._done(number, f"gpulaunch's own mistake, please report it: {error!r}")

    def _tell(self, number: int, events: Sequence[str], end: RunClosed | None) -> None:
        target = self._targets[number]
        done = partial(self._done, number)
        request: dict[str, Any]
        if target.run is not None:
            request = {"cwd": self._base}
        elif address := target.address(self._environ):
            request = {"to": address}
        else:
            done(f"{target.variable} is not set in this environment, or empty")
            return
        message = compose(events, self._ledger, self._directory, self._clock(), end)
        request |= {"title": message.title, "text": message.text, "summary": message.summary}
        if target.run is not None:
            request["run"] = arguments(target.run, message.title)
            request["variables"] = message.variables
        self._delivery.send(number, request, done)

    def _done(self, number: int, why: str) -> None:
        """Warn of a target's first failure, not of later ones."""
        if why and number not in self._failed:
            self._failed.add(number)
            self._note(f"{self._targets[number].name} was not told: {why}")
        if last := self._last.pop(number, None):
            self._send(number, *last)
        self._plan()

    def _say(self) -> None:
        names = ", ".join(self._targets[number].name for number in sorted(self._delivery.busy))
        self._note(
            f"the run's end waits until {names} is told, {self._patience:g} s at most;"
            " Ctrl-C: not at all"
        )


def arguments(run: str | Sequence[str], title: str) -> list[str]:
    """Return what to execute: a string by bash, with the title as `$1`; a list plus the title."""
    if isinstance(run, str):
        return ["bash", "-eo", "pipefail", "-c", run, "gpulaunch", title]
    return [*run, title]
