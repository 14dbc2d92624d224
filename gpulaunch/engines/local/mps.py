"""MPS's control daemons: one for each card on which attempts with `mps: true` run.

    Launch ─▶ none: begin ─▶ starting ─"ready"─▶ up ─▶ the attempt, as its client
                                 │               │ nothing of the run is on the card any more
                                 ▼               ▼
                              failed, died ─▶ ending ─▶ gone: its lease is given up, its card drains

A daemon is the job of a keeper pair of its own, which holds the card's lease: so it is ended
whoever is killed. Between the keepers and the daemon stands the guard (`farside/mps.py`), which
knows when the daemon is ready, and ends it after its clients. This module starts and ends guards
and says what became of them; it never chooses a card, and never signals a process.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.core.causes import Hint, SharedFate
from gpulaunch.core.events import Ended, Launch
from gpulaunch.core.model import AttemptId, Failure, Gpu, Job
from gpulaunch.core.retry import failure_of
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import MpsPlace
from gpulaunch.engines.local import mps_dirs
from gpulaunch.engines.local.pairs import PairKind, Pairs
from gpulaunch.errors import GpulaunchError
from gpulaunch.farside.proc import named_unkillable
from gpulaunch.gpus.mps import LOGS, PIPES, PROGRAM, find_program
from gpulaunch.gpus.visible import visible
from gpulaunch.own_files import farside_command
from gpulaunch.process import client
from gpulaunch.process.client import Pair
from gpulaunch.process.command import Command

START_TIMEOUT = 30.0
"""Seconds until a daemon has to have a server that answers. It mostly takes one; longer on machines
with several cards and no persistence daemon, says NVIDIA's troubleshooting guide of MPS."""
QUIT_TIMEOUT = 10.0
"""Seconds until a daemon without clients has to end, once it was told to quit."""
CLIENTS_MARGIN = 5.0
"""Seconds beyond the longest grace of its clients that a daemon waits for them to end."""
GUARDS_GRACE = 86400.0
"""Seconds after which keepers end a guard by force, against a mistake of ours: it ends by itself,
once the clients' grace is over, and that may be any time."""
SHARED_FATE = 10.0
"""Seconds after an attempt's end for which its neighbours' ends may come from the same fault."""
FATAL = frozenset({"crash", "assert", "gpu_library", "mps"})
"""Failure classes of what ends all clients on the card, NVIDIA says, if it ends one."""
DOUBTFUL = FATAL | {"exit", "signal", "secondary"}
"""Failure classes that a client may have of its daemon's death."""

Tell: TypeAlias = Callable[[Ended], None]


class MpsStartingError(GpulaunchError):
    """The card's daemon is not up yet, or an earlier one is not gone."""


class MpsFailedError(GpulaunchError):
    """The card's daemon did not come up; `failure` is the attempt's."""

    def __init__(self, failure: Failure) -> None:
        super().__init__("MPS did not start")
        self.failure = failure


class MpsService(Struct, eq=False):
    """One daemon. `clients`: attempts that had it, with when each ended (monotonic), None before.

    `waiting`: attempts whose launch waits for it. `lock` keeps its directory from being removed as
    a leftover until the guard does; -1 once that is connected. `died`: how it failed.
    """

    gpu: Gpu
    place: MpsPlace
    directory: str
    lock: int
    listener: socket.socket
    pair: Pair
    grace: float
    state: Literal["starting", "up", "ending"] = "starting"
    link: socket.socket | None = None
    heard: bytes = b""
    died: str = ""
    waiting: set[AttemptId] = field(default_factory=set)
    clients: dict[AttemptId, float | None] = field(default_factory=dict)
    then: list[Callable[[], object]] = field(default_factory=list)


class MpsServices:
    """The daemons of a run. `resume`: launch again what waits for one."""

    def __init__(self, context: RunContext, pairs: Pairs, resume: Callable[[], object]) -> None:
        self._context = context
        self._pairs = pairs
        self._resume = resume
        self._on: dict[str, MpsService] = {}
        self._by_pipes: dict[str, MpsService] = {}
        self._failed: dict[AttemptId, Failure] = {}
        self._begun = 0

    def __bool__(self) -> bool:
        return bool(self._on)

    # ── Attempts ────────────────────────────────────────────────────────────────────────────────

    def require(self, launch: Launch) -> None:
        """See to it that the attempt's card has a daemon that is up.

        Raises MpsStartingError, MpsFailedError; OSError, GpulaunchError where none can be begun.
        """
        if launch.gpus[0].simulated:
            return
        if failure := self._failed.pop(launch.attempt, None):
            raise MpsFailedError(failure)
        service = self._on.get(launch.gpus[0].uuid) or self._begin(launch)
        if service.link is not None:
            self._hear_guard(service)  # it may have left while this process was stopped
        self._spare_time(service, launch.job.grace)
        if service.state != "up":
            service.waiting.add(launch.attempt)
            raise MpsStartingError("MPS starts on its card")

    def place(self, launch: Launch) -> MpsPlace | None:
        """Return where the attempt finds its card's daemon; the attempt counts as a client."""
        service = self._on.get(launch.gpus[0].uuid)
        if service is None:  # of a pretend card
            return None
        service.clients[launch.attempt] = None
        limit = launch.promised or launch.job.demand.gpu_memory
        return replace(service.place, limit=limit)

    def forget(self, attempt: AttemptId) -> None:
        """Expect an attempt no more whose launch waited."""
        self._failed.pop(attempt, None)
        for service in self._on.values():
            service.waiting.discard(attempt)

    def left(self, attempt: AttemptId, place: MpsPlace) -> None:
        """Learn that an attempt is over."""
        service = self._by_pipes.get(place.pipes)
        if service is None:
            return
        now = time.monotonic()
        service.clients[attempt] = now
        for other, end in list(service.clients.items()):
            if end is not None and now - end > SHARED_FATE:
                del service.clients[other]

    def telling(self, launch: Launch, place: MpsPlace, tell: Tell) -> Tell:
        """Return what tells an attempt's end with what MPS has to do with its failure."""
        service = self._by_pipes.get(place.pipes)
        if service is None:
            return tell
        return lambda ended: tell(self._explained(ended, launch.job, service))

    def _explained(self, ended: Ended, job: Job, service: MpsService) -> Ended:
        if service.link is not None:
            self._hear_guard(service)  # by another way than the end, and perhaps later
        found, kind = ended.end.failure, failure_of(ended.end.outcome, job)
        if kind is not None and found is not None:
            kind = found.kind
        if service.died and kind in DOUBTFUL:
            found = self._failure(service)
        if found is None or found.kind not in FATAL:
            return ended
        beside = tuple(dict.fromkeys(c.job for c in service.clients if c != ended.attempt))
        if beside:
            found = replace(found, advice=(*found.advice, SharedFate(beside)))
        return replace(ended, end=replace(ended.end, failure=found))

    def clear_left(self) -> None:
        """End what daemons of runs that were killed have left."""
        if killed := mps_dirs.clear(self._context.base):
            self._context.warn(None, f"{killed} processes of MPS had outlived their run: killed")

    def review(self, used: Collection[str]) -> None:
        """End the daemons of cards on which nothing of the run is or waits. `used`: the others."""
        for uuid, service in list(self._on.items()):
            if uuid not in used and not service.waiting:
                self._end(service)

    # ── Cards ───────────────────────────────────────────────────────────────────────────────────

    def end_on(self, gpu: str) -> None:
        """End the card's daemon, if it has one: the card is about to be given back."""
        if service := self._on.get(gpu):
            self._end(service)

    def when_gone(self, gpu: str, then: Callable[[], object]) -> None:
        """Call once no daemon is on the card, at once if none is; one that is there is ended."""
        service = self._on.get(gpu)
        if service is None:
            then()
            return
        self._end(service)
        service.then.append(then)

    # ── One daemon ──────────────────────────────────────────────────────────────────────────────

    def _begin(self, launch: Launch) -> MpsService:
        """Start the card's daemon; what fails here leaves nothing behind."""
        program = find_program(self._context.base)
        if program is None:
            why = f"{PROGRAM} is not on PATH"
            raise MpsFailedError(Failure("mps", why, (Hint("mps"),)))
        self.clear_left()
        gpu = launch.gpus[0]
        logs = self._fresh_logs(gpu)
        with ExitStack() as stack:
            directory, lock = mps_dirs.make(self._context.base)
            stack.callback(os.close, lock)
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(os.path.join(directory, "launcher"))
            listener.listen(1)
            listener.setblocking(False)
            place = MpsPlace(os.path.join(directory, "pipe"), str(logs))
            grace = launch.job.grace + CLIENTS_MARGIN
            pair = self._pairs.take(PairKind((gpu.uuid,)))
            stack.callback(self._pairs.dismiss, pair)
            pair.launch(self._command(gpu, place, directory, program, grace))
            stack.pop_all()
        service = MpsService(gpu, place, directory, lock, listener, pair, grace)
        self._on[gpu.uuid] = self._by_pipes[place.pipes] = service
        self._context.loop.watch(pair.fileno(), partial(self._hear, service))
        self._context.loop.watch(listener.fileno(), partial(self._connected, service))
        return service

    def _fresh_logs(self, gpu: Gpu) -> Path:
        """Make the directory of a daemon's logs, which stay with the run."""
        while True:
            self._begun += 1
            logs = self._context.run.mps / f"gpu-{gpu.index}.{self._begun}"
            with suppress(FileExistsError):  # of an earlier supervisor's
                logs.mkdir(0o700, parents=True)
                return logs

    def _command(
        self, gpu: Gpu, place: MpsPlace, directory: str, program: str, grace: float
    ) -> Command:
        times = START_TIMEOUT, QUIT_TIMEOUT, grace
        return Command(
            attempt=f"MPS on GPU {gpu.index}",
            argv=(*farside_command(sys.executable, "mps"), directory, program, *map(str, times)),
            log=os.path.join(place.logs, "daemon.log"),
            end=os.path.join(place.logs, "end"),
            env_set={
                **visible((gpu,), "uuid"),
                PIPES: place.pipes,
                LOGS: place.logs,
                "GPULAUNCH_RUN_ID": self._context.run_id,
                mps_dirs.MARK: directory,
            },
            grace=GUARDS_GRACE,
        )

    def _spare_time(self, service: MpsService, grace: float) -> None:
        """Have the guard wait as long for its clients as the longest of their graces."""
        if grace + CLIENTS_MARGIN > service.grace:
            service.grace = grace + CLIENTS_MARGIN
            self._tell(service, f"grace {service.grace}")

    def _tell(self, service: MpsService, words: str) -> None:
        if service.link is not None:
            with suppress(OSError):  # it is gone, which its pair says
                service.link.send(words.encode() + b"\n")

    def _connected(self, service: MpsService) -> None:
        try:
            service.link, _ = service.listener.accept()
        except OSError:
            return
        service.link.setblocking(False)
        self._stop_listening(service)
        self._context.loop.watch(service.link.fileno(), partial(self._hear_guard, service))
        self._tell(service, f"grace {service.grace}")
        if service.state == "ending":
            self._tell(service, "end")

    def _stop_listening(self, service: MpsService) -> None:
        if service.lock >= 0:
            self._context.loop.unwatch(service.listener.fileno())
            service.listener.close()
            os.close(service.lock)
            service.lock = -1

    def _hear_guard(self, service: MpsService) -> None:
        assert service.link is not None
        try:
            while data := service.link.recv(4096):
                service.heard += data
            over = True
        except BlockingIOError:
            over = False
        except OSError:
            over = True
        *lines, service.heard = service.heard.split(b"\n")
        for line in lines:
            word, _, words = line.decode("utf-8", "replace").partition(" ")
            if word in ("failed", "died"):
                self._fail(service, words)
            elif word == "left":  # this process was stopped, and nothing ran on the card
                service.state = "ending"
            elif word == "ready" and service.state == "starting":
                service.state = "up"
                service.waiting.clear()
                self._resume()
        if over:
            self._hang_up(service)
            if service.state != "ending":
                self._fail(service, "its guard was killed")

    def _hang_up(self, service: MpsService) -> None:
        if service.link is not None:
            self._context.loop.unwatch(service.link.fileno())
            service.link.close()
            service.link = None

    def _fail(self, service: MpsService, why: str) -> None:
        """Take the daemon for failed: what waits for it fails, the next attempt has another."""
        if not service.died:
            service.died = why
            failure = self._failure(service)
            if service.state == "up":
                where = f"GPU {service.gpu.index}"
                self._context.warn(None, f"MPS on {where}: {why}; its jobs fail, the next start it")
            self._failed.update(dict.fromkeys(service.waiting, failure))
            service.waiting.clear()
        service.state = "ending"
        self._resume()

    def _failure(self, service: MpsService) -> Failure:
        said = last_words(Path(service.place.logs))
        words = f"GPU {service.gpu.index}: {service.died}"
        return Failure("mps", f"{words}: {said}" if said else words, (Hint("mps"),))

    def _end(self, service: MpsService) -> None:
        """Have the daemon end, as it has no client; by force where it does not."""
        if service.state == "ending":
            return
        service.state = "ending"
        self._tell(service, "end")
        limit = 2 * QUIT_TIMEOUT + CLIENTS_MARGIN
        kill = partial(service.pair.stop, "stopped", now=True)
        self._context.loop.call_after(f"mps:{service.directory}", limit, kill)

    # ── Its keepers ─────────────────────────────────────────────────────────────────────────────

    def _hear(self, service: MpsService) -> None:
        """Take in the reports of the daemon's pair."""
        pair = service.pair
        for report in pair.on_readable():
            match report:
                case client.AttemptOver():
                    self._pairs.dismiss(pair)
                    self._gone(service)
                    return
                case client.Gone():
                    self._context.loop.unwatch(pair.fileno())
                    pair.close()
                    self._pairs.forget(pair)
                    self._gone(service)
                case client.PairLeft():
                    self._pairs.forget(pair)
                case client.Lent(descriptors):
                    self._pairs.lent(pair, descriptors)
                case client.Unkillable(attempt=attempt, pids=pids):
                    shown = named_unkillable(pids)
                    self._context.warn(None, f"{attempt}: {shown} cannot be killed")
                    self._go_on(service)  # by a look at the card, which is bounded in time

    def _gone(self, service: MpsService) -> None:
        """Forget a daemon of which no process is left."""
        if service.link is not None:
            self._hear_guard(service)
        if service.state != "ending":
            self._fail(service, "its guard ended at once")
        self._stop_listening(service)
        self._hang_up(service)
        self._context.loop.forget(f"mps:{service.directory}")
        shutil.rmtree(service.directory, ignore_errors=True)
        del self._on[service.gpu.uuid]
        self._tidy()
        self._go_on(service)
        self._resume()

    def _go_on(self, service: MpsService) -> None:
        """Call what waits for the daemon's end."""
        waiting, service.then = service.then, []
        for then in waiting:
            then()

    def _tidy(self) -> None:
        """Forget daemons that are gone, whose clients all have ended."""
        here = {service.place.pipes for service in self._on.values()}
        for pipes, service in list(self._by_pipes.items()):
            if pipes not in here and None not in service.clients.values():
                del self._by_pipes[pipes]

    def close(self) -> None:
        """Wait for the ends of daemons without clients, which their keepers bring about; not long.

        So that whoever starts the next run finds the cards free.
        """
        until = time.monotonic() + QUIT_TIMEOUT
        for service in self._on.values():
            self._stop_listening(service)
            if service.link is not None and None not in service.clients.values():
                with suppress(OSError):
                    while (left := until - time.monotonic()) > 0:
                        service.link.settimeout(left)
                        if not service.link.recv(4096):
                            break
            self._hang_up(service)
        self._on.clear()


def last_words(logs: Path) -> str:
    """Return the line of a daemon's logs that tells of an error, else the last one; or nothing."""
    lines: list[str] = []
    for name in ("server.log", "control.log", "daemon.log"):
        with suppress(OSError):
            text = (logs / name).read_text("utf-8", "replace")
            lines += [line.strip() for line in text.splitlines() if _tells(line)]
    wrong = [line for line in lines if any(word in line.lower() for word in _WRONG)]
    return (wrong or lines or [""])[-1]


def _tells(line: str) -> bool:
    """Tell whether a line may say what was wrong: not a guard's, nor of a client's ordinary end."""
    ours = line.startswith("gpulaunch: ")
    return bool(line.strip()) and not ours and "assuming client exit" not in line


_WRONG = ("error", "fail", "fatal", "cannot", "unable", "denied", "invalid")
