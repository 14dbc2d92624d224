"""The screen's link to the outside. The command line implements it; tests do so in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeAlias

from gpulaunch.core.events import Request
from gpulaunch.core.facts import Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant, RunState
from gpulaunch.core.reasons import WaitReason
from gpulaunch.metrics.model import AttemptUse, CardSample

Dated: TypeAlias = tuple[Fact, Instant]
Why: TypeAlias = Callable[[str], WaitReason | None]
"""Why the job of that name waits; None where the run did not say."""


class SampleStore(Protocol):
    """What cards and attempts used, where it is measured; times in seconds since 1970 (UTC)."""

    def cards(self, uuid: str, since: float = 0.0, most: int = 240) -> list[CardSample]:
        """Return the card's samples in time order."""

    def use(self, attempt: AttemptId) -> AttemptUse | None: ...

    def last_seen(self) -> float | None:
        """Return when the run was last seen alive; None if never."""

    def close(self) -> None: ...


class RunLink(Protocol):
    """One run. All but `ask`, `add` and `reasons` answer at once; those may take seconds."""

    @property
    def root(self) -> str:
        """The run's directory, as people are to type it."""

    def read(self) -> list[Dated]:
        """Return the next facts, a bounded piece; empty at the end so far.

        Raises GpulaunchError where the journal is damaged.
        """

    def share(self) -> float:
        """Return how much of the journal was read: 0 to 1."""

    def past(self) -> Iterator[Dated]:
        """Yield every fact from the first on, read again. Raises as `read` does."""

    def state(self, ledger: Ledger) -> RunState:
        """Return the run's state now; the journal does not tell if its supervisor lives."""

    def gone(self) -> bool:
        """Tell whether the run's directory no longer exists."""

    def now(self, ledger: Ledger) -> Instant:
        """Return the time, as the run's own clocks have it."""

    def samples(self) -> SampleStore | None:
        """Return the samples; None if nothing is measured, as on pretend cards."""

    def log(self, attempt: AttemptId) -> os.PathLike[str] | str: ...

    def earlier(self) -> Mapping[str, float]:
        """Return how long jobs took in an earlier run of the file, in seconds by name."""

    def reasons(self) -> Why:
        """Ask the live run why jobs wait. Raises GpulaunchError if it does not answer."""

    def ask(self, request: Request) -> None:
        """Send a request to the live run. Raises GpulaunchError if the run refuses it."""

    def add(self, command: str) -> str:
        """Add a shell command to the list; return its job's name. Raises as `ask` does."""
