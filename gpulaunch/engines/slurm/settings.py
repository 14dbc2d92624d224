"""The settings of the Slurm engine for a whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulaunch.errors import UsageError
from gpulaunch.text import parse_span

CYCLE = "GPULAUNCH_SLURM_CYCLE"


@dataclass(frozen=True, slots=True)
class Settings:
    """A run's settings: `words` are options for every sbatch; `cycle` is the number of seconds
    between two looks at Slurm's queue."""

    words: tuple[str, ...] = ()
    cycle: float = 5.0

    @classmethod
    def of(cls, words: Sequence[str], environ: Mapping[str, str]) -> Settings:
        """Return the settings with the cycle of GPULAUNCH_SLURM_CYCLE.

        Raises UsageError where that is not a duration above 0.
        """
        text = environ.get(CYCLE)
        if text is None:
            return cls(tuple(words))
        try:
            cycle = parse_span(text)
        except ValueError as error:
            raise UsageError(f"{CYCLE}: {error}") from None
        if not cycle:
            raise UsageError(f"{CYCLE}: expected a duration longer than 0")
        return cls(tuple(words), cycle)
