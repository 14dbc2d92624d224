"""A run's paths as people type them."""

from __future__ import annotations

from pathlib import Path

from gpulaunch.core.model import AttemptId
from gpulaunch.journal.find import (
    typed,
)
from gpulaunch.journal.rundir import RunDir


class TypedPaths:
    """A run's paths as people would type them from here; absolute ones with `/` as `base`."""

    def __init__(self, run: RunDir, base: str | None = None) -> None:
        self._run = run
        self._base = base

    @property
    def root(self) -> str:
        return self._typed(self._run.path)

    def log(self, attempt: AttemptId) -> str:
        return self._typed(self._run.log(attempt))

    def out(self, attempt: AttemptId) -> str:
        return self._typed(self._run.out(attempt))

    def keep(self, job: str) -> str:
        return self._typed(self._run.keep(job))

    def _typed(self, path: Path) -> str:
        return typed(path, self._base)
