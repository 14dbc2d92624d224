"""Keeps attempts to their `memory:`, by a cgroup for each process that a job or a worker is.

The cgroups are made when the first attempt that reserves memory is launched. Where none can be
made, memory is reserved all the same, and a line says once why it is not limited.
"""

from __future__ import annotations

import os

from gpulaunch.base.cgroups import RunCgroups, Unlimited
from gpulaunch.containers.engines import CARRIED
from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId
from gpulaunch.diagnose.failure.evidence import OwnMemory
from gpulaunch.engines.context import RunContext
from gpulaunch.gpus.machine import DoctorFinding
from gpulaunch.gpus.socket_locks import listening


class MemoryLimits:
    """The limits of a run's attempts: a cgroup for each process that a job or a worker is.

    A worker has one for its whole life, whatever it takes. The cgroups are made when the first
    attempt that reserves memory is launched. Where none can be made, memory is reserved all the
    same, and a line says once why it is not limited.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._cgroups: RunCgroups | Unlimited | None = None
        self._told: dict[AttemptId, int] = {}

    def entrance(self, launch: Launch) -> str:
        """Return the file by which the attempt's process enters its cgroup; empty for none."""
        cgroups = self._of(launch)
        return "" if cgroups is None else cgroups.procs(str(_seat(launch)))

    def begin(self, launch: Launch) -> None:
        """Make the cgroup of an attempt whose process is about to start. Raises OSError."""
        cgroups = self._of(launch)
        if cgroups is not None and launch.worker is None:
            self._told[launch.attempt] = 0
            cgroups.make(str(launch.attempt), launch.job.demand.memory)

    def used(self, launch: Launch) -> OwnMemory | None:
        """Return what is known of the memory of an attempt that has ended, None without a limit."""
        seat = _seat(launch)
        if not isinstance(self._cgroups, RunCgroups) or seat not in self._told:
            return None
        seen = self._cgroups.used(str(seat))
        if seen is None:
            return None
        before, self._told[seat] = self._told[seat], seen.kills
        return OwnMemory(seen.limit, seen.peak, max(0, seen.kills - before))

    def end(self, seat: AttemptId) -> None:
        """Remove the cgroup of a process that is gone, if it had one."""
        if self._told.pop(seat, None) is not None and isinstance(self._cgroups, RunCgroups):
            self._cgroups.remove(str(seat))

    def close(self) -> None:
        if isinstance(self._cgroups, RunCgroups):
            self._cgroups.close()

    def _of(self, launch: Launch) -> RunCgroups | None:
        """Return the cgroups, where the attempt is to be in one: not in a daemon's container."""
        job = launch.job
        if not job.demand.memory:
            return None
        if job.container is not None:
            image = self._context.images.get(job.container.source)
            if image is None or image.engine in CARRIED:
                return None
        if self._cgroups is None:
            self._cgroups = self._open()
        return self._cgroups if isinstance(self._cgroups, RunCgroups) else None

    def _open(self) -> RunCgroups | Unlimited:
        opened = opened_for(self._context.run_id)
        if isinstance(opened, Unlimited):
            self._context.warn(None, f"memory: is reserved, but no limit: {opened.why}")
        return opened


def opened_for(name: str) -> RunCgroups | Unlimited:
    """Return new cgroups of this name; removes what killed launchers have left beside them."""
    return RunCgroups.open(name, {run.partition("/")[2] for run in listening("run/")})


def enter_for_good(memory: int) -> str:
    """Limit this process's memory, and that of what it becomes; return why not, if so.

    Nobody removes the cgroup when it is over: the next run that makes cgroups does.
    """
    opened = opened_for(f"exec-{os.getpid()}")
    if isinstance(opened, Unlimited):
        return opened.why
    opened.make("exec", memory)
    with open(opened.procs("exec"), "w") as file:
        file.write("0")
    return ""


def finding() -> DoctorFinding:
    """Return whether jobs are limited to their `memory:` here; tries it with a process."""
    opened = opened_for(f"doctor-{os.getpid()}")
    if isinstance(opened, Unlimited):
        what = f"memory: of jobs is reserved and measured, and is no limit: {opened.why}"
        return DoctorFinding("note", what, opened.advice)
    opened.close()
    what = f"jobs are limited to their memory: by cgroups below {opened.directory.parent}"
    return DoctorFinding("ok", what)


def _seat(launch: Launch) -> AttemptId:
    return launch.worker or launch.attempt
