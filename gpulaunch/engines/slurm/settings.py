"""What the engine of a Slurm cluster is told for a whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulaunch.errors import UsageError
from gpulaunch.jobfile.values import duration

CYCLE = "GPULAUNCH_SLURM_CYCLE"


@dataclass(frozen=True, slots=True)
class Settings:
    """`words` go to every sbatch. `cycle`: seconds between two looks at Slurm's queue."""

    words: tuple[str, ...] = ()
    cycle: float = 5.0

    @classmethod
    def of(cls, words: Sequence[str], environ: Mapping[str, str]) -> Settings:
        """Raises UsageError where GPULAUNCH_SLURM_CYCLE is no number of seconds above 0."""
        text = environ.get(CYCLE)
        if text is None:
            return cls(tuple(words))
        try:
            cycle = duration(text)
        except ValueError as error:
            raise UsageError(f"{CYCLE}: {error}") from None
        if not cycle:
            raise UsageError(f"{CYCLE}: expected a duration longer than 0")
        return cls(tuple(words), cycle)
