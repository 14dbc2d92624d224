"""Where the metrics come from: the journal as it grows, and the newest samples of the cards.

What a scrape gets is a finished snapshot that nothing changes any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from threading import Lock

from prometheus_client.core import Metric

from gpulaunch.core.model import Instant
from gpulaunch.errors import GpulaunchError
from gpulaunch.journal.codec import now
from gpulaunch.journal.read import DamagedJournalError, Follower
from gpulaunch.metrics.model import CardSample
from gpulaunch.metrics.read import UNREADABLE, MetricsReader
from gpulaunch.prometheus.families import Tally, families, names

GAP = 1.0
"""Seconds between two looks at the journal, at least: scrapes in between see the same snapshot."""


class RunCollector:
    """A collector for the client library's registry, for any number of threads."""

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
