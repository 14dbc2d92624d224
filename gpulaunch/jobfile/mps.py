"""Checks what `mps: true` stands beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulaunch.core.model import Demand
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError

OWN_VARIABLES = frozenset({"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"})
"""Variables that say which daemon a program is a client of, and that gpulaunch alone sets."""
_WIDE = "it is for jobs of one card"
_ALONE = "for jobs that share a card: say so with share: true, or with per_gpu: how many do"
_STRICT = (
    "the service's processes are outside of the job's namespaces: leave isolation: out, whose"
    " default is env"
)
_CONTAINED = (
    "the service's directory and its IPC namespace are not handed into containers: leave it out, or"
    " run the job without container:"
)


def check(fields: Mapping[str, Any], demand: Demand, typed: bool) -> None:
    """Raise FieldError for what does not go with `mps: true`, which these fields have.

    `typed`: it stands at the job itself, and not in `defaults:`. A job without cards has no use
    for it, and passes over that of `defaults:`.
    """
    if not demand.gpus and not typed:
        return
    gather = ErrorCollector()
    if why := _why_not(fields, demand):
        here = why if typed else f"in defaults: {why}; else write mps: false in this job"
        gather.bads.append(FieldError(here, ("mps",)))
    for name in OWN_VARIABLES & (fields.get("env") or {}).keys():
        why = "gpulaunch sets it for a job with mps: true: leave it out"
        gather.bads.append(FieldError(why, ("env", name)))
    gather.done()


def _why_not(fields: Mapping[str, Any], demand: Demand) -> str:
    if not demand.gpus:
        return "a job without cards shares none: leave it out"
    if demand.gpus > 1:
        return _WIDE
    if not demand.shares_card or demand.per_gpu == 1:
        return _ALONE
    if fields.get("isolation") == "strict":
        return _STRICT
    return _CONTAINED if fields.get("container") else ""
