"""Whether jobs can be kept on this machine, as `gpulaunch doctor` says it."""

from __future__ import annotations

from gpulaunch.engines.programs import KeepersError, find_keepers
from gpulaunch.gpus.machine import DoctorFinding


def finding() -> DoctorFinding:
    """Return the finding of `gpulaunch doctor` on the keepers."""
    try:
        find_keepers()
    except KeepersError as problem:
        return DoctorFinding("error", str(problem))
    return DoctorFinding("ok", "jobs are kept by the compiled keepers")
