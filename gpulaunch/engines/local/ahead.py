"""The launch that probably comes next, prepared while others run.

    foresee ─▶ ready (in memory alone) ─┬▶ take: for exactly that launch
                                        └▶ dropped, for any other

INVARIANT: what was prepared is used only where preparing anew would give the same. So it is kept
for one attempt of one job on the same cards, and never for a job for which more is read or made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from msgspec import Struct

from gpulaunch.core.events import Launch
from gpulaunch.core.model import Job
from gpulaunch.engines.environment import AttemptPlace
from gpulaunch.engines.prepare import ports_for
from gpulaunch.errors import GpulaunchError
from gpulaunch.farside.ports import PortLease
from gpulaunch.gpus.port import PortPool
from gpulaunch.process.command import Command
from gpulaunch.process.ends import EndSlots


class PreparedAttempt(Struct, frozen=True):
    """An attempt that is ready to be sent to keepers: `message` is its command, encoded."""

    launch: Launch
    place: AttemptPlace
    command: Command
    message: bytes
    ports: tuple[PortLease, ...]


Make = Callable[[Launch, Sequence[PortLease]], tuple[AttemptPlace, Command, bytes]]


class PreparedAhead:
    """Keeps one launch that is ready. `make` prepares it, and touches nothing outside."""

    def __init__(self, ports: PortPool, slots: EndSlots, make: Make) -> None:
        self._ports = ports
        self._slots = slots
        self._make = make
        self._ready: PreparedAttempt | None = None

    def foresee(self, launch: Launch | None) -> None:
        """Prepare this launch, if it can be, in the place of the one that is kept."""
        if self._ready is not None and launch is not None and _same(self._ready.launch, launch):
            return
        self.drop()
        if launch is None or not _can_be_prepared(launch.job):
            return
        with ExitStack() as stack:
            stack.callback(self._slots.give_back, str(launch.attempt))
            ports: list[PortLease] = []
            stack.callback(self._ports.keep, ports)
            try:
                for _ in range(ports_for(launch.job)):
                    ports.append(self._ports.take())
                self._ready = PreparedAttempt(
                    launch, *self._make(launch, ports), ports=tuple(ports)
                )
            except (OSError, GpulaunchError):
                return  # the launch itself meets with that, and says so
            stack.pop_all()

    def take(self, launch: Launch) -> PreparedAttempt | None:
        """Return what was prepared for exactly this launch; its ports are the caller's then."""
        ready = self._ready
        if ready is None or not _same(ready.launch, launch):
            self.drop()
            return None
        self._ready = None
        return ready

    def drop(self) -> None:
        """Give back what is kept."""
        ready, self._ready = self._ready, None
        if ready is not None:
            self._slots.give_back(str(ready.launch.attempt))
            self._ports.keep(ready.ports)


def _same(one: Launch, other: Launch) -> bool:
    # A job that was changed, by a retry for one, is another value.
    return one.job is other.job and one == other


def _can_be_prepared(job: Job) -> bool:
    """Tell whether the job's command follows from the job, its cards and its ports alone."""
    files = (job.env_file, job.python, job.fasta, job.batch)
    helpers = (job.service, job.worker, job.preload)
    return job.isolation != "strict" and not any((*files, *helpers, *job.needs))
