"""The sampler process: once a second, every card of the run and every live attempt.

    in   [news, ...], each {"do": "begin", "job": "a", "number": 1, "gpus": [UUID, ...] or null,
          "keeper": [pid, start, spent] or null, "seconds": 0.1, "container": FILE,
          "learns": true}
          or {"do": "end", ... as begin ..., "seconds": 9.5, "cpu_seconds": 31.2 or null}
    out  {"said": "misplaced", "job": "a", "number": 1, "gpu": UUID, "pid": 42, "text": "..."}
         {"said": "peaked", "job": "a", "number": 1, "memory": BYTES}
         {"said": "trouble", "text": "..."}

`gpus` is null on pretend cards. `container`, where there is one, names the file that tells its
first process. Where an attempt `learns`, what it takes of its card's memory is said whenever it is
more than before. What has come in counts from the next look on. The process ends, with the last of
that written down, when the launcher closes its end. A look that costs more than its share makes the
next one later: `PERIOD` grows to what keeps the whole under SHARE of one core.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.model import AttemptId
from gpulaunch.farside.proc import stat_fields
from gpulaunch.gpus.names import command_of
from gpulaunch.gpus.probe import die_with_parent, is_the_same_here, sees_all_pids
from gpulaunch.metrics.model import AttemptSample
from gpulaunch.metrics.store import Step, Store, attempt_steps, card_steps, end_steps, pin_step
from gpulaunch.sampler.driver import CardSampler, DriverSample
from gpulaunch.sampler.keeper import Keeper, cpu_of
from gpulaunch.sampler.pins import Pin, Pins
from gpulaunch.sampler.tree import ProcessTree, Trees

PERIOD, LONGEST_PERIOD = 1.0, 10.0
SHARE = 0.008
MEASURED = 10  # looks after which the cost is reckoned anew
LARGEST_MESSAGE = 1 << 16
SAID_AGAIN = 1.01  # times what was last said of an attempt's memory: less is no news


def main() -> None:
    """Sample; arguments: the launcher's PID, the database's path, [[index, UUID], ...] in JSON."""
    parent, path, cards = int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])
    die_with_parent(parent)
    link = LauncherLink(socket.socket(fileno=0))
    store = Store(path, lambda text: link.say("trouble", text=text))
    driver = CardSampler(cards)
    try:
        Sampler(link, store, driver).serve()
    finally:
        driver.close()
        store.close()


class LauncherLink:
    """The launcher's other end: one JSON value a message."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN | select.POLLRDHUP)
        self._news: list[dict[str, Any]] = []

    def say(self, said: str, **what: Any) -> None:
        with suppress(OSError):  # nobody listens, or nobody reads: it is in the database as well
            self._end.send(json.dumps({"said": said, **what}).encode())

    def received(self) -> Iterator[dict[str, Any]]:
        """Yield the news that have come in since the last call."""
        self._take_in()
        news, self._news = self._news, []
        yield from news

    def ends_within(self, seconds: float) -> bool:
        """Wait so long; return whether the launcher has closed its end meanwhile.

        News are taken in, for the next look: a launcher that waits for room would wait at its end.
        """
        until = time.monotonic() + seconds
        while ready := self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
            if any(events & ~select.POLLIN for _, events in ready):
                return True
            self._take_in()
        return False

    def _take_in(self) -> None:
        with suppress(OSError):
            while data := self._end.recv(LARGEST_MESSAGE):
                self._news += json.loads(data)


class SampledAttempt(Struct, frozen=True):
    """An attempt. `since` and `seen_at` are monotonic: when it began, and the last look at it.

    `container`: the file that tells the first process of its container; empty for none. `told`:
    bytes of its card's memory that were last said; None where nobody wants to know.
    """

    attempt: AttemptId
    own: tuple[str, ...] | None
    keeper: Keeper | None
    since: float
    container: str = ""
    seen_at: float | None = None
    pin: Pin | None = None
    told: int | None = None

    @property
    def gpus(self) -> int | None:
        return None if self.own is None else len(self.own)


class Sampler:
    def __init__(self, link: LauncherLink, store: Store, driver: CardSampler) -> None:
        self._link = link
        self._store = store
        self._driver = driver
        self._trees = Trees()
        self._pins = Pins(_on_the_host(), is_the_same_here)
        self._live: dict[AttemptId, SampledAttempt] = {}
        self._budget = SamplingPace()

    def serve(self) -> None:
        """Sample until the launcher closes its end."""
        due = time.monotonic()
        while not self._link.ends_within(due - time.monotonic()):
            due = max(due + self._budget.period, time.monotonic())
            self._store.write([*self._hear(), *self._look(time.monotonic())], time.time())
            self._budget.spent(self._driver.pid)
        self._store.write(list(self._hear()), time.time())

    def _hear(self) -> Iterator[Step]:
        for message in self._link.received():
            attempt = AttemptId(message["job"], message["number"])
            live = _live(attempt, message)
            if message["do"] == "begin":
                self._live.setdefault(attempt, live)
                continue
            self._live.pop(attempt, None)
            self._pins.forget(attempt)
            yield from end_steps(attempt, live.gpus, message["seconds"], message["cpu_seconds"])

    def _look(self, now: float) -> Iterator[Step]:
        at = time.time()
        kept = [live for live in self._live.values() if live.keeper]
        within = {live.keeper: live.container for live in kept if live.keeper and live.container}
        trees = self._trees.look([live.keeper for live in kept if live.keeper], within)
        seen = self._driver.look(at, now, whole=self._pins.suspects)
        for card in seen.cards.values():
            yield from card_steps(card)
        for live in list(self._live.values()):
            tree = trees.get(live.keeper) if live.keeper else None
            if tree is not None:
                yield from self._sample(live, tree, seen, at, now)
        self._pins.tidy({who for tree in trees.values() for who in tree.processes.items()})

    def _sample(
        self, live: SampledAttempt, tree: ProcessTree, seen: DriverSample, at: float, now: float
    ) -> Iterator[Step]:
        own = [seen.cards[uuid] for uuid in live.own or () if uuid in seen.cards]
        busy = [card.utilization for card in own if card.utilization is not None]
        used = [card.memory for card in own if card.memory is not None]
        memory = self._memory(live, tree, seen)
        yield from attempt_steps(
            AttemptSample(
                live.attempt,
                at,
                memory,
                tree.cpu_seconds,
                tree.resident,
                live.gpus,
                seconds=now - live.since,
                span=min(now - (live.seen_at or live.since), 2 * self._budget.period),
                utilization=fmean(busy) if busy else None,
                card_memory=sum(used) if used and len(used) == live.gpus else None,
            )
        )
        pin = self._judge(live, tree, seen)
        if pin is not None and pin != live.pin:
            yield pin_step(live.attempt, pin.state, pin.why)
        told = live.told
        if told is not None and memory is not None and memory > told * SAID_AGAIN:
            told = memory
            who = {"job": live.attempt.job, "number": live.attempt.number}
            self._link.say("peaked", **who, memory=memory)
        self._live[live.attempt] = replace(live, seen_at=now, pin=pin or live.pin, told=told)

    def _memory(self, live: SampledAttempt, tree: ProcessTree, seen: DriverSample) -> int | None:
        """Return the card memory of an attempt's processes, on all cards; None if unknown."""
        if not live.own or not all(uuid in seen.pids for uuid in live.own):
            return None
        known = self._pins.known(tree.processes)
        found = [pids[pid] for pids in seen.pids.values() for pid in pids if pid in known]
        if not found and not self._pins.host:
            return None
        return None if None in found else sum(memory or 0 for memory in found)

    def _judge(self, live: SampledAttempt, tree: ProcessTree, seen: DriverSample) -> Pin | None:
        """Return what is new of where an attempt is; None: nothing. Proof and disproof stand.

        That it is misplaced is told to the launcher, once.
        """
        before = live.pin.state if live.pin else None
        if live.own is None or before == "misplaced":
            return None
        pin = self._pins.judge(live.attempt, frozenset(live.own), tree.processes, seen)
        if pin is None or pin.state != "misplaced":
            return None if before == "verified" else pin
        pin = replace(pin, why=self._where(live, pin))
        who = {"job": live.attempt.job, "number": live.attempt.number}
        self._link.say("misplaced", **who, gpu=pin.gpu, pid=pin.pid, text=pin.why)
        return pin

    def _where(self, live: SampledAttempt, pin: Pin) -> str:
        own = ", ".join(map(self._driver.name, live.own or ())) or "none"
        command = command_of(pin.pid)
        shown = f"process {pin.pid} ({command})" if command else f"process {pin.pid}"
        return f"{shown} is on {self._driver.name(pin.gpu)}; the job's own: {own}"


class SamplingPace:
    """How long to wait from look to look, from what the looks have cost: ours and the helper's."""

    def __init__(self) -> None:
        self.period = PERIOD
        self._looks = 0
        self._before: tuple[int | None, float] | None = None

    def spent(self, helper: int | None) -> None:
        """Count a look's cost, but not that of starting a helper, which does not come again."""
        self._looks += 1
        if self._before is not None and self._before[0] != helper:
            self._before = None
        if self._before is None:
            self._looks, self._before = 0, (helper, time.process_time() + _cpu_of(helper))
        elif self._looks == MEASURED:
            total = time.process_time() + _cpu_of(helper)
            cost = (total - self._before[1]) / MEASURED
            self.period = min(LONGEST_PERIOD, max(PERIOD, cost / SHARE))
            self._looks, self._before = 0, (helper, total)


def _live(attempt: AttemptId, message: Mapping[str, Any]) -> SampledAttempt:
    return SampledAttempt(
        attempt,
        own=None if message["gpus"] is None else tuple(message["gpus"]),
        keeper=None if message["keeper"] is None else Keeper(*message["keeper"]),
        since=time.monotonic() - message["seconds"],
        container=message.get("container", ""),
        told=0 if message.get("learns") else None,
    )


def _on_the_host() -> bool:
    try:
        return sees_all_pids()
    except OSError:
        return False


def _cpu_of(pid: int | None) -> float:
    try:
        return cpu_of(stat_fields(str(pid)))
    except OSError:
        return 0.0


if __name__ == "__main__":
    main()
