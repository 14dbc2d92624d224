"""What the driver says of the run's cards: their state, their work, the PIDs on any of the machine.

Asks through `gpus.discover`, which kills what hangs. A card that did not answer is asked again ever
later, and after some times no more: a process that hangs inside the kernel cannot even be killed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from gpulaunch.gpus.discover import DriverHelper
from gpulaunch.observe.metrics.model import CardSample
from gpulaunch.observe.sampler.energy import EnergyReading


class CardWork(Struct, frozen=True):
    """What a card has done since the look before; None is what the driver does not tell.

    The driver says of a card whether anything ran there, and of each process how much it did.
    Neither is told of a MIG instance, nor on WSL2. Under MPS the driver may count what a client
    does for its server: there only that the whole card stood still says something of one process.

    `computed`: per cent of the time in which a kernel ran or its memory was in use. `by`: how much
    each PID did that did anything, in a measure of its own. `served`: clients of MPS are on it.
    """

    computed: float | None = None
    by: dict[int, int] | None = None
    served: bool = False


def work_of(card: CardWork | None, own: Collection[int], there: Collection[int]) -> float | None:
    """Return how much an attempt's processes did on a card; 0: nothing; None: it cannot be told.

    `own`: their PIDs as the driver has them; `there`: all PIDs that the driver names on the card.
    """
    if card is None:
        return None
    if card.by and not card.served:
        return float(sum(card.by.get(pid, 0) for pid in own))
    if card.computed == 0 and not card.by:
        return 0.0
    if there and all(pid in own for pid in there):  # it is alone there
        return card.computed
    return None


# ── Looks ─────────────────────────────────────────────────────────────────────────────────────────

ANSWER_TIMEOUT = 2.0
PAUSES = (30.0, 60.0, 300.0, 900.0)
FIRST_SPAN = 1.0
"""Seconds before the first look, of which it is asked what processes did."""
SURVEY_AGAIN = 600.0  # seconds: cards come and go, MIG instances too
EVERY = 5
"""The cards that are not the run's are asked for their PIDs at each so many-th look."""

# nvmlClocksEventReason* of nvml.h. That a card is idle (1) holds nothing down.
REASONS = {
    0x2: "clocks set by the user",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}


_STUCK = ("Hung", "Crashed")


class SampledCard(Struct, frozen=True):
    """A card or a MIG instance. `index` is that of its card."""

    uuid: str
    index: int


class DriverSample(Struct, frozen=True):
    """One look. `pids`: by card, the memory of each PID that computes there, where it is told.
    `work`: what the run's cards did since the look before.

    `clients`: by card, which of these do so through MPS; a card is not there where it is not told.
    `silent` says why cards are not in `pids`. `whole`: those that are not the run's were looked at
    as well; only then can be said where a process is not.
    """

    cards: dict[str, CardSample] = field(default_factory=dict)
    pids: dict[str, dict[int, int | None]] = field(default_factory=dict)
    work: dict[str, CardWork] = field(default_factory=dict)
    clients: dict[str, frozenset[int]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    whole: bool = False


class _Sick(Struct):
    times: int
    until: float


class CardSampler:
    """`cards` are the run's, as (index, UUID); without any, the driver is not touched at all."""

    def __init__(
        self, cards: Sequence[tuple[int, str]], environ: Mapping[str, str] | None = None
    ) -> None:
        self._ours = [SampledCard(uuid, index) for index, uuid in cards]
        self._others: list[SampledCard] = []
        self._survey_at = float("-inf")
        self._unknown: dict[str, str] = {}
        self._mute: set[int] = set()
        self._sick: dict[str, _Sick] = {}
        self._helper = DriverHelper(environ, limit=ANSWER_TIMEOUT)
        self._looks = 0
        self._looked: float | None = None

    @property
    def pid(self) -> int | None:
        """The process that asks, while there is one."""
        return self._helper.pid

    def name(self, uuid: str) -> str:
        """Return `GPU 1` with its UUID."""
        places = {place.uuid: place for place in [*self._ours, *self._others]}
        return f"GPU {places[uuid].index} ({uuid})" if uuid in places else uuid

    def index(self, uuid: str) -> int:
        """Return the number of one of the run's cards; of a MIG instance, that of its card."""
        return next(place.index for place in self._ours if place.uuid == uuid)

    def look(self, at: float, now: float, whole: bool) -> DriverSample:
        """Return a look at all cards. Blocks, at most ANSWER_TIMEOUT for each sick card.

        `at` (UTC) stamps the samples; `now` is monotonic. `whole`: look at the cards that are not
        the run's too, whether or not it is their turn.
        """
        if not self._ours:
            return DriverSample()
        whole = whole or self._looks % EVERY == 0
        self._looks += 1
        if now >= self._survey_at:
            self._survey(now)
        since = at - FIRST_SPAN if self._looked is None else min(self._looked, at)
        self._looked = at
        asked = [("use", place) for place in self._ours]
        asked += [("pids", place) for place in self._others if whole]
        seen = DriverSample(whole=whole, silent=dict(self._unknown) if whole else {})
        put = []
        for ask, place in asked:
            sick = self._sick.get(place.uuid)
            if sick is not None and now < sick.until:
                seen.silent[place.uuid] = f"{self.name(place.uuid)} does not answer"
            else:
                more = {"since": since} if ask == "use" else {}
                put.append({"ask": ask, "index": place.index, "uuid": place.uuid, **more})
        for answer in self._helper.run(put):
            self._take(answer, at, now, seen)
        return seen

    def close(self) -> None:
        self._helper.close()

    def _take(self, answer: Mapping[str, Any], at: float, now: float, seen: DriverSample) -> None:
        uuid, error = answer["uuid"], answer.get("error")
        if error is not None:
            seen.silent[uuid] = f"{self.name(uuid)}: {error['text']}"
            if error["kind"] == "LookupError":  # it has another index by now, or is gone
                self._survey_at = min(self._survey_at, now + PAUSES[0])
            if error["kind"] in _STUCK:
                times = self._sick[uuid].times + 1 if uuid in self._sick else 0
                pause = PAUSES[times] if times < len(PAUSES) else float("inf")
                self._sick[uuid] = _Sick(times, now + pause)
            return
        self._sick.pop(uuid, None)
        if "pids_C" in answer:
            seen.pids[uuid] = dict([*answer["pids_C"], *answer.get("pids_M", ())])
            if "pids_M" in answer:
                seen.clients[uuid] = frozenset(pid for pid, _ in answer["pids_M"])
        else:
            why = answer["errors"].get("pids_C", {}).get("text", "no answer")
            seen.silent[uuid] = f"{self.name(uuid)} does not list its processes: {why}"
        if answer["ask"] == "use":
            seen.cards[uuid] = sample(uuid, at, answer)
            seen.work[uuid] = work(answer)

    def _survey(self, now: float) -> None:
        """Learn where the run's cards are, and which others there are: a job may get there."""
        self._survey_at, self._unknown = now + SURVEY_AGAIN, {}
        (machine,) = self._helper.run([{"ask": "machine"}])
        count = machine.get("count", 0) if "error" not in machine else 0
        if not count:
            self._unknown["machine"] = "the driver does not say how many cards there are"
        found: dict[str, SampledCard] = {}
        ours = {place.uuid: place for place in self._ours}
        indices = [n for n in range(count) if n not in self._mute]
        for answer in self._helper.run({"ask": "card", "index": n} for n in indices):
            index = answer["index"]
            if answer.get("error", {}).get("kind") in _STUCK:
                self._mute.add(index)
            uuids = [part["uuid"] for part in answer.get("mig") or [answer] if "uuid" in part]
            found |= {uuid: SampledCard(uuid, index) for uuid in uuids}
        known = {place.index for place in (*self._ours, *found.values())}
        for index in set(range(count)) - known:
            self._unknown[str(index)] = f"GPU {index} does not answer"
        self._ours = [found.get(uuid, place) for uuid, place in ours.items()]
        self._others = [place for uuid, place in found.items() if uuid not in ours]


def sample(uuid: str, at: float, answer: Mapping[str, Any]) -> CardSample:
    """Return the card's sample; of a MIG instance the power is that of its card."""
    power, energy, bits = answer.get("power"), answer.get("energy"), answer.get("throttled") or 0
    return CardSample(
        gpu=uuid,
        at=at,
        utilization=answer.get("utilization"),
        memory=answer.get("used"),
        power=None if power is None else power / 1000,  # NVML tells milliwatts, and millijoules
        temperature=answer.get("temperature"),
        throttled=tuple(name for bit, name in REASONS.items() if bits & bit),
        energy=None if energy is None else energy / 1000,
    )


def work(answer: Mapping[str, Any]) -> CardWork:
    """Return what the card did since the time that was asked for."""
    rates, entries = answer.get("rates"), answer.get("work")
    by: dict[int, int] = {}
    for pid, share in entries or ():
        by[pid] = by.get(pid, 0) + share
    return CardWork(
        computed=None if rates is None else max(rates),
        by=None if entries is None else by,
        served=bool(answer.get("pids_M")),
    )


def reading(card: CardSample, now: float) -> EnergyReading:
    """Return what the sample says of the card's energy, at this monotonic time.

    Nothing of a MIG instance: the driver tells no energy of it, and no power of its own.
    """
    watts = None if card.gpu.startswith("MIG-") else card.power
    return EnergyReading(now, card.energy, watts)
