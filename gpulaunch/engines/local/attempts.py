"""Attempts on this machine: keeper pairs, one per set of leases, and what runs in them.

launch ─▶ prepare ─▶ Pair (idle one of that lease set, else a new one) ─▶ Started ─▶ Ended
                       └ the worker's own, where one goes on with it
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from gpulaunch.core.events import (
    BecameReady,
    Ended,
    EndWorker,
    Launch,
    Started,
    StopAttempt,
    WorkerEnded,
)
from gpulaunch.core.model import AttemptId, Interrupted, Lost, NotStarted, Outcome
from gpulaunch.core.template import render
from gpulaunch.engines.context import SCARCE, SCARCITY_RETRY_DELAY, RunContext
from gpulaunch.engines.end_diagnosis import EndDiagnosis
from gpulaunch.engines.environment import AttemptPlace
from gpulaunch.engines.local.cards import LeaseAwayError, LeaseLostError
from gpulaunch.engines.local.metering import Metering
from gpulaunch.engines.local.preloads import Preloads, ServerImporting
from gpulaunch.engines.local.ready import Readiness, address_of
from gpulaunch.engines.local.stragglers import kill_stragglers
from gpulaunch.engines.prepare import OutputDirs, prepare, scope, wants_port
from gpulaunch.engines.protocol import Post
from gpulaunch.errors import GpulaunchError
from gpulaunch.gpus.lease_client import LentLeases
from gpulaunch.gpus.names import bind_name
from gpulaunch.gpus.port import PortLease, reserve_port
from gpulaunch.loop import Loop
from gpulaunch.process import client
from gpulaunch.process.client import Pair, Spawner, SpawnerGoneError

Kept: TypeAlias = "tuple[tuple[str, ...], Spawner | None]"
IDLE_WITHOUT_CARD = 4
RELAUNCH_DELAY = 0.05
"""Seconds until an attempt that a leaving pair had not begun is launched on another pair."""
SHORT_ATTEMPT = 5.0
"""Seconds below which an attempt is short: a second pair is then forked for its leases."""
NEXT_PAIR_DELAY = 0.01
"""Seconds from the end of a short attempt until that second pair is forked."""


@dataclass(slots=True)
class _Live:
    """One attempt between its launch and its end, with its pair, its ports and its probe."""

    launch: Launch
    pair: Pair
    place: AttemptPlace
    ports: list[PortLease]
    server: Spawner | None = None
    readiness: Readiness | None = None
    stopped: str | None = None

    @property
    def worker(self) -> AttemptId:
        """The attempt with which this one's worker was started, or would be if it has one."""
        return self.launch.worker or self.launch.attempt


@dataclass(slots=True)
class _Idle:
    """A worker without an attempt: its pair of keepers, and its ports.

    The ports stay reserved: the worker's libraries may have opened them for good.
    """

    pair: Pair
    leases: tuple[str, ...]
    ports: list[PortLease]


class LocalAttempts:
    """Starts and stops attempts. Never chooses a card.

    `lend` gives the leases' descriptors; `hand_back` takes copies of a card's descriptors that a
    pair lent.
    """

    def __init__(
        self,
        context: RunContext,
        loop: Loop,
        post: Post,
        lend: Callable[[Sequence[str]], LentLeases],
        hand_back: Callable[[str, Sequence[int]], None],
        witness: EndDiagnosis,
        metering: Metering,
    ) -> None:
        self._context = context
        self._loop = loop
        self._post = post
        self._lend = lend
        self._hand_back = hand_back
        self._witness = witness
        self._metering = metering
        self._spawner: Spawner | None = None
        self._pairs = 0
        self._preloads = Preloads(
            context.run, context.base, loop, context.warn, self._served, self._server_gone
        )
        # By the leases that they hold, and by the preload server that forked them.
        self._idle: defaultdict[Kept, list[Pair]] = defaultdict(list)
        self._workers: dict[AttemptId, _Idle] = {}
        self._live: dict[AttemptId, _Live] = {}
        self._postponed: dict[AttemptId, Launch] = {}
        self._scarce: set[AttemptId] = set()
        self._declined: set[AttemptId] = set()
        self._unserved: list[AttemptId] = []
        self._cardless: list[AttemptId] = []
        self._holders: dict[Pair, tuple[str, ...]] = {}
        self._lenders: dict[str, Pair] = {}
        self._addresses: dict[str, str] = {}
        self._outs = OutputDirs()

    @property
    def on_cards(self) -> bool:
        """Whether any attempt runs on a card."""
        return any(live.launch.gpus for live in self._live.values())

    # ── Instructions ────────────────────────────────────────────────────────────────────────────

    def launch(self, launch: Launch) -> None:
        try:
            self._live[launch.attempt] = self._begin(launch)
        except ServerImporting:
            self._outs.over(str(self._context.run.out(launch.attempt)))
            self._postponed[launch.attempt] = launch
            self._unserved.append(launch.attempt)
        except LeaseAwayError:
            self._outs.over(str(self._context.run.out(launch.attempt)))
            self._postponed[launch.attempt] = launch
            self._cardless.append(launch.attempt)
        except LeaseLostError as error:
            self._outs.over(str(self._context.run.out(launch.attempt)))
            self._refuse(launch, Interrupted(str(error)))
        except OSError as error:
            if error.errno in SCARCE:
                self._postpone(launch, error.strerror or "")
                return
            where = f": {error.filename}" if error.filename else ""
            self._refuse(launch, NotStarted(f"{error.strerror}{where}"))
        except GpulaunchError as error:
            self._refuse(launch, NotStarted(str(error)))

    def _refuse(self, launch: Launch, outcome: Outcome) -> None:
        """Post the end of an attempt that never began. Its worker, if it has one, stays idle."""
        self._post(Ended(launch.attempt, outcome, kept=launch.worker in self._workers))

    def _postpone(self, launch: Launch, why: str, pause: float = SCARCITY_RETRY_DELAY) -> None:
        """Launch again after `pause` seconds; the attempt is not charged. Warns of `why` once."""
        attempt = launch.attempt
        self._postponed[attempt] = launch

        def again() -> None:
            if self._postponed.pop(attempt, None):
                if why and attempt not in self._scarce:
                    self._scarce.add(attempt)
                    self._context.warn(attempt.job, f"is tried again until it can start: {why}")
                self.launch(launch)

        self._loop.call_after(f"launch:{attempt}", pause, again)

    def _served(self) -> None:
        """Launch the attempts that waited for a preload server, which now serves or is gone."""
        waited, self._unserved = self._unserved, []
        self._launch_postponed(waited)

    def cards_settled(self) -> None:
        """Launch the attempts that waited to know whether the run still has their card's lease."""
        waited, self._cardless = self._cardless, []
        self._launch_postponed(waited)

    def _launch_postponed(self, attempts: Sequence[AttemptId]) -> None:
        for attempt in attempts:
            if launch := self._postponed.pop(attempt, None):
                self.launch(launch)

    def _server_gone(self, server: Spawner) -> None:
        for kept in [kept for kept in self._idle if kept[1] is server]:
            for pair in self._idle.pop(kept):
                self._dismiss(pair)

    def _begin(self, launch: Launch) -> _Live:
        """Launch the attempt and return what it holds; where that fails, nothing is held."""
        context = self._context
        idle = self._workers.get(launch.worker) if launch.worker else None
        with ExitStack() as stack:
            count = 2 if wants_port(launch.job) else 1
            ports = list(idle.ports) if idle else []
            ports += [stack.enter_context(reserve_port()) for _ in range(count - len(ports))]
            place = self._place(launch, ports)
            command = prepare(
                launch.job,
                launch.attempt,
                place,
                context.machine,
                context.base,
                context.run,
                self._outs,
            )
            seat = None if launch.job.worker else self._preloads.seat(launch.job, command)
            server = seat.server if seat else None
            if seat:
                command = replace(command, main=seat.main)
            if idle:
                pair = idle.pair
            else:
                pair = self._pair((tuple(gpu.uuid for gpu in launch.gpus), server))
                stack.callback(self._dismiss, pair)
            self._witness.begin(launch.attempt)
            pair.launch(command)
            if launch.worker:
                self._workers.pop(launch.worker, None)
            stack.pop_all()
            return _Live(launch, pair, place, ports, server)

    def stop(self, stop: StopAttempt) -> None:
        if live := self._live.get(stop.attempt):
            live.stopped = stop.by
            live.pair.stop(stop.reason, stop.now, stop.by)
        elif launch := self._postponed.pop(stop.attempt, None):
            self._refuse(launch, Interrupted(stop.by))

    def end_worker(self, instruction: EndWorker) -> None:
        """End an idle worker. For one that is gone (killed from outside), post its end at once."""
        if idle := self._workers.get(instruction.worker):
            idle.pair.retire(instruction.now)
        else:
            self._post(WorkerEnded(instruction.worker))

    def _worker_gone(self, pair: Pair) -> None:
        for worker, idle in list(self._workers.items()):
            if idle.pair is pair:
                del self._workers[worker]
                self._close(idle.ports)
                self._keep(pair, (idle.leases, None))
                self._post(WorkerEnded(worker))

    def give_back(self, gpu: str) -> None:
        """End the idle pairs that hold this card's lease."""
        for kept in [kept for kept in self._idle if gpu in kept[0]]:
            for pair in self._idle.pop(kept):
                self._dismiss(pair)

    def close(self) -> None:
        self._postponed.clear()
        self._cardless.clear()
        self._lenders.clear()
        for pairs in self._idle.values():
            for pair in pairs:
                self._dismiss(pair)
        self._idle.clear()
        for idle in self._workers.values():
            self._dismiss(idle.pair)
            self._close(idle.ports)
        self._workers.clear()
        for live in self._live.values():
            # The keepers end the attempt, as they do when the supervisor is killed.
            self._dismiss(live.pair)
            self._let_go(live)
        self._live.clear()
        self._outs.close()
        self._preloads.close()
        if self._spawner:
            self._spawner.close()

    # ── Pairs ───────────────────────────────────────────────────────────────────────────────────

    def _pair(self, kept: Kept) -> Pair:
        if self._idle[kept]:
            return self._idle[kept].pop(0)  # the longest idle one has its next child forked already
        return self._fork_pair(*kept)

    def borrow(self, gpu: str) -> bool:
        """Ask a pair that holds this card's lease to lend copies; return whether there is one."""
        for pair, leases in self._holders.items():
            if gpu in leases:
                self._lenders[gpu] = pair
                pair.lend()
                return True
        return False

    def _lent(self, pair: Pair, descriptors: Sequence[int]) -> None:
        """Hand back the copies of descriptors that a pair lent; none, where the pair leaves."""
        asked = [gpu for gpu, lender in self._lenders.items() if lender is pair]
        for gpu in asked:
            del self._lenders[gpu]
            self._hand_back(gpu, descriptors)
        for fd in descriptors:
            os.close(fd)

    def _fork_pair(self, leases: tuple[str, ...], server: Spawner | None) -> Pair:
        pair = self._forked(leases, server)
        self._holders[pair] = leases
        self._loop.watch(pair.fileno(), lambda: self._hear(pair))
        return pair

    def _forked(self, leases: tuple[str, ...], server: Spawner | None) -> Pair:
        self._pairs += 1
        name = f"keeper/{self._context.run_id}/{self._context.epoch}.{self._pairs}"
        with self._lend(leases) as lent, bind_name(name) as alive:
            if server:
                with suppress(SpawnerGoneError):  # its jobs start cold
                    return _pair_of(server, lent, alive.fileno(), leases)
            if self._spawner:
                with suppress(SpawnerGoneError):
                    return _pair_of(self._spawner, lent, alive.fileno(), leases)
                self._spawner.close()
            self._spawner = Spawner()
            return _pair_of(self._spawner, lent, alive.fileno(), leases)

    def _dismiss(self, pair: Pair) -> None:
        """Close an idle pair's socket. Its keepers exit on the end of file."""
        self._holders.pop(pair, None)
        self._lent(pair, ())
        self._loop.unwatch(pair.fileno())
        pair.close()

    def _rest(self, live: _Live) -> None:
        """Keep the pair of an attempt that is over, for the next one on the same leases."""
        self._keep(live.pair, _kept(live))

    def _keep(self, pair: Pair, kept: Kept) -> None:
        enough = not kept[0] and len(self._idle[kept]) >= IDLE_WITHOUT_CARD
        if enough or not self._still_forks(kept):
            self._dismiss(pair)
        else:
            self._idle[kept].append(pair)

    def _still_forks(self, kept: Kept) -> bool:
        """True while the spawner or preload server that forked such pairs forks new ones.

        No attempt asks for the pairs of a server that does not serve any more.
        """
        return kept[1] is None or self._preloads.serves(kept[1])

    def _fork_second_pair(self, kept: Kept) -> None:
        """Fork a second pair for these leases, so that one gets ready while the other works.

        Only while an attempt runs on these leases: its end gives them back otherwise.
        """
        if not self._still_forks(kept):
            return
        if not self._idle[kept] and any(_kept(live) == kept for live in self._live.values()):
            with suppress(OSError, GpulaunchError):
                self._idle[kept].append(self._fork_pair(*kept))

    # ── Reports ─────────────────────────────────────────────────────────────────────────────────

    def _hear(self, pair: Pair) -> None:
        for report in pair.on_readable():
            match report:
                case client.ProgramStarted(pid=pid, keeper=keeper):
                    self._started(self._of(pair), pid, keeper)
                case client.StartedCold(why=why, for_good=for_good):
                    live = self._of(pair)
                    if live.server:
                        self._preloads.began_cold(live.launch.job, live.server, why, for_good)
                case client.AttemptOver():
                    self._ended(report, self._of(pair))
                case client.WorkerReaped():
                    self._worker_gone(pair)
                case client.Unkillable(attempt=attempt, pids=pids):
                    self._context.warn(
                        None,
                        f"{attempt or 'an attempt'}: process {', '.join(map(str, pids))} cannot be "
                        "killed; its cards are not used again before it is gone",
                    )
                case client.Lent(descriptors):
                    self._lent(pair, descriptors)
                case client.PairLeft():
                    self._left(pair)
                case client.Gone():
                    self._gone(pair)

    def _left(self, pair: Pair) -> None:
        """Relaunch what a leaving pair had not begun; its end (`Gone`) is still to come.

        The pair was idle while this launcher was stopped, and takes nothing in any more.
        """
        self._forget(pair)
        for live in [live for live in self._live.values() if live.pair is pair]:
            launch = live.launch
            self._over(live)
            if live.stopped is not None:
                self._refuse(launch, Interrupted(live.stopped))
            elif launch.worker:
                why = "its worker was ended while this launcher was stopped"
                self._refuse(launch, Interrupted(why))
            else:
                self._postpone(
                    launch,
                    "",
                    SCARCITY_RETRY_DELAY if launch.attempt in self._declined else RELAUNCH_DELAY,
                )
                self._declined.add(launch.attempt)

    def _forget(self, pair: Pair) -> None:
        """Remove the pair, so that nothing is launched on it or borrowed from it any more."""
        for pairs in self._idle.values():
            with suppress(ValueError):
                pairs.remove(pair)
        self._holders.pop(pair, None)
        self._lent(pair, ())

    def _ended(self, report: client.AttemptOver, live: _Live) -> None:
        launch = live.launch
        self._over(live, report.kept)
        if report.kept:
            leases = tuple(gpu.uuid for gpu in launch.gpus)
            self._workers[live.worker] = _Idle(live.pair, leases, live.ports)
        else:
            self._rest(live)
            if launch.gpus and _was_short(report):
                again = partial(self._fork_second_pair, _kept(live))
                self._loop.call_after(f"pair:{launch.gpus[0].uuid}", NEXT_PAIR_DELAY, again)
        if report.note:
            self._context.warn(launch.attempt.job, report.note)
        if report.no_space:  # it filled up between the look for room and the keeper's record
            launch = replace(launch, worker=live.worker if report.kept else None)
            self._postpone(launch, os.strerror(errno.ENOSPC))
            return
        ended = Ended(
            launch.attempt,
            report.outcome,
            report.leftovers,
            report.started,
            report.ended,
            kept=report.kept,
        )
        self._witness.diagnose(ended, launch.job, launch.gpus, self._post)

    def _of(self, pair: Pair) -> _Live:
        return next(live for live in self._live.values() if live.pair is pair)

    def _started(self, live: _Live, pid: int, keeper: int) -> None:
        self._post(Started(live.launch.attempt, pid))
        goes_on = live.launch.worker is not None
        self._metering.begin(live.launch.attempt, pid, keeper, live.launch.gpus, goes_on)
        service = live.launch.job.service
        if service is None:
            return
        attempt = live.launch.attempt
        ready_at = render(service.ready, {"port": str(live.place.port or "")})
        self._addresses[attempt.job] = address_of(ready_at)
        self._await_readiness(live, ready_at)

    def _await_readiness(self, live: _Live, ready_at: str) -> None:
        attempt = live.launch.attempt

        def ready() -> None:
            self._end_readiness(live)
            self._post(BecameReady(attempt))

        def again() -> None:
            if self._live.get(attempt) is live:
                self._await_readiness(live, ready_at)

        try:
            live.readiness = Readiness(ready_at)
        except (OSError, RuntimeError):  # no descriptor, or no thread, is to be had now
            self._loop.call_after(f"ready:{attempt}", SCARCITY_RETRY_DELAY, again)
        else:
            self._loop.watch(live.readiness.fileno(), ready)

    def _end_readiness(self, live: _Live) -> None:
        if live.readiness:
            self._loop.unwatch(live.readiness.fileno())
            live.readiness.close()
            live.readiness = None

    def _over(self, live: _Live, kept: bool = False) -> None:
        attempt = live.launch.attempt
        self._metering.end(attempt, kept)  # before its keeper gets another
        del self._live[attempt]
        self._addresses.pop(attempt.job, None)
        if kept:
            self._end_readiness(live)
        else:
            self._let_go(live)
        self._outs.over(live.place.out)

    def _let_go(self, live: _Live) -> None:
        self._end_readiness(live)
        self._close(live.ports)

    def _close(self, ports: Sequence[PortLease]) -> None:
        for port in ports:
            port.close()

    def _gone(self, pair: Pair) -> None:
        """End what ran in a pair whose keepers are both gone: its worker and its attempts."""
        self._loop.unwatch(pair.fileno())
        pair.close()
        self._forget(pair)
        for worker, idle in list(self._workers.items()):
            if idle.pair is pair:
                del self._workers[worker]
                self._kill_stragglers(worker)
                self._close(idle.ports)
                self._post(WorkerEnded(worker))
        for live in [live for live in self._live.values() if live.pair is pair]:
            attempt = live.launch.attempt
            self._kill_stragglers(attempt)
            if live.worker != attempt:
                self._kill_stragglers(live.worker)
            self._over(live)
            self._post(Ended(attempt, Lost("its keeper was killed")))

    def _kill_stragglers(self, attempt: AttemptId) -> None:
        """Kill the attempt's processes, which live on where all keepers were killed at once."""
        count = kill_stragglers(self._context.run_id, attempt)
        if count:
            self._context.warn(attempt.job, f"{count} processes had outlived their keepers: killed")

    # ── Places ──────────────────────────────────────────────────────────────────────────────────

    def _place(self, launch: Launch, ports: Sequence[PortLease]) -> AttemptPlace:
        job, attempt = launch.job, launch.attempt
        return AttemptPlace(
            run=self._context.run_id,
            run_dir=str(self._context.run.path),
            attempt=attempt.number,
            out=str(self._context.run.out(attempt)),
            gpus=launch.gpus,
            style="uuid" if self._context.force_uuid else job.visible,
            scope=scope(self._context.run_id, attempt),
            master_port=ports[0].port,
            port=ports[1].port if len(ports) > 1 else None,
            addresses={n: self._addresses[n] for n in job.needs if n in self._addresses},
        )


def _pair_of(spawner: Spawner, lent: LentLeases, alive: int, leases: tuple[str, ...]) -> Pair:
    link = None if lent.link is None else lent.link.fileno()
    return spawner.pair(lent.descriptors, alive, link, gives_back=bool(leases))


def _kept(live: _Live) -> Kept:
    return tuple(gpu.uuid for gpu in live.launch.gpus), live.server


def _was_short(ended: client.AttemptOver) -> bool:
    if ended.started is None or ended.ended is None:
        return False
    return ended.ended.mono - ended.started.mono < SHORT_ATTEMPT
