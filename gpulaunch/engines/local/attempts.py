"""Attempts on this machine: each is prepared, launched on a keeper pair, and reported as ended.

launch ─▶ prepare ─▶ Pair (idle one of that lease set, else a new one) ─▶ AttemptStarted ─▶ Ended
  │                    └ the worker's own, where one goes on with it
  └ not now: PostponedLaunches ─▶ launch

Never chooses a card.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace as changed
from functools import partial
from itertools import chain, count
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.agent.ports import PortLease
from gpulaunch.agent.proc import named_unkillable
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.containers.engines import CARRIED
from gpulaunch.containers.removing import PID
from gpulaunch.core.causes import Because, EndCause
from gpulaunch.core.events import (
    Ended,
    EndWorker,
    Launch,
    StopAttempt,
    TakeBack,
    Unending,
    WorkerEnded,
)
from gpulaunch.core.facts import AttemptStarted, AttemptWarned
from gpulaunch.core.model import AttemptId, End, Failure, Interrupted, Lost, NotStarted, Outcome
from gpulaunch.core.placement import sharers
from gpulaunch.core.template import render
from gpulaunch.engines import client
from gpulaunch.engines.client import Pair
from gpulaunch.engines.context import SCARCE, SCARCITY_RETRY_DELAY, RunContext
from gpulaunch.engines.diagnosis import EndDiagnosis
from gpulaunch.engines.environment import AttemptPlace
from gpulaunch.engines.local.containers import end_stragglers
from gpulaunch.engines.local.leases import CardLeases
from gpulaunch.engines.local.memory_limits import MemoryLimits
from gpulaunch.engines.local.metering import Metering
from gpulaunch.engines.local.mps.services import (
    MpsFailedError,
    MpsServices,
    MpsStartingError,
)
from gpulaunch.engines.local.pairs import (
    PairKind,
    Pairs,
    PostInOrder,
    WaitingWorker,
    WaitingWorkers,
)
from gpulaunch.engines.local.preloads import ServerImporting
from gpulaunch.engines.local.readiness import Services
from gpulaunch.engines.prepare import (
    OutputDirs,
    ports_for,
    prepare,
    scope,
)
from gpulaunch.gpus.socket_locks import PortPool
from gpulaunch.journal.ends import EndSlots, text_of

# ── Postponed launches ────────────────────────────────────────────────────────────────────────────

Awaited: TypeAlias = Literal["server", "mps"]
"""What a launch waits for: a preload server that imports, or its card's MPS daemon."""


class PostponedLaunches:
    """Calls `launch` again for launches that could not be carried out. Charges no attempt."""

    def __init__(self, context: RunContext, launch: Callable[[Launch], None]) -> None:
        self._context = context
        self._launch = launch
        self._launches: dict[AttemptId, Launch] = {}
        self._waiting: defaultdict[Awaited, list[AttemptId]] = defaultdict(list)
        self._warned: set[AttemptId] = set()

    def retry_after(self, launch: Launch, seconds: float, why: str = "") -> None:
        """Launch again after so many seconds, and then warn of `why`, once per attempt."""
        attempt = launch.attempt
        self._launches[attempt] = launch

        def again() -> None:
            if not self._launches.pop(attempt, None):
                return
            if why and attempt not in self._warned:
                self._warned.add(attempt)
                self._context.warn(attempt.job, f"is tried again until it can start: {why}")
            self._launch(launch)

        self._context.loop.call_after(f"launch:{attempt}", seconds, again)

    def wait_for(self, launch: Launch, awaited: Awaited) -> None:
        """Launch again at the next call of `resume`."""
        self._launches[launch.attempt] = launch
        self._waiting[awaited].append(launch.attempt)

    def resume(self, awaited: Awaited) -> None:
        """Launch what waited for this."""
        for attempt in self._waiting.pop(awaited, ()):
            if launch := self._launches.pop(attempt, None):
                self._launch(launch)

    def cancel(self, attempt: AttemptId) -> Launch | None:
        """Remove and return the attempt's launch, if it was postponed."""
        return self._launches.pop(attempt, None)

    def clear(self) -> None:
        self._launches.clear()
        self._waiting.clear()


# ── Attempts ──────────────────────────────────────────────────────────────────────────────────────

RELAUNCH_DELAY = 0.05
"""Seconds until an attempt whose pair was killed before it began is launched on another pair."""
SHORT_ATTEMPT = 5.0
"""Seconds below which an attempt is short: a second pair is then forked for its leases."""
ANSWER_TIMEOUT = 30.0
"""Seconds after the grace of a stopped attempt until its keepers are taken for frozen.

They report a process that cannot be killed after 8."""
NEXT_PAIR_DELAY = 0.01
"""Seconds from the end of a short attempt until that second pair is forked."""
KEEPER_KILLED = Lost(Because("keeper_killed"))


class WorkerOverError(Exception):
    """The worker that was to go on with an attempt is gone."""


class _Running(Struct):
    """An attempt between its launch and its end, with its pair and its ports.

    `behind`: the attempt whose worker is to go on with it, and whose ports it then has. `slot`: its
    number among those that share its card, as far as that decides its CPUs.
    """

    launch: Launch
    pair: Pair
    place: AttemptPlace
    ports: tuple[PortLease, ...]
    kind: PairKind
    slot: int = 0
    stopped_by: EndCause | None = None
    behind: AttemptId | None = None

    @property
    def attempt(self) -> AttemptId:
        return self.launch.attempt

    @property
    def worker(self) -> AttemptId:
        """The attempt with which this one's worker was started, or would be if it has one."""
        return self.launch.worker or self.launch.attempt


class LocalAttempts:
    """Starts and stops attempts."""

    def __init__(
        self,
        context: RunContext,
        cards: CardLeases,
        diagnosis: EndDiagnosis,
        metering: Metering,
        slots: EndSlots,
    ) -> None:
        self._context = context
        self._placement = context.environments.machine.placement
        self._cards = cards
        self._diagnosis = diagnosis
        self._metering = metering
        self._postponed = PostponedLaunches(context, self.launch)
        self.pairs = Pairs(context, cards, self._hear, lambda: self._postponed.resume("server"))
        self.mps = MpsServices(context, self.pairs, lambda: self._postponed.resume("mps"))
        self._ports = PortPool()
        self._workers = WaitingWorkers(self.pairs, self._ports, self._worker_over)
        self._limits = MemoryLimits(context)
        self._services = Services(context)
        self._running: dict[AttemptId, _Running] = {}
        self._on_pair: dict[Pair, list[_Running]] = {}
        self._unread: set[AttemptId] = set()
        self._in_order = PostInOrder(context.post)
        self._outs = OutputDirs()
        self._slots = slots

    @property
    def unended(self) -> bool:
        """Whether any attempt has not ended."""
        return bool(self._running)

    @property
    def on_cards(self) -> bool:
        """Whether any attempt runs on a card."""
        return any(running.launch.gpus for running in self._running.values())

    # ── Instructions ────────────────────────────────────────────────────────────────────────────

    def launch(self, launch: Launch) -> None:
        """Start the attempt; where that fails, postpone the launch or post the attempt's end."""
        try:
            running = self._running[launch.attempt] = self._begin(launch)
            self._on_pair.setdefault(running.pair, []).append(running)
        except ServerImporting:
            self._end_out(launch.attempt)
            self._postponed.wait_for(launch, "server")
        except MpsStartingError:
            self._end_out(launch.attempt)
            self._postponed.wait_for(launch, "mps")
        except MpsFailedError as error:
            self._refuse(launch, NotStarted(str(error)), error.failure)
        except WorkerOverError:
            self._refuse(launch, Interrupted(Because("worker_ended")))
        except OSError as error:
            if error.errno in SCARCE:
                self._postponed.retry_after(launch, SCARCITY_RETRY_DELAY, error.strerror or "")
                return
            where = f": {error.filename}" if error.filename else ""
            self._refuse(launch, NotStarted(f"{error.strerror}{where}"))
        except GpulaunchError as error:
            self._refuse(launch, NotStarted(str(error)))

    def _refuse(self, launch: Launch, outcome: Outcome, why: Failure | None = None) -> None:
        """Post the end of an attempt that never began. Its worker, if it has one, waits on."""
        kept = launch.worker in self._workers
        self._in_order.post(Ended(launch.attempt, End(outcome, why), kept=kept), launch.behind)
        if launch.job.demand.mps:
            self.mps.forget(launch.attempt)
            self._review_mps()

    def give_back(self, gpu: str) -> None:
        """Close the idle pairs that hold the lease of a card which is about to be given back."""
        self.mps.end_on(gpu)
        self.pairs.give_back(gpu)

    def _begin(self, launch: Launch) -> _Running:
        """Launch the attempt and return what it holds; where that fails, nothing is held."""
        if launch.behind in self._running:
            return self._begin_behind(launch, self._running[launch.behind])
        worker = self._workers.get(launch.worker)
        if launch.behind and not worker:
            raise WorkerOverError
        if launch.job.demand.mps and not worker:
            self.mps.require(launch)
        running = self._begin_on_cards(launch, worker)
        self._diagnosis.begin(launch.attempt)
        if launch.worker:
            self._workers.remove(launch.worker)
        return running

    def _begin_on_cards(self, launch: Launch, worker: WaitingWorker | None) -> _Running:
        """Prepare and launch the attempt, on its worker's pair if it has a worker."""
        ports = list(worker.ports) if worker else []
        had = len(ports)
        pair: Pair | None = None
        try:
            for _ in range(had, ports_for(launch.job)):
                ports.append(self._ports.take())
            slot = worker.slot if worker else self._free_slot(launch)
            place = self._place(launch, ports, slot)
            command = prepare(launch, place, self._context, self._outs, self._slots)
            if launch.job.demand.memory:
                command = changed(command, cgroup=self._limits.entrance(launch))
                self._limits.begin(launch)
            server, command = self.pairs.preloads.served(launch.job, command)
            kind = PairKind(_leases(launch), server)
            pair = worker.pair if worker else self.pairs.take(kind)
            pair.launch(command)
        except BaseException:
            self._undo(launch, None if worker else pair, ports[had:])
            raise
        return _Running(launch, pair, place, tuple(ports), kind, slot)

    def _free_slot(self, launch: Launch) -> int:
        """Return the least number that no attempt or worker on the launch's cards has."""
        if not self._placement.splits(launch.job):
            return 0
        cards = {gpu.uuid for gpu in launch.gpus}
        beside = [one for one in self._running.values() if cards & set(one.kind.leases)]
        taken = {one.slot for one in beside} | self._workers.slots(cards)
        return next(number for number in count() if number not in taken)

    def _undo(self, launch: Launch, pair: Pair | None, ports: Sequence[PortLease]) -> None:
        """Give back what a launch that failed had."""
        self._limits.end(launch.attempt)
        if pair is not None:
            self.pairs.dismiss(pair)
        self._ports.give_back(ports)

    def _begin_behind(self, launch: Launch, leader: _Running) -> _Running:
        """Hand the attempt to the keepers of the one before it, which is still running."""
        place = self._place(launch, leader.ports, leader.slot)
        command = prepare(launch, place, self._context, self._outs, self._slots)
        leader.pair.launch_behind(command)
        return _Running(
            launch, leader.pair, place, (), leader.kind, leader.slot, behind=leader.attempt
        )

    def _place(self, launch: Launch, ports: Sequence[PortLease], slot: int = 0) -> AttemptPlace:
        job, attempt = launch.job, launch.attempt
        addresses = self._services.addresses
        beside, near = sharers(job.demand, launch.promised, launch.gpus), None
        if self._placement.gpus:
            near = self._placement.near(job, launch.gpus, slot, beside)
        mps = self.mps.variables(launch) if job.demand.mps else None
        return AttemptPlace(
            run=self._context.run_id,
            run_dir=str(self._context.run.path),
            attempt=attempt.number,
            out=self._context.run.out_dir(attempt),
            keep=self._context.run.keep_dir(attempt.job),
            gpus=launch.gpus,
            # To a client of MPS, a card has the number that it has among its daemon's.
            style="uuid" if self._context.force_uuid or mps else job.visible,
            scope=scope(self._context.run_id, attempt),
            master_port=ports[0].port,
            port=ports[1].port if len(ports) > 1 else None,
            addresses={name: addresses[name] for name in job.needs if name in addresses},
            step=launch.step.number if launch.step is not None else None,
            sharers=beside,
            near=near,
            mps=mps,
        )

    def stop(self, stop: StopAttempt) -> None:
        if running := self._running.get(stop.attempt):
            running.stopped_by = stop.by
            attempt = str(stop.attempt)
            by = text_of(stop.by)
            running.pair.stop(stop.reason, stop.now, by, attempt, gently=stop.gently)
            if not stop.gently:
                job = running.launch.job
                seconds = ANSWER_TIMEOUT + (0 if stop.now else job.grace)
                tell = partial(self._tell_unheard, stop.attempt)
                self._context.loop.call_after(("unheard", stop.attempt), seconds, tell)
        elif launch := self._postponed.cancel(stop.attempt):
            self._refuse(launch, Interrupted(stop.by))

    def take_back(self, instruction: TakeBack) -> None:
        """Withdraw an attempt that is behind another, unless it has begun."""
        attempt, by = instruction.attempt, Because("taken_back")
        running = self._running.get(attempt)
        if running is not None and running.behind is not None:
            running.stopped_by = running.stopped_by or by
            running.pair.take_back(str(attempt))
        elif launch := self._postponed.cancel(attempt):
            self._refuse(launch, Interrupted(by))

    def end_worker(self, instruction: EndWorker) -> None:
        self._workers.end(instruction)

    def close(self) -> None:
        """Close all pairs. The keepers end what runs, as they do when the supervisor is killed."""
        self._context.loop.catch_up()
        self._postponed.clear()
        self.pairs.close()
        self.mps.close()
        self._workers.close()
        for running in self._running.values():
            self._services.end(running.attempt)
            self._ports.give_back(running.ports)
        self._running.clear()
        self._on_pair.clear()
        self._ports.close()
        self._outs.close()
        self._limits.close()

    # ── Reports ─────────────────────────────────────────────────────────────────────────────────

    def _hear(self, pair: Pair) -> None:
        for report in pair.on_readable():
            match report:
                case client.ProgramStarted():
                    self._started(self._on(pair), report)
                case client.ProgramWarned(warning=warning):
                    self._context.post(AttemptWarned(self._on(pair).attempt, warning))
                case client.StartedCold(why=why, for_good=for_good):
                    running = self._on(pair)
                    if running.kind.server:
                        job = running.launch.job
                        self.pairs.preloads.began_cold(job, running.kind.server, why, for_good)
                case client.AttemptOver():
                    self._ended(report, self._on(pair))
                case client.Unbegun(attempt):
                    self._unbegun(pair, attempt)
                case client.WorkerReaped():
                    self._workers.reaped(pair)
                    self._review_mps()
                case client.Unkillable(attempt=attempt, pids=pids):
                    self._context.warn(
                        None,
                        f"{attempt or 'an attempt'}: {named_unkillable(pids)} cannot be "
                        "killed; its cards are not used again before it is gone",
                    )
                    self._tell_unending(pair, pids)
                case client.Gone(unread=unread):
                    self._pair_gone(pair, unread)

    def _tell_unending(self, pair: Pair, pids: Sequence[int]) -> None:
        """Post that the attempt on the pair, or the worker that waits there, does not end."""
        running = [one.attempt for one in self._all_on(pair)]
        for attempt in running[:1] or self._workers.on(pair):
            self._context.post(Unending(attempt, tuple(pids)))

    def _tell_unheard(self, attempt: AttemptId) -> None:
        """Warn that an attempt's keepers have not ended it in time: they may be frozen as well."""
        if attempt in self._running:
            text = f"{attempt} has not ended, and its keepers do not answer: are they frozen?"
            self._context.warn(None, text)
            self._context.post(Unending(attempt))

    def _review_mps(self) -> None:
        """End the MPS daemons of cards on which no attempt and no worker is any more."""
        running = (_leases(running.launch) for running in self._running.values())
        self.mps.review(frozenset(chain(self._workers.leases(), *running)))

    def _on(self, pair: Pair) -> _Running:
        return self._on_pair[pair][0]

    def _started(self, running: _Running, started: client.ProgramStarted) -> None:
        launch = running.launch
        self._in_order.post(AttemptStarted(launch.attempt, started.pid), launch.behind)
        goes_on = launch.worker is not None
        container = self._container(running)
        mps = running.place.mps is not None
        self._metering.begin(launch, started, goes_on, container, mps)
        if service := launch.job.service:
            ready = render(service.ready, {"port": str(running.place.port or "")})
            self._services.begin(launch.attempt, ready, service.ready_within)

    def _container(self, running: _Running) -> str:
        """Return the file that tells the first process of a container that a carrier stands for."""
        container = running.launch.job.container
        if container is None or self._context.images[container.source].engine not in CARRIED:
            return ""
        return str(self._context.run.container(running.worker) / PID)

    def _ended(self, report: client.AttemptOver, running: _Running) -> None:
        launch = running.launch
        memory = self._limits.used(launch) if launch.job.demand.memory else None
        post = partial(self._in_order.post, behind=launch.behind)
        tell = self.mps.telling(launch, post) if launch.job.demand.mps else post
        self._over(running, report.kept, report.cpu)
        follower = next(iter(self._all_on(running.pair)), None)
        if report.kept and follower:
            self._diagnosis.begin(follower.attempt)
            follower.behind, follower.ports = None, running.ports
        elif report.kept:
            ports, slot = running.ports, running.slot
            worker = WaitingWorker(running.pair, _leases(launch), launch.attempt, ports, slot)
            self._workers.put(running.worker, worker)
        elif not follower:  # else the pair is kept once it has given that one back
            self.pairs.keep(running.pair, running.kind)
            if launch.gpus and _was_short(report.end) and self.pairs.idle(running.kind) < 2:
                self._context.loop.call_after(
                    f"pair:{launch.gpus[0].uuid}",
                    NEXT_PAIR_DELAY,
                    lambda: self._fork_second_pair(running.kind),
                )
        if report.note:
            self._context.warn(launch.attempt.job, report.note)
        if report.no_space:  # it filled up between the look for room and the keeper's record
            worker_left = running.worker if report.kept else None
            launch = replace(launch, worker=worker_left, behind=None)
            why = os.strerror(errno.ENOSPC)
            self._postponed.retry_after(launch, SCARCITY_RETRY_DELAY, why)
            return
        self._in_order.is_over(launch.attempt)
        free = {} if report.kept else self._cards.memory_back(_leases(launch))
        ended = Ended(launch.attempt, report.end, report.kept, free)
        note = report.note if launch.job.worker else ""
        self._diagnosis.diagnose(ended, launch.job, launch.gpus, tell, memory, note)

    def _unbegun(self, pair: Pair, attempt: str) -> None:
        """Post the end of an attempt that was behind another; keep the pair where that is over."""
        running = next(one for one in self._all_on(pair) if str(one.attempt) == attempt)
        self._over(running, kept=True)
        if pair.attempt is None and running.worker not in self._workers:
            self.pairs.keep(pair, running.kind)
        by = running.stopped_by or Because("worker_ended")
        self._refuse(running.launch, Interrupted(by))

    def _fork_second_pair(self, kind: PairKind) -> None:
        """Fork a second pair for these leases, so that one gets ready while the other works.

        Only while an attempt runs on these leases: its end gives them back otherwise.
        """
        if any(running.kind == kind for running in self._running.values()):
            self.pairs.fork_ahead(kind)

    def _pair_gone(self, pair: Pair, unread: bool) -> None:
        """End what ran in a pair whose keepers are both gone: its worker and its attempts.

        `unread`: the keepers were killed before they read the launch of the attempt.
        """
        self._context.loop.unwatch(pair.fileno())
        pair.close()
        self.pairs.forget(pair)
        for worker, last in self._workers.pair_gone(pair):
            end_stragglers(self._context, worker)
            self._worker_over(worker, last)
        for running in self._all_on(pair):
            for attempt in dict.fromkeys((running.attempt, running.worker)):
                end_stragglers(self._context, attempt)
            self._over(running)
            if unread and self._launched_again(running):
                continue
            outcome = Interrupted(Because("worker_ended")) if running.behind else KEEPER_KILLED
            self._in_order.post(Ended(running.attempt, End(outcome)), running.launch.behind)

    def _launched_again(self, running: _Running) -> bool:
        """Refuse or relaunch an attempt that never began, as its keepers were killed before.

        Returns False where the same has happened to the attempt before: it is lost.
        """
        launch = running.launch
        if running.stopped_by is not None:
            self._refuse(launch, Interrupted(running.stopped_by))
        elif launch.worker:
            self._refuse(launch, Interrupted(Because("worker_ended")))
        elif launch.attempt in self._unread:
            return False
        else:
            self._unread.add(launch.attempt)
            self._postponed.retry_after(launch, RELAUNCH_DELAY)
        return True

    def _all_on(self, pair: Pair) -> list[_Running]:
        """Return the attempt that runs on the pair, then one that is behind it."""
        return list(self._on_pair.get(pair, ()))

    def _over(self, running: _Running, kept: bool = False, cpu: float | None = None) -> None:
        attempt = running.attempt
        if cpu is None:  # to be looked up before the keeper begins another attempt
            self._metering.end(attempt, kept)
        else:
            self._context.loop.later(lambda: self._metering.end(attempt, kept, cpu))
        del self._running[attempt]
        if running.stopped_by is not None:
            self._context.loop.forget(("unheard", attempt))
        self._on_pair[running.pair].remove(running)
        if not self._on_pair[running.pair]:
            del self._on_pair[running.pair]
        self._services.end(attempt)
        if running.place.mps is not None:
            self.mps.left(attempt)
            self._context.loop.later(self._review_mps)  # the next attempt may be there by then
        if not kept:
            self._context.loop.later(lambda: self._ports.give_back(running.ports))
            if running.launch.job.demand.memory:
                self._limits.end(running.worker)
        self._context.loop.later(lambda: self._end_out(attempt))

    def _worker_over(self, worker: AttemptId, last: AttemptId | None) -> None:
        """Post the end of a worker, after the end of the last attempt that it ran."""
        self._limits.end(worker)
        self._in_order.post(WorkerEnded(worker), last)

    def _end_out(self, attempt: AttemptId) -> None:
        self._outs.over(self._context.run.out_dir(attempt))


def _leases(launch: Launch) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in launch.gpus)


def _was_short(end: End) -> bool:
    if end.started is None or end.ended is None:
        return False
    return end.ended.mono - end.started.mono < SHORT_ATTEMPT
