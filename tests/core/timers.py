"""Timers by name, as tables of histories have them: `job/fold-1`, `gpu/GPU-0`, `gather`."""

from __future__ import annotations

from gpulaunch.core.events import (
    CardRecheck,
    DeadlockCheck,
    GangTimeout,
    HoldOutOver,
    RetryDue,
    Timer,
    WorkerIdleTimeout,
)
from gpulaunch.core.model import AttemptId


def timer_name(timer: Timer) -> str:
    """The timer's name; also what decides which of those that are due at once fires first."""
    match timer:
        case RetryDue(job):
            return f"job/{job}"
        case HoldOutOver(job):
            return f"elsewhere/{job}"
        case CardRecheck(gpu):
            return f"gpu/{gpu}"
        case WorkerIdleTimeout(worker):
            return f"worker/{worker}"
        case GangTimeout():
            return "gather"
        case DeadlockCheck():
            return "stuck"


def timer_of(name: str) -> Timer:
    """The timer of that name."""
    kind, _, of = name.partition("/")
    match kind:
        case "job":
            return RetryDue(of)
        case "elsewhere":
            return HoldOutOver(of)
        case "gpu":
            return CardRecheck(of)
        case "worker":
            job, _, number = of.rpartition(".")
            return WorkerIdleTimeout(AttemptId(job, int(number)))
        case "gather":
            return GangTimeout()
        case "stuck":
            return DeadlockCheck()
    raise AssertionError(f"no timer is called {name}")
