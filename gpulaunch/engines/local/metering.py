"""What attempts take: the client of the sampler process, and the limits of `memory:`.

`Metering` tells the sampler (`gpulaunch.observe.sampler`) which attempts run. It starts the sampler
a while after the first attempt, so that a list which is over by then pays nothing. It tells
together what begins and ends in a moment: the sampler looks once a second. When the sampler dies,
it starts another after ever longer pauses, and gives up in the end. It waits for the sampler only
at the close of the run. The sampler changes only three things in a run: an attempt that it finds on
a card of others is posted as Misplaced, one that has held memory for long and computed nothing as
HeldIdle, and what an attempt takes whose job's memory is learned, as MemoryPeaked.

`MemoryLimits` keeps attempts to their `memory:` by cgroups.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct
from msgspec.structs import astuple, replace

from gpulaunch.base.helper_process import Helper, command, understood
from gpulaunch.core.causes import Hint
from gpulaunch.core.events import HeldIdle, Launch, MemoryPeaked, Misplaced
from gpulaunch.core.model import AttemptId, Gpu
from gpulaunch.engines.client import ProgramStarted
from gpulaunch.engines.context import RunContext
from gpulaunch.observe.sampler.keeper import Keeper, keeper_of, spent_by_all, spent_since

BEGIN_AFTER = 2.0
"""Seconds from the first attempt to the sampler's start."""
TELL_AFTER = 0.1
"""Seconds for which news of attempts are gathered before they are sent."""
NEWS_IN_A_MESSAGE = 30
"""News that one message holds at most: the sampler reads 64 KiB, and the longest take 2 each."""
FULL_PIPE_DELAY = 1.0
"""Seconds until a sampler that reads nothing is written to again."""
MAX_ENDS_KEPT = 10_000
"""Ends kept at most for a sampler that is not there or does not read."""
NOTED_AFTER = 3600.0
"""Idle seconds after which a job without `gpu_idle` is named. Services are not: they wait to be
asked."""
LAST_WORDS = 2.0
"""Seconds that the sampler has at the end of the run to write down what is left."""
_MISPLACED, _IDLE = (Hint("wrong_gpu"),), (Hint("gpu_idle"),)


BESIDE_MPS = (
    "never connected to MPS: it computes beside the card's MPS server, in turns with it; does it"
    " change CUDA_MPS_PIPE_DIRECTORY, or run in a container or namespace of its own? (said once)"
)
"""The warning of the first attempt that does without the server whose client it is to be."""


class SamplerMessage(Struct, frozen=True):
    """What the sampler says: of an attempt, but for trouble. Each `said` has some of the others."""

    said: Literal["trouble", "peaked", "beside_mps", "unjudged", "idle", "misplaced"]
    job: str = ""
    number: int = 0
    memory: int = 0
    seconds: float = 0.0
    gpu: str = ""
    pid: int = 0
    text: str = ""
    why: str = ""


class _Begun(Struct, frozen=True):
    """An attempt that runs. `at`: its monotonic start; `gpus`: UUIDs, None on simulated cards.

    `container`: the file that tells the first process of its container, which may be no descendant
    of its keeper; empty for none. `idle`: the seconds after which the sampler says that it computes
    nothing, None: never; `ends`: it is its job's `gpu_idle`. `learns`: what it takes of its card's
    memory is to be told. `mps`: it is to be a client of an MPS server.
    """

    attempt: AttemptId
    gpus: tuple[str, ...] | None
    keeper: Keeper | None
    at: float
    container: str = ""
    misplaced: bool = False
    idle: float | None = None
    ends: bool = False
    learns: bool = False
    mps: bool = False

    def message(self, do: str, **more: object) -> dict[str, object]:
        return {
            "do": do,
            "job": self.attempt.job,
            "number": self.attempt.number,
            "gpus": self.gpus,
            "keeper": astuple(self.keeper) if self.keeper else None,
            "since": self.at,
            "idle": self.idle,
            **({"container": self.container} if self.container else {}),
            **({"learns": True} if self.learns else {}),
            **({"mps": True} if self.mps else {}),
            **more,
        }


class Metering:
    """Owns the sampler process. `after`: seconds from the first attempt to the sampler's start."""

    def __init__(
        self, context: RunContext, gpus: Sequence[Gpu], after: float = BEGIN_AFTER
    ) -> None:
        self._context = context
        self._cards = [(gpu.index, gpu.uuid) for gpu in gpus if not gpu.simulated]
        self._pretend = any(gpu.simulated for gpu in gpus)
        self._after = after
        self._wanted = False
        self._warned = False
        self._unjudged = False
        self._told_of_mps = False
        self._live: dict[AttemptId, _Begun] = {}
        self._untold: dict[AttemptId, _Begun] = {}
        self._ends: deque[dict[str, object]] = deque(maxlen=MAX_ENDS_KEPT)
        self._telling = False
        self._helper = Helper(
            context.loop,
            self._received,
            lambda status: self._helper.restart(self._start),
            socket.SOCK_SEQPACKET,
        )

    @property
    def pid(self) -> int | None:
        return self._helper.pid

    # ── Attempts ────────────────────────────────────────────────────────────────────────────────

    def begin(
        self,
        launch: Launch,
        started: ProgramStarted,
        goes_on: bool = False,
        container: str = "",
        mps: bool = False,
    ) -> None:
        """Tell the sampler of an attempt whose main process has just started.

        `goes_on`: the process is a worker's, which has just got another item. `container`: the file
        that tells the first process of its container, if it runs in one. `mps`: it is to be a
        client of its card's MPS server. Where the job's memory is learned, MemoryPeaked is posted
        whenever it is seen to take more than before.
        """
        attempt, gpus, limit = launch.attempt, launch.gpus, launch.job.gpu_idle
        own = None if self._pretend else tuple(gpu.uuid for gpu in gpus)
        if goes_on or started.keeper_start is None or started.spent is None:
            keeper = keeper_of(started.pid, started.keeper, goes_on)
        else:
            keeper = Keeper(started.keeper, started.keeper_start, started.spent)
        begun = _Begun(
            attempt,
            own,
            keeper,
            time.monotonic(),
            container,
            idle=NOTED_AFTER if limit is None and launch.job.service is None else limit,
            ends=limit is not None,
            learns=launch.job.demand.kind is not None,
            mps=mps,
        )
        self._live[attempt] = self._untold[attempt] = begun
        if not self._wanted:
            self._wanted = True
            self._context.loop.call_after("metering:start", self._after, self._start)
        self._tell_after(TELL_AFTER)

    def end(self, attempt: AttemptId, kept: bool = False, cpu: float | None = None) -> None:
        """Tell the sampler of an attempt's end, with its CPU time. Ignores unknown attempts.

        `kept`: its worker lives on. `cpu`: its CPU seconds, if its keeper has told them; if not,
        call this before the keeper begins another attempt.
        """
        begun = self._live.pop(attempt, None)
        if begun is None:
            return
        self._untold.pop(attempt, None)
        if begun.container:
            cpu = None  # the keeper waits for none of its processes: what was sampled counts
        elif cpu is None and begun.keeper is not None:
            cpu = (spent_by_all if kept else spent_since)(begun.keeper)
        cpu = None if cpu is None else max(0.0, cpu)  # the kernel rounds each part by itself
        seconds = time.monotonic() - begun.at
        self._ends.append(begun.message("end", seconds=seconds, cpu_seconds=cpu))
        self._tell_after(TELL_AFTER)

    def close(self) -> None:
        """Let the sampler record what is left, then end it. Idempotent."""
        for timer in ("start", "tell"):
            self._context.loop.forget(f"metering:{timer}")
        end = time.monotonic() + LAST_WORDS
        if self._helper.link is not None:
            with contextlib.suppress(OSError):
                self._helper.link.settimeout(LAST_WORDS / 4)
                self._tell()
        self._helper.finish(end - time.monotonic())

    # ── The process ─────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        arguments = [str(self._context.run.metrics), json.dumps(self._cards)]
        line = command("gpulaunch.observe.sampler.main", *arguments, title="sampler")
        try:
            self._helper.start(line, self._context.base)
        except OSError:  # processes, memory or descriptors are scarce
            self._helper.restart(self._start)
            return
        self._untold = dict(self._live)
        self._tell()

    def _tell_after(self, seconds: float) -> None:
        if self._helper.link is not None and not self._telling:
            self._telling = True
            self._context.loop.call_after("metering:tell", seconds, self._tell)

    def _tell(self) -> None:
        """Tell what has begun and what has ended; a start that is told twice changes nothing."""
        self._telling = False
        while self._helper.link is not None and (self._untold or self._ends):
            begun = list(islice(self._untold.values(), NEWS_IN_A_MESSAGE))
            ends = list(islice(self._ends, NEWS_IN_A_MESSAGE - len(begun)))
            news = [*(each.message("begin") for each in begun), *ends]
            try:
                self._helper.link.send(json.dumps(news).encode())
            except OSError:  # it reads too little, or is gone, which the end of file says next
                self._tell_after(FULL_PIPE_DELAY)
                return
            for each in begun:
                del self._untold[each.attempt]
            for _ in ends:
                self._ends.popleft()

    def _received(self, data: bytes) -> None:
        message = understood(data, SamplerMessage)
        if message.said == "trouble":
            if not self._warned:
                self._warned = True
                self._context.warn(None, f"what the run uses is not all recorded: {message.text}")
            return
        attempt = AttemptId(message.job, message.number)
        if message.said == "peaked":
            self._context.post(MemoryPeaked(attempt, message.memory))
            return
        if message.said == "beside_mps":
            if not self._told_of_mps:
                self._told_of_mps = True
                self._context.warn(attempt.job, BESIDE_MPS)
            return
        begun = self._live.get(attempt)
        if begun is None:
            return
        if message.said == "unjudged":
            self._cannot_judge(begun, message.why)
        elif message.said == "idle":
            if begun.idle is not None:  # else an earlier sampler reported it
                self._live[attempt] = replace(begun, idle=None)
                said = message.seconds, message.memory, message.text
                self._context.post(HeldIdle(attempt, *said, begun.ends, _IDLE))
        elif not begun.misplaced:
            self._live[attempt] = replace(begun, misplaced=True)
            where = message.gpu, message.pid, message.text
            self._context.post(Misplaced(attempt, *where, _MISPLACED))

    def _cannot_judge(self, begun: _Begun, why: str) -> None:
        """Warn once that `gpu_idle` ends nothing here."""
        if begun.ends and not self._unjudged:
            self._unjudged = True
            self._context.warn(begun.attempt.job, f"gpu_idle ends no job here: {why}")


# ── Memory limits ─────────────────────────────────────────────────────────────────────────────────
