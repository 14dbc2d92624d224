"""Engines: carry the core's instructions out, on this machine or on a Slurm cluster.

An engine is chosen here alone: `setup_of(name)` is the module `setup` of its package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from gpulaunch.core.model import Selection
    from gpulaunch.engines.context import RunContext
    from gpulaunch.engines.pool import CardPool
    from gpulaunch.engines.protocol import Engine
    from gpulaunch.journal.choices import Choices


class EngineSetup(Protocol):
    """What is an engine's own before a run, and the engine itself."""

    def require_fitting(
        self, choices: Choices, words: Sequence[str], wait: float | None, /
    ) -> None:
        """Raise UsageError for options that do not go with the engine; `words` are sbatch's."""

    def open_pool(
        self,
        spec: str | Selection | None,
        choices: Choices,
        environ: Mapping[str, str],
        run: str,
        /,
    ) -> CardPool:
        """Return the cards that the run may use. Raises SelectionError or NoCardsError."""

    def require_here(self, pool: CardPool, environ: Mapping[str, str], /) -> None:
        """Raise an error if the engine cannot work here.

        NoCardsError: its programs are missing, or know of no cluster. UsageError: a wrong setting
        in the environment, or too few descriptors.
        """

    def runs_in_queue(self, environ: Mapping[str, str], /) -> tuple[list[Path], str]:
        """Return the directories of this user's runs that have jobs in the engine's queue.

        Also why that cannot be told; "" where it can.
        """

    def make(self, context: RunContext, pool: CardPool, words: Sequence[str], /) -> Engine:
        """Return the engine, ready for instructions."""


def setup_of(name: str) -> EngineSetup:
    """Return the setup of the engine of this name: `local` or `slurm`."""
    return cast(EngineSetup, import_module(f"gpulaunch.engines.{name}.setup"))
