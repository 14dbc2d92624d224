"""The launches that probably come next, prepared while others run.

    foresee ─▶ ready, with an idle pair that is told of it ─┬▶ take: for exactly that launch
                                                            └▶ dropped, for any other

INVARIANT: what was prepared is used only where preparing anew would give the same. So it is kept
for one attempt of one job on the same cards, and never for a job for which more is read or made.
Nothing of the job is run, and nothing is made on disk, before it is taken and told to go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId, Job
from gpulaunch.engines.environment import AttemptPlace
from gpulaunch.engines.local.pairs import PairKind, Pairs
from gpulaunch.engines.prepare import ports_for
from gpulaunch.errors import GpulaunchError
from gpulaunch.farside.ports import PortLease
from gpulaunch.gpus.port import PortPool
from gpulaunch.process.client import Pair
from gpulaunch.process.command import Command
from gpulaunch.process.ends import EndSlots


class PreparedAttempt(Struct, frozen=True):
    """An attempt that is ready to be sent to keepers: `message` is its command, encoded.

    `pair`: the one of `kind` that has it already; None: there was no idle one, or it has left.
    """

    launch: Launch
    place: AttemptPlace
    command: Command
    message: bytes
    ports: tuple[PortLease, ...]
    kind: PairKind
    pair: Pair | None = None


Make = Callable[[Launch, Sequence[PortLease]], tuple[AttemptPlace, Command, bytes]]


class PreparedAhead:
    """Keeps launches that are ready. `make` prepares one, and touches nothing outside.

    `when_idle` calls back once nothing else is to be done: one launch is prepared at a time.
    """

    def __init__(
        self,
        pairs: Pairs,
        ports: PortPool,
        slots: EndSlots,
        make: Make,
        when_idle: Callable[[Callable[[], object]], object] = lambda call: call(),
    ) -> None:
        self._pairs = pairs
        self._ports = ports
        self._slots = slots
        self._make = make
        self._when_idle = when_idle
        self._ready: dict[AttemptId, PreparedAttempt] = {}
        self._wanted: deque[Launch] = deque()

    def foresee(self, launches: Sequence[Launch]) -> None:
        """Prepare these launches, if they can be, in the place of those that are kept."""
        coming = {launch.attempt: launch for launch in launches}
        for ready in list(self._ready.values()):
            launch = coming.get(ready.launch.attempt)
            if launch is None or not _same(ready.launch, launch):
                self._drop(ready)
        self._wanted = deque(
            launch
            for launch in launches
            if launch.attempt not in self._ready and _can_be_prepared(launch.job)
        )
        self._prepare_next()

    def _prepare_next(self) -> None:
        if self._wanted:
            self._prepare(self._wanted.popleft())
        if self._wanted:
            self._when_idle(self._prepare_next)

    def _prepare(self, launch: Launch) -> None:
        with ExitStack() as stack:
            stack.callback(self._slots.give_back, str(launch.attempt))
            ports: list[PortLease] = []
            stack.callback(self._ports.keep, ports)
            try:
                for _ in range(ports_for(launch.job)):
                    ports.append(self._ports.take())
                place, command, message = self._make(launch, ports)
            except (OSError, GpulaunchError):
                return  # the launch itself meets with that, and says so
            stack.pop_all()
        kind = _kind(launch)
        pair = self._pairs.take_idle(kind)
        if pair is not None:
            pair.foresee(command, message)
        self._ready[launch.attempt] = PreparedAttempt(
            launch, place, command, message, tuple(ports), kind, pair
        )

    def take(self, launch: Launch) -> PreparedAttempt | None:
        """Return what was prepared for exactly this launch; its ports are the caller's then.

        For any other launch, a pair that it can run on is idle if one was before.
        """
        ready = self._ready.get(launch.attempt)
        if ready is not None and _same(ready.launch, launch):
            return self._ready.pop(launch.attempt)
        if ready is not None:
            self._drop(ready)
        kind = _kind(launch)
        if not self._pairs.idle(kind):
            alike = [one for one in self._ready.values() if one.pair and one.kind == kind]
            for one in alike[-1:]:  # what comes last
                self._drop(one)
        return None

    def drop(self) -> None:
        """Give back all that is kept."""
        self._wanted.clear()
        for ready in list(self._ready.values()):
            self._drop(ready)

    def _drop(self, ready: PreparedAttempt) -> None:
        del self._ready[ready.launch.attempt]
        self._slots.give_back(str(ready.launch.attempt))
        self._ports.keep(ready.ports)
        if ready.pair is not None:
            ready.pair.unforesee()
            self._pairs.keep(ready.pair, ready.kind)

    def drop_on(self, gpu: str) -> None:
        """Give back what is kept for this card, whose lease is given back."""
        for ready in [one for one in self._ready.values() if gpu in one.kind.leases]:
            self._drop(ready)
        self._wanted = deque(one for one in self._wanted if gpu not in _kind(one).leases)

    def forget(self, pair: Pair) -> None:
        """Use a pair no more that has left, or is gone."""
        for attempt, ready in self._ready.items():
            if ready.pair is pair:
                self._ready[attempt] = replace(ready, pair=None)


def _kind(launch: Launch) -> PairKind:
    return PairKind(tuple(gpu.uuid for gpu in launch.gpus))


def _same(one: Launch, other: Launch) -> bool:
    # A job that was changed, by a retry for one, is another value.
    return one.job is other.job and one == other


def _can_be_prepared(job: Job) -> bool:
    """Tell whether the job's command follows from the job, its cards and its ports alone.

    That of a job with `mps` names its card's daemon, which may be another one by then.
    """
    files = (job.env_file, job.python, job.fasta, job.batch, job.container)
    helpers = (job.service, job.worker, job.preload)
    if job.isolation == "strict" or job.demand.mps:
        return False
    return not any((*files, *helpers, *job.needs))
