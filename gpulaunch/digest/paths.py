"""The paths of a run's directory that views need; `journal.rundir.RunDir` has them."""

from __future__ import annotations

import os
from typing import Protocol

from gpulaunch.core.model import AttemptId


class RunPaths(Protocol):
    @property
    def root(self) -> os.PathLike[str] | str:
        """The run directory, as people are to type it."""

    def log(self, attempt: AttemptId) -> os.PathLike[str] | str: ...

    def out(self, attempt: AttemptId) -> os.PathLike[str] | str: ...
