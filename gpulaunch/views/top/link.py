"""What the screen asks of the outside. The command line answers; tests answer from memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeAlias

from gpulaunch.core.events import Request
from gpulaunch.core.facts import Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant, RunState
from gpulaunch.metrics.model import AttemptUse, CardSample

Dated: TypeAlias = tuple[Fact, Instant]
Why: TypeAlias = Callable[[str], str]
"""Why the job of that name waits, in words; empty where the run did not say."""


class SampleStore(Protocol):
    """What cards and attempts used, where it is measured; times in seconds since 1970 (UTC)."""

    def cards(self, uuid: str, since: float = 0.0, most: int = 240) -> list[CardSample]:
        """In time order."""

    def use(self, attempt: AttemptId) -> AttemptUse | None: ...

    def last_seen(self) -> float | None:
        """When the run was last seen alive."""

    def close(self) -> None: ...


class RunLink(Protocol):
    """One run. All but `ask` and `reasons` answer at once; those two may take seconds."""

    @property
    def root(self) -> str:
        """The run's directory, as people are to type it."""

    def read(self) -> list[Dated]:
        """The next facts, at most a bounded piece of them; empty at the end so far.

        Raises GpulaunchError where the journal is damaged.
        """

    def share(self) -> float:
        """How much of the journal was read: 0 to 1."""

    def past(self) -> Iterator[Dated]:
        """Every fact from the first on, read anew. Raises as `read` does."""

    def state(self, ledger: Ledger) -> RunState:
        """What the run is now: whether its supervisor lives is not in the journal."""

    def gone(self) -> bool:
        """The run's directory is no longer there."""

    def now(self) -> float:
        """Seconds since 1970 (UTC)."""

    def samples(self) -> SampleStore | None:
        """None: nothing is measured, as on pretend cards."""

    def log(self, attempt: AttemptId) -> os.PathLike[str] | str: ...

    def earlier(self) -> Mapping[str, float]:
        """How long jobs took in an earlier run of the same file, in seconds by name."""

    def reasons(self) -> Why:
        """Raises GpulaunchError where the run is silent."""

    def ask(self, request: Request) -> None:
        """Raises GpulaunchError where the run does not take it."""
