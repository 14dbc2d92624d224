"""The sampler process: once a second, every card of the run and every live attempt.

    in   [news, ...], each {"do": "begin", "job": "a", "number": 1, "gpus": [UUID, ...] or null,
          "keeper": [pid, start, spent] or null, "since": 4711.5, "idle": 1800 or null,
          "container": FILE, "learns": true, "mps": true}
          or {"do": "end", ... as begin ..., "seconds": 9.5, "cpu_seconds": 31.2 or null}
    out  {"said": "misplaced", "job": "a", "number": 1, "gpu": UUID, "pid": 42, "text": "..."}
         {"said": "peaked", "job": "a", "number": 1, "memory": BYTES}
         {"said": "beside_mps", "job": "a", "number": 1}
         {"said": "idle", "job": "a", "number": 1, "seconds": 1800.2, "memory": 40802189312,
          "text": "..."}
         {"said": "unjudged", "job": "a", "number": 1, "why": "..."}
         {"said": "trouble", "text": "..."}

`gpus` is null on pretend cards. `since` is monotonic, the launcher's clock being this one's.
`idle`: after how many seconds of holding memory and computing nothing that is told. `container`,
where there is one, names the file that tells its first process. Where an attempt `learns`, what it
takes of its card's memory is said whenever it is more than before; with `mps`, it is to be a client
of its card's MPS server. What has come in counts from the next look on. The process ends, with the
last of that written down, when the launcher closes its end. A look that costs more than its share
makes the next one later.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from gpulaunch.agent.proc import stat_fields
from gpulaunch.base.wording import held_idle
from gpulaunch.core.model import AttemptId
from gpulaunch.gpus.probe import die_with_parent, is_the_same_here, sees_all_pids
from gpulaunch.gpus.socket_locks import command_of
from gpulaunch.observe.metrics.model import AttemptSample
from gpulaunch.observe.metrics.read import open_metrics
from gpulaunch.observe.metrics.store import (
    Step,
    Store,
    attempt_steps,
    card_steps,
    end_steps,
    energy_step,
    pin_step,
)
from gpulaunch.observe.sampler.attempts import IdleSample, SampledAttempt, look_at, sampled
from gpulaunch.observe.sampler.driver import CardSampler, DriverSample, reading
from gpulaunch.observe.sampler.energy import EnergyMeter, EnergyReading
from gpulaunch.observe.sampler.keeper import cpu_of
from gpulaunch.observe.sampler.tree import Pin, Pins, ProcessTree, Trees

PERIOD, LONGEST_PERIOD = 1.0, 10.0
SHARE = 0.008
MEASURED = 10  # looks after which the cost is reckoned anew


class SamplingPace:
    """How long to wait between looks: ours and the helper's cost less than SHARE of one core."""

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


def _cpu_of(pid: int | None) -> float:
    try:
        return cpu_of(stat_fields(str(pid)))
    except OSError:
        return 0.0


# ── The link to the launcher ──────────────────────────────────────────────────────────────────────

LARGEST_MESSAGE = 1 << 16


class LauncherLink:
    """The socket to the launcher: news in, findings out, one JSON value a message."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN | select.POLLRDHUP)
        self._news: list[dict[str, Any]] = []

    def say(self, said: str, **what: Any) -> bool:
        """Say something; return False where nobody listens, or nobody reads just now."""
        try:
            self._end.send(json.dumps({"said": said, **what}).encode())
        except OSError:
            return False
        return True

    def warn(self, text: str) -> None:
        """Say that something is not recorded."""
        self.say("trouble", text=text)

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


# ── Sampling ──────────────────────────────────────────────────────────────────────────────────────

LOOKS_BESIDE_MPS = 3
"""Looks in a row, until an attempt is taken to compute without its MPS server."""

SAID_AGAIN = 1.01  # times what was last said of an attempt's memory: less is no news


def main() -> None:
    """Sample; arguments: the launcher's PID, the database's path, [[index, UUID], ...] in JSON."""
    parent, path, cards = int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])
    die_with_parent(parent)
    link = LauncherLink(socket.socket(fileno=0))
    meter = EnergyMeter(_last_readings(path))
    store = Store(path, link.warn)
    driver = CardSampler(cards)
    try:
        Sampler(link, store, driver, meter).serve()
    finally:
        driver.close()
        store.close()


class Sampler:
    def __init__(
        self, link: LauncherLink, store: Store, driver: CardSampler, meter: EnergyMeter
    ) -> None:
        self._link = link
        self._store = store
        self._driver = driver
        self._meter = meter
        self._trees = Trees()
        self._pins = Pins(_on_the_host(), is_the_same_here)
        self._live: dict[AttemptId, SampledAttempt] = {}
        self._budget = SamplingPace()

    @property
    def _longest(self) -> float:
        """Seconds that one look stands for, at most."""
        return 2 * self._budget.period

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
            live = sampled(attempt, message)
            if message["do"] == "begin":
                self._live.setdefault(attempt, live)
                continue
            live = self._live.pop(attempt, live)
            self._pins.forget(attempt)
            for uuid in live.own or ():
                self._meter.ended(uuid, live.presence(uuid, live.since + message["seconds"]))
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
        yield from self._meter_cards(seen, now)
        self._pins.tidy({who for tree in trees.values() for who in tree.processes.items()})

    def _meter_cards(self, seen: DriverSample, now: float) -> Iterator[Step]:
        """Yield the steps that add what each card drew to those that were on it."""
        used: dict[AttemptId, float] = {}
        for uuid, card in seen.cards.items():
            lives = (live for live in self._live.values() if uuid in (live.own or ()))
            there = [live.presence(uuid, now) for live in lives]
            drawn = self._meter.look(uuid, reading(card, now), there, self._longest)
            for attempt, joules in drawn:
                used[attempt] = used.get(attempt, 0.0) + joules
        for attempt, joules in used.items():
            yield energy_step(attempt, joules)

    def _sample(
        self, live: SampledAttempt, tree: ProcessTree, seen: DriverSample, at: float, now: float
    ) -> Iterator[Step]:
        known = self._pins.known(tree.processes)
        look = look_at(live, known, seen, now, self._longest)
        memory = look.memory if look.holders or self._pins.host else None
        own = [seen.cards[uuid] for uuid in live.own or () if uuid in seen.cards]
        busy = [card.utilization for card in own if card.utilization is not None]
        used = [card.memory for card in own if card.memory is not None]
        yield from attempt_steps(
            AttemptSample(
                live.attempt,
                at,
                memory,
                tree.cpu_seconds,
                tree.resident,
                live.gpus,
                seconds=now - live.since,
                span=look.span,
                utilization=fmean(busy) if busy else None,
                card_memory=sum(used) if used and len(used) == live.gpus else None,
            )
        )
        pin = self._judge(live, tree, seen)
        if pin is not None and pin != live.pin:
            yield pin_step(live.attempt, pin.state, pin.why)
        live = replace(live, seen_at=now, pin=pin or live.pin, work=look.work)
        live = self._peaked(live, memory)
        if live.beside is not None:
            live = replace(live, beside=self._beside(live, live.beside, tree, seen))
        stopped = bool(look.holders) and look.holders <= tree.stopped
        held = memory if look.holders or memory is None else 0
        work = tuple(look.work.values())
        self._watch(live, IdleSample(look.span, look.gap, held, work, stopped))

    def _beside(
        self, live: SampledAttempt, before: int, tree: ProcessTree, seen: DriverSample
    ) -> int | None:
        """Return for how many looks the attempt computes without MPS; tell the launcher, once."""
        known = self._pins.known(tree.processes).keys()
        cards = [uuid for uuid in live.own or () if uuid in seen.clients]
        if any(known & seen.clients[uuid] for uuid in cards):
            return None
        looks = before + any(known & seen.pids[uuid].keys() for uuid in cards)
        if looks < LOOKS_BESIDE_MPS:
            return looks
        self._link.say("beside_mps", job=live.attempt.job, number=live.attempt.number)
        return None

    def _peaked(self, live: SampledAttempt, memory: int | None) -> SampledAttempt:
        """Tell that the attempt takes more memory than was told before, where that is learned."""
        if live.peak is None or memory is None or memory <= live.peak * SAID_AGAIN:
            return live
        who = {"job": live.attempt.job, "number": live.attempt.number}
        heard = self._link.say("peaked", **who, memory=memory)
        return replace(live, peak=memory) if heard else live

    def _watch(self, live: SampledAttempt, sample: IdleSample) -> None:
        """Count idle time; tell once that there is enough of it, and that it cannot be told."""
        if live.idle is not None and live.own:
            live = replace(live, watch=live.watch.after(sample))
            who = {"job": live.attempt.job, "number": live.attempt.number}
            if live.due == "idle":
                seconds, memory = live.watch.idle, sample.memory or 0
                text = held_idle(seconds, memory, map(self._driver.index, live.own or ()))
                what = {"seconds": seconds, "memory": memory, "text": text}
                live = live.after(self._link.say("idle", **who, **what))
            elif live.due == "unjudged":
                live = live.after(self._link.say("unjudged", **who, why=sample.why))
        self._live[live.attempt] = live

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


def _last_readings(path: Path) -> dict[str, EnergyReading]:
    """Return the cards' counters as an earlier sampler of the run saw them last."""
    reader = open_metrics(path)
    if reader is None:
        return {}
    with reader:
        back = time.monotonic() - time.time()
        counters = reader.counters()
        return {uuid: EnergyReading(at + back, energy) for uuid, (at, energy) in counters.items()}


def _on_the_host() -> bool:
    try:
        return sees_all_pids()
    except OSError:
        return False


if __name__ == "__main__":
    main()
