"""The launcher, as Hydra finds it. What it does is in `_sweep`, imported when it is set up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GpulaunchLauncher(Launcher):
    """Runs each Hydra job in a process of its own that sees its own card alone, as `cuda:0`.

    All that a sweeper launches is one run of gpulaunch, in `run_dir`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._sweep: Any = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from hydra_plugins.hydra_gpulaunch_launcher._sweep import Sweep

        self._sweep = Sweep(hydra_context, task_function, config, self._options)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs to their ends, and return what each came to; a failed one says why."""
        returns: Sequence[JobReturn] = self._sweep.launch(job_overrides, initial_job_idx)
        return returns
