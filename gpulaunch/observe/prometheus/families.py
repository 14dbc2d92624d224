"""A run's metrics: what each family is called, counts and means, and where its figures come from.

`families` is pure: tally and samples in. Labels are closed sets (states, failure classes) and the
run's cards; none ever names a job. What was not measured is absent, never 0. Units: OpenMetrics'
base ones. https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core import facts as f
from gpulaunch.core.ledger import AttemptRecord, GpuRecord, Ledger
from gpulaunch.core.model import AttemptId, AttemptState, GpuState, Instant, JobState
from gpulaunch.core.retry import POLICIES
from gpulaunch.journal.codec import now
from gpulaunch.journal.read import DamagedJournalError, Follower
from gpulaunch.observe.metrics.model import SAMPLE_MAX_AGE, CardSample
from gpulaunch.observe.metrics.read import UNREADABLE, MetricsReader
from gpulaunch.observe.present.usage import Ahead, Estimate
from gpulaunch.observe.present.words import visible

OTHER = "other"
"""Stands for every failure class that this version does not know: labels are a closed set."""


class Tally:
    """What the metrics count of one run. `see` every fact of its journal, from the first one on.

    INVARIANT: `ends`, `failures` and `retries` never go down: a resumed run's journal has the facts
    of its earlier supervisors too, so they count on.

    `earlier`: how long jobs took in an earlier run of the same file, in seconds by name.
    """

    def __init__(self, earlier: Mapping[str, float] | None = None) -> None:
        self.ledger = Ledger()
        self.ends: Counter[AttemptState] = Counter()
        self.failures: Counter[str] = Counter()
        self.retries = 0
        self._open: set[AttemptId] = set()
        self._estimate = Estimate(earlier)

    def see(self, fact: f.Fact, at: Instant) -> None:
        """Count a fact. Raises KeyError or IndexError where it fits nothing before it."""
        self.ledger.apply(fact, at)
        match fact:
            case f.AttemptLaunched(attempt):
                self._open.add(attempt)
                self.retries += self._tries_again(attempt)
            case f.AttemptEnded(attempt, end):
                self._open.discard(attempt)
                self.ends[self.ledger.attempt(attempt).state] += 1
                if end.failure is not None:
                    kind = end.failure.kind
                    self.failures[kind if kind in POLICIES else OTHER] += 1
        self._estimate.see(fact, at, self.ledger)

    @property
    def running(self) -> list[AttemptRecord]:
        """Attempts whose end is not recorded, less those that wait in an engine's queue."""
        attempts = (self.ledger.attempt(attempt) for attempt in self._open)
        return [attempt for attempt in attempts if not attempt.in_queue]

    @property
    def queued(self) -> int:
        """Jobs that wait and will run: those that a resume no longer found in the file do not."""
        return self.ledger.counts["waiting"]

    def ahead(self, now: Instant) -> Ahead | None:
        """Return the seconds still to go; None if too little is known, or the run ends or has."""
        over = self.ledger.closed is not None or self.ledger.stopping is not None
        return None if over else self._estimate.ahead(now)

    def _tries_again(self, attempt: AttemptId) -> bool:
        """Tell whether an attempt follows one of its round that failed or was lost.

        One that was interrupted goes on: that is no new try.
        """
        job = self.ledger.jobs[attempt.job]
        if attempt.number <= job.budget_from:
            return False
        return job.attempts[attempt.number - 2].state in ("failed", "lost")


ENDS: tuple[AttemptState, ...] = ("succeeded", "failed", "cancelled", "interrupted", "lost")
_CARD = ("gpu", "uuid")


def families(
    tally: Tally, samples: Mapping[str, CardSample], now: Instant, energy: float | None = None
) -> tuple[Metric, ...]:
    """Return every family that has a sample. `samples`: the newest of each card (UUID).

    `energy`: the joules of all attempts so far.
    """
    found = (*_run(tally, now), *_jobs(tally), *_cards(tally), *_measured(tally, samples, now))
    found = (*found, _energy(energy))
    return tuple(family for family in found if family.samples)


def names() -> tuple[Metric, ...]:
    """Return every family there can be, without samples."""
    nothing = Tally()
    at = Instant(0.0, 0.0)
    found = (*_run(nothing, at), *_jobs(nothing), *_cards(nothing), *_measured(nothing, {}, at))
    found = (*found, _energy(None))
    for family in found:
        family.samples.clear()
    return found


def _run(tally: Tally, now: Instant) -> Iterator[Metric]:
    ledger = tally.ledger
    info = {
        "run": visible(ledger.opening.run),
        "name": visible(ledger.opening.name),
        "version": visible(ledger.opening.version),
        "simulated": "true" if ledger.opening.simulated else "false",
    }
    yield InfoMetricFamily("gpulaunch_run", "The run; simulated: on pretend cards.", info)
    began = ledger.opened.utc if ledger.opened else None
    yield _gauge("gpulaunch_run_start_timestamp", "When the run first began.", began, "seconds")
    elapsed = None if began is None else max(0.0, ledger.clock(now))
    yield _gauge("gpulaunch_run_elapsed", "Time since the run first began.", elapsed, "seconds")
    yield from _ahead(tally.ahead(now))
    yield _gauge(
        "gpulaunch_run_paused",
        "1 while nothing new starts: too many failed alike, a full disk, outside its hours.",
        float(ledger.paused is not None),
    )


def _ahead(ahead: Ahead | None) -> Iterator[Metric]:
    guess, low, high = (ahead.seconds, ahead.low, ahead.high) if ahead else (None, None, None)
    for name, text, value in (
        ("", "Time until the run's end, guessed from its finished jobs.", guess),
        ("_low", "The lower end of the range that holds four times of five.", low),
        ("_high", "The upper end of the range that holds four times of five.", high),
    ):
        yield _gauge(f"gpulaunch_run_estimated_remaining{name}", text, value, "seconds")


def _jobs(tally: Tally) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("gpulaunch_jobs", "Jobs by their present state.", labels=["state"])
    for state in get_args(JobState):
        jobs.add_metric([state], tally.ledger.counts[state])
    yield jobs
    yield _gauge("gpulaunch_queue_length", "Jobs that wait to be started.", tally.queued)
    running = tally.running
    yield _gauge("gpulaunch_attempts_running", "Attempts under way.", len(running))
    yield _gauge(
        "gpulaunch_attempt_oldest_start_timestamp",
        "When the longest running attempt started, services left out.",
        _oldest(running, tally.ledger),
        "seconds",
    )
    ends = CounterMetricFamily("gpulaunch_attempts", "Ended attempts.", labels=["outcome"])
    for end in ENDS:
        ends.add_metric([end], tally.ends[end])
    yield ends
    failures = CounterMetricFamily(
        "gpulaunch_failures", "Ended attempts that failed, by failure class.", labels=["failure"]
    )
    # Every class from the beginning: increase() does not see a series that begins with 1.
    for failure in (*POLICIES, OTHER):
        failures.add_metric([failure], tally.failures[failure])
    yield failures
    yield CounterMetricFamily(
        "gpulaunch_retries", "Attempts started because the one before failed.", tally.retries
    )


def _cards(tally: Tally) -> Iterator[Metric]:
    cards = tally.ledger.gpus.values()
    counted = GaugeMetricFamily("gpulaunch_gpus", "The run's cards by state.", labels=["state"])
    info = InfoMetricFamily("gpulaunch_gpu", "A card of the run.", labels=_CARD)
    states = StateSetMetricFamily(
        "gpulaunch_gpu_state", "What the run does with the card.", labels=_CARD
    )
    given_back = _of_card("gpulaunch_gpu_drained", "1 for a card given back by gpulaunch drain.")
    attempts = _of_card("gpulaunch_gpu_attempts_running", "Attempts under way on the card.")
    oldest = _of_card(
        "gpulaunch_gpu_oldest_start_timestamp",
        "When the card's longest running attempt started, services left out.",
        "seconds",
    )
    for state in get_args(GpuState):
        counted.add_metric([state], sum(card.state == state for card in cards))
    for card in cards:
        label = _label(card)
        simulated = "true" if card.gpu.simulated else "false"
        info.add_metric(label, {"name": visible(card.gpu.name), "simulated": simulated})
        states.add_metric(label, {state: state == card.state for state in get_args(GpuState)})
        given_back.add_metric(label, float(card.drained))
        attempts.add_metric(label, len(card.attempts))
        on_it = [tally.ledger.attempt(attempt) for attempt in card.attempts]
        _put(oldest, label, _oldest(on_it, tally.ledger))
    yield from (counted, info, states, given_back, attempts, oldest)


def _measured(
    tally: Tally, samples: Mapping[str, CardSample], now: Instant
) -> tuple[GaugeMetricFamily, ...]:
    """Return what the driver tells of the cards; of a pretend card, nothing."""
    busy = _of_card("gpulaunch_gpu_utilization", "Share of time with a kernel running.", "ratio")
    used = _of_card("gpulaunch_gpu_memory_used", "Memory in use, by anyone.", "bytes")
    total = _of_card("gpulaunch_gpu_memory_total", "The card's memory.", "bytes")
    power = _of_card("gpulaunch_gpu_power", "Power drawn.", "watts")
    heat = _of_card("gpulaunch_gpu_temperature", "Temperature of the chip.", "celsius")
    for uuid, card in tally.ledger.gpus.items():
        if card.gpu.simulated:
            continue
        label = _label(card)
        _put(total, label, card.gpu.memory or None)
        sample = samples.get(uuid)
        if sample is None or abs(now.utc - sample.at) > SAMPLE_MAX_AGE:
            continue
        _put(busy, label, None if sample.utilization is None else sample.utilization / 100)
        _put(used, label, sample.memory)
        _put(power, label, sample.power)
        _put(heat, label, sample.temperature)
    return busy, used, total, power, heat


def _energy(joules: float | None) -> CounterMetricFamily:
    text = "Energy of the attempts' cards while they ran, as far as it was measured."
    return CounterMetricFamily("gpulaunch_attempts_energy", text, joules, unit="joules")


def _oldest(attempts: Iterable[AttemptRecord], ledger: Ledger) -> float | None:
    jobs = [attempt for attempt in attempts if not ledger.jobs[attempt.id.job].definition.service]
    return min(((attempt.started or attempt.launched).utc for attempt in jobs), default=None)


def _label(card: GpuRecord) -> list[str]:
    """Return the index, which people know a card by (MIG parts share it), and the UUID."""
    return [str(card.gpu.index), visible(card.gpu.uuid)]


def _of_card(name: str, text: str, unit: str = "") -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=_CARD, unit=unit)


def _gauge(name: str, text: str, value: float | None, unit: str = "") -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value, unit=unit)


def _put(family: GaugeMetricFamily, label: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(label, value)


# ── Collector ─────────────────────────────────────────────────────────────────────────────────────

GAP = 1.0
"""Seconds between two looks at the journal, at least: scrapes in between see the same snapshot."""


class RunCollector:
    """A collector for the client library's registry, for any number of threads.

    It follows the journal as it grows, and takes the newest samples of the cards. A scrape gets a
    finished snapshot that nothing changes any more.
    """

    def __init__(
        self,
        journal: Path,
        open_samples: Callable[[], MetricsReader | None],
        earlier: Mapping[str, float] | None = None,
        clock: Callable[[], Instant] = now,
    ) -> None:
        """`earlier` as for Tally. Raises UsageError where there is no journal."""
        self._follower = Follower(journal)
        self._open_samples = open_samples
        self._lock = Lock()
        self._clock = clock
        self._tally = Tally(earlier)
        self._snapshot: tuple[Metric, ...] = ()
        self._error: GpulaunchError | None = None
        self._next = float("-inf")

    def collect(self) -> tuple[Metric, ...]:
        """Return what is recorded; within `GAP` of the last time, what was then.

        Raises GpulaunchError where the journal could not be understood: values that stand still
        would pass for a run that does.
        """
        with self._lock:
            if not self._error and time.monotonic() >= self._next:
                self._refresh()
            if self._error:
                raise self._error
            return self._snapshot

    def _refresh(self) -> None:
        try:
            for fact, at in self._follower.read():
                self._tally.see(fact, at)
        except (KeyError, IndexError) as error:
            self._error = DamagedJournalError(f"the journal is damaged: nothing knows {error}")
        except OSError as error:  # what was read before it is lost: there is no going on
            self._error = GpulaunchError(f"the journal cannot be read: {error.strerror}")
        except GpulaunchError as error:
            self._error = error
        samples, energy = self._latest()
        self._snapshot = families(self._tally, samples, self._clock(), energy)
        self._next = time.monotonic() + GAP

    def describe(self) -> tuple[Metric, ...]:
        """Return what `?name[]=` can pick from."""
        return names()

    def _latest(self) -> tuple[Mapping[str, CardSample], float | None]:
        """Return the newest sample of each card, and the joules of all attempts."""
        try:
            # Opened each time: a connection of SQLite is one thread's own.
            samples = self._open_samples()
            if samples is None:
                return {}, None
            with closing(samples):
                return samples.latest(), samples.totals()[0]
        except (*UNREADABLE, OSError):
            return {}, None
