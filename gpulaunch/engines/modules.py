"""Has a job's environment modules loaded before its program, where that starts.

What gpulaunch says wins over what modules set: the mask, its own variables, the job's `env` (but
that modules may put directories before and behind), and the job's own Python comes first on PATH.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpulaunch.core.model import Job
from gpulaunch.engines.environment import first_on_path
from gpulaunch.environment_modules import loading
from gpulaunch.gpus.mask import MASK, MPS_LOGS, MPS_PIPES, ORDER

KEPT = (MASK, ORDER, MPS_PIPES, MPS_LOGS)
OF_PYTHON = ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONHOME")


def with_modules(
    job: Job, argv: tuple[str, ...], own: Mapping[str, str | None], run_dir: str
) -> tuple[str, ...]:
    """Return the command line of a program that finds the job's modules loaded; `argv` without any.

    `own`: what the job's `env_file` and `env` say.
    """
    if not job.modules:
        return argv
    first = first_on_path(job, run_dir)
    kept = (*KEPT, *(OF_PYTHON if first else ()))
    added = (*own, *(("PYTHONPATH",) if job.explain else ()))
    return loading(job.modules, argv, kept, added, os.pathsep.join(first))
