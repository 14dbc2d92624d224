"""MPS's control daemons: one for each card on which attempts with `mps: true` run.

    Launch ─▶ none: begin ─▶ starting ─"ready"─▶ up ─▶ the attempt, as its client
                                 │               │ nothing of the run is on the card any more
                                 ▼               ▼
                              failed, died ─▶ ending ─▶ gone: its lease is given up, its card drains

A daemon is the job of a keeper pair of its own, which holds the card's lease. So the daemon ends
no matter who is killed. Between the keepers and the daemon stands the guard (`guard`), which knows
when the daemon is ready, and ends it after its clients. This module starts and ends guards and
tells what became of them; it never chooses a card, and never signals a process.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.agent.proc import named_unkillable
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.helper_process import command
from gpulaunch.core.causes import Hint, SharedFate
from gpulaunch.core.events import Ended, Launch
from gpulaunch.core.model import AttemptId, Failure, Gpu, Job
from gpulaunch.core.retry import failure_of
from gpulaunch.engines import client
from gpulaunch.engines.client import Pair
from gpulaunch.engines.command import Command
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import MpsVariables
from gpulaunch.engines.local.mps import system
from gpulaunch.engines.local.pairs import PairKind, Pairs
from gpulaunch.gpus.mask import MPS_LOGS, MPS_PIPES, visible

START_TIMEOUT = 30.0
"""Seconds until a daemon has to have a server that answers. It mostly takes one; longer on machines
with several cards and no persistence daemon, says NVIDIA's troubleshooting guide of MPS."""
QUIT_TIMEOUT = 10.0
"""Seconds until a daemon without clients has to end, after it was told to quit."""
CLIENTS_MARGIN = 5.0
"""Seconds beyond the longest grace of its clients that a daemon waits for them to end."""
GUARDS_GRACE = 86400.0
"""Seconds after which keepers kill a guard that was told to end. It ends by itself, after its
clients' grace; the limit is for a mistake of ours."""
SHARED_FATE = 10.0
"""Seconds after an attempt's end for which its neighbours' ends may come from the same fault."""
FATAL = frozenset({"crash", "assert", "gpu_library", "mps"})
"""Failure classes of what ends all clients on the card, NVIDIA says, if it ends one."""
DOUBTFUL = FATAL | {"exit", "signal", "secondary"}
"""Failure classes that a client may have of its daemon's death."""
_WRONG = re.compile("(?i)error|fail|fatal|cannot|unable|denied|invalid")
_ORDINARY = re.compile(r"^gpulaunch: |assuming client exit|^\s*$")

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

    `waiting`: attempts whose launch waits for it. `variables`: those of its clients. `lock` keeps
    `directory` from being removed as a leftover. `news`: the descriptor from which its guard is
    heard, -1 after the guard's end. `ready`: it has been up. `died`: how it failed. `then`: what
    waits for its end.
    """

    gpu: Gpu
    directory: str
    lock: int
    news: int
    variables: Mapping[str, str]
    pair: Pair
    grace: float
    state: Literal["starting", "up", "ending"] = "starting"
    ready: bool = False
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
        self._of: dict[AttemptId, MpsService] = {}
        self._begun = 0

    # ── Attempts ────────────────────────────────────────────────────────────────────────────────

    def require(self, launch: Launch) -> None:
        """See to it that the attempt's card has a daemon that is up.

        Raises MpsStartingError, MpsFailedError; OSError, GpulaunchError if none can be begun.
        """
        if launch.gpus[0].simulated:
            return
        service = self._on.get(launch.gpus[0].uuid) or self._begin(launch)
        self._hear_guard(service)  # it may have died by now
        if service.died and launch.attempt in service.waiting:
            raise MpsFailedError(self._failure(service))
        if launch.job.grace + CLIENTS_MARGIN > service.grace:
            service.grace = launch.job.grace + CLIENTS_MARGIN
            self._write_grace(service.directory, service.grace)
        if service.state == "starting":
            service.waiting.add(launch.attempt)
        if service.state != "up":
            raise MpsStartingError("MPS starts on its card")

    def variables(self, launch: Launch) -> MpsVariables | None:
        """Return how the attempt finds its card's daemon; the attempt counts as a client."""
        service = self._on.get(launch.gpus[0].uuid)
        if service is None:  # of a pretend card
            return None
        service.clients[launch.attempt] = None
        self._of[launch.attempt] = service
        limit = launch.promised or launch.job.demand.gpu_memory
        offered = (system.memory_limit(limit),) if limit else ()
        return MpsVariables(tuple(service.variables.items()), offered)

    def forget(self, attempt: AttemptId) -> None:
        """Expect an attempt no more that never began."""
        if service := self._of.pop(attempt, None):
            service.clients.pop(attempt, None)
        for service in self._on.values():
            service.waiting.discard(attempt)

    def left(self, attempt: AttemptId) -> None:
        """Learn that an attempt is over, if it was a client."""
        if service := self._of.pop(attempt, None):
            now = service.clients[attempt] = time.monotonic()
            for other, end in list(service.clients.items()):
                if end is not None and now - end > SHARED_FATE:
                    del service.clients[other]

    def telling(self, launch: Launch, tell: Tell) -> Tell:
        """Return what tells an attempt's end with what MPS has to do with its failure."""
        if service := self._of.get(launch.attempt):
            return lambda ended: tell(self._explained(ended, launch.job, service))
        return tell

    def _explained(self, ended: Ended, job: Job, service: MpsService) -> Ended:
        self._hear_guard(service)  # its word comes by another way than the end, and perhaps later
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

    # ── Cards ───────────────────────────────────────────────────────────────────────────────────

    def clear_left(self) -> None:
        """End what daemons of runs that were killed have left."""
        if killed := system.clear(self._context.base):
            self._context.warn(None, f"{killed} processes of MPS had outlived their run: killed")

    def review(self, used: Collection[str]) -> None:
        """End the daemons of cards on which nothing of the run is or waits. `used`: the others."""
        for uuid, service in self._on.items():
            if uuid not in used and not service.waiting:
                self._end(service)

    def end_on(self, gpu: str, then: Callable[[], object] = lambda: None) -> None:
        """End the card's daemon, and call `then` when it is gone; at once if there is none."""
        if service := self._on.get(gpu):
            self._end(service)
            service.then.append(then)
        else:
            then()

    # ── One daemon ──────────────────────────────────────────────────────────────────────────────

    def _begin(self, launch: Launch) -> MpsService:
        """Start the card's daemon; what fails here leaves nothing behind."""
        if (program := system.find_program(self._context.base)) is None:
            why = f"{system.PROGRAM} is not on PATH"
            raise MpsFailedError(Failure("mps", why, (Hint("mps"),)))
        self.clear_left()
        gpu, grace = launch.gpus[0], launch.job.grace + CLIENTS_MARGIN
        logs = self._fresh_logs(gpu)
        with ExitStack() as stack:
            directory, lock = system.make(self._context.base)
            stack.callback(os.close, lock)
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            self._write_grace(directory, grace)
            news = os.open(f"{directory}/news", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, news)
            variables = {MPS_PIPES: os.path.join(directory, "pipe"), MPS_LOGS: str(logs)}
            pair = self._pairs.take(PairKind((gpu.uuid,)))
            stack.callback(self._pairs.dismiss, pair)
            pair.launch(self._command(gpu, variables, directory, program))
            stack.pop_all()
        service = MpsService(gpu, directory, lock, news, variables, pair, grace)
        self._on[gpu.uuid] = service
        self._context.loop.watch(pair.fileno(), partial(self._hear, service))
        self._context.loop.watch(news, partial(self._hear_guard, service, woken=True))
        return service

    def _write_grace(self, directory: str, seconds: float) -> None:
        replace_file(Path(directory, "grace"), str(seconds).encode())

    def _fresh_logs(self, gpu: Gpu) -> Path:
        """Make the directory of a daemon's logs, which stay with the run."""
        while True:
            self._begun += 1
            logs = self._context.run.mps / f"gpu-{gpu.index}.{self._begun}"
            with suppress(FileExistsError):  # of an earlier supervisor's
                logs.mkdir(0o700, parents=True)
                return logs

    def _command(
        self, gpu: Gpu, variables: Mapping[str, str], directory: str, program: str
    ) -> Command:
        logs, times = variables[MPS_LOGS], (str(START_TIMEOUT), str(QUIT_TIMEOUT))
        line = command("gpulaunch.engines.local.mps.guard", directory, program, *times, title="mps")
        return Command(
            attempt=f"MPS on GPU {gpu.index}",
            argv=tuple(line),
            log=os.path.join(logs, "daemon.log"),
            end=os.path.join(logs, "end"),
            env_set={
                **visible((gpu,), "uuid"),
                **variables,
                "GPULAUNCH_RUN_ID": self._context.run_id,
                system.MARK: directory,
            },
            grace=GUARDS_GRACE,
        )

    def _hear_guard(self, service: MpsService, woken: bool = False) -> None:
        """Take in what the guard has reported by now.

        `woken`: the loop calls. Otherwise an end of file may mean that no guard is there yet.
        """
        if service.news < 0:
            return
        over = False
        with suppress(BlockingIOError):
            while data := os.read(service.news, 4096):
                service.heard += data
            over = True
        *lines, service.heard = service.heard.split(b"\n")
        for line in lines:
            word, _, words = line.decode("utf-8", "replace").partition(" ")
            if word in ("failed", "died"):
                self._fail(service, words)
            elif word == "ready" and service.state == "starting":
                service.state, service.ready = "up", True
                service.waiting.clear()
                self._resume()
        if over and (woken or service.ready):
            self._hang_up(service)
            if service.state != "ending":
                self._fail(service, "its guard was killed")

    def _hang_up(self, service: MpsService) -> None:
        if service.news >= 0:
            self._context.loop.unwatch(service.news)
            os.close(service.news)
            service.news = -1

    def _fail(self, service: MpsService, why: str) -> None:
        """Take the daemon for failed: what waits for it fails, the next attempt has another."""
        service.died = service.died or why
        if service.state == "up":
            where = f"GPU {service.gpu.index}"
            self._context.warn(None, f"MPS on {where}: {why}; its jobs fail, the next start it")
        service.state = "ending"
        self._resume()
        service.waiting.clear()

    def _failure(self, service: MpsService) -> Failure:
        said = last_words(Path(service.variables[MPS_LOGS]))
        words = f"GPU {service.gpu.index}: {service.died}"
        return Failure("mps", f"{words}: {said}" if said else words, (Hint("mps"),))

    def _end(self, service: MpsService) -> None:
        """Have the daemon end, because it has no client; by force if it does not."""
        if service.state == "ending":
            return
        service.state = "ending"
        service.pair.stop("stopped")
        kill = partial(service.pair.stop, "stopped", now=True)
        limit = 2 * QUIT_TIMEOUT + CLIENTS_MARGIN
        self._context.loop.call_after(f"mps:{service.directory}", limit, kill)

    # ── Its keepers ─────────────────────────────────────────────────────────────────────────────

    def _hear(self, service: MpsService) -> None:
        """Take in the reports of the daemon's pair."""
        pair = service.pair
        for report in pair.on_readable():
            match report:
                case client.AttemptOver() | client.Gone():
                    self._pairs.dismiss(pair)
                    self._gone(service)
                    return
                case client.Unkillable(attempt=attempt, pids=pids):
                    shown = named_unkillable(pids)
                    self._context.warn(None, f"{attempt}: {shown} cannot be killed")
                    self._go_on(service)  # by a look at the card, which is bounded in time

    def _gone(self, service: MpsService) -> None:
        """Forget a daemon of which no process is left."""
        self._hear_guard(service)
        if service.state != "ending":
            self._fail(service, "its guard ended at once")
        self._hang_up(service)
        os.close(service.lock)
        self._context.loop.forget(f"mps:{service.directory}")
        shutil.rmtree(service.directory, ignore_errors=True)
        del self._on[service.gpu.uuid]
        self._go_on(service)
        self._resume()

    def _go_on(self, service: MpsService) -> None:
        """Call what waits for the daemon's end."""
        waiting, service.then = service.then, []
        for then in waiting:
            then()

    def close(self) -> None:
        """Wait for the ends of daemons without clients, which their keepers bring about; not long.

        So that whoever starts the next run finds the cards free.
        """
        until = time.monotonic() + QUIT_TIMEOUT
        for service in self._on.values():
            if service.news >= 0 and service.ready and None not in service.clients.values():
                poll = select.poll()
                poll.register(service.news, select.POLLIN)
                while service.news >= 0 and (left := until - time.monotonic()) > 0:
                    poll.poll(left * 1000)
                    self._hear_guard(service)
            self._hang_up(service)
            os.close(service.lock)
        self._on.clear()


def last_words(logs: Path) -> str:
    """Return the line of a daemon's logs that tells of an error, else the last one; or nothing.

    Not a line of a guard's, nor that of a client's ordinary end.
    """
    text = ""
    for name in ("server.log", "control.log", "daemon.log"):
        with suppress(OSError):
            text += (logs / name).read_text("utf-8", "replace") + "\n"
    lines = [line.strip() for line in text.splitlines() if not _ORDINARY.search(line)]
    wrong = [line for line in lines if _WRONG.search(line)]
    return (wrong or lines or [""])[-1]
