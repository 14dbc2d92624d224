"""Takes cards for one command that then replaces this process: `gpulaunch exec`.

It uses the core and the leases as a run of one job does; that job's Launch names the cards.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from gpulaunch.core.events import (
    Acquire,
    Event,
    Granted,
    Instruction,
    Launch,
    Refused,
    SetTimer,
    Submitted,
    TimerFired,
)
from gpulaunch.core.facts import Fact, JobSettled, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Demand, Gpu, Instant, Job
from gpulaunch.core.run import Run
from gpulaunch.engines.descriptors import high_number
from gpulaunch.engines.environment import AttemptPlace, as_given, delta
from gpulaunch.engines.local.cards import CardLeases
from gpulaunch.engines.pool import CardPool
from gpulaunch.errors import NoCardsError
from gpulaunch.gpus.port import reserve_port
from gpulaunch.loop import Loop

JOB = "exec"


class WaitRanOut(NoCardsError):
    """No card came free in the time that `--wait` gave."""


class Single:
    """Waits for some of these cards and holds their leases until `execve` or `close`."""

    def __init__(self, pool: CardPool, environ: Mapping[str, str]) -> None:
        self._pool = pool
        self._loop = Loop()
        self._inbox: deque[Event] = deque()
        self._asked: set[str] = set()
        self._cards = CardLeases(
            pool.gpus,
            self._loop,
            self._inbox.append,
            pool.probe(self._loop),
            environ,
            working=lambda: False,
        )

    def take(
        self, demand: Demand, wait: float | None, tell: Callable[[str], None]
    ) -> tuple[tuple[Gpu, ...], list[int]]:
        """Wait for cards, and return them and their leases' descriptors.

        `wait` in seconds, None for ever; `tell` gets one line if there is a wait. Raises
        WaitRanOut, or NoCardsError when the cards can never be had.
        """
        run = Run(self._pool.gpus, limit=self._pool.limit, ledger=_ledger(self._pool.gpus))
        self._inbox.append(Submitted((Job(JOB, "", demand=demand),)))
        warned = False
        until = None if wait is None else time.monotonic() + wait
        if until is not None:
            self._loop.call_at("wait", until, lambda: None)
        while True:
            if launch := self._settle(run):
                uuids = [gpu.uuid for gpu in launch.gpus]
                # The driver's helper process has to end: the command must not have it as a child.
                self._cards.settle()
                return launch.gpus, self._cards.descriptors(uuids)
            # While a card is being looked at, it is not known yet whether it can be had.
            if not self._asked:
                if until is not None and time.monotonic() >= until:
                    raise WaitRanOut(f"no card came free in time: {run.why_waiting(JOB)}")
                if not warned:
                    tell(run.why_waiting(JOB))
                    warned = True
            self._loop.turn()

    def _settle(self, run: Run) -> Launch | None:
        while self._inbox:
            event = self._inbox.popleft()
            if isinstance(event, Granted | Refused):
                self._asked.discard(event.gpu)
            for result in run.handle(event, _now()):
                if isinstance(result, Launch):
                    return result
                self._carry_out(result)
        return None

    def _carry_out(self, result: Fact | Instruction) -> None:
        if isinstance(result, JobSettled):
            raise NoCardsError(result.reason)
        if isinstance(result, SetTimer):
            timer = result.timer
            self._loop.call_at(timer, result.at, lambda: self._inbox.append(TimerFired(timer)))
        elif isinstance(result, Instruction):
            if isinstance(result, Acquire):
                self._asked.add(result.gpu)
            self._cards.carry_out(result)

    def close(self) -> None:
        self._cards.close()
        self._loop.close()


def exec_environment(
    pool: CardPool,
    count: int,
    wait: float | None,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
) -> dict[str, str]:
    """Take `count` cards for good; return the environment in which a program sees only these."""
    job = Job(JOB, (), demand=Demand(gpus=count))
    gpus = take_for_good(pool, job.demand, wait, environ, tell)
    environ = as_given(environ)
    place = AttemptPlace(gpus, pool.style, own_scope(), port_for_good())
    return delta(job, place, pool.machine, environ, {}).over(environ)


def take_for_good(
    pool: CardPool,
    demand: Demand,
    wait: float | None,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
) -> tuple[Gpu, ...]:
    """Take cards until the last process that inherits them ends. Raises as `Single.take` does."""
    gpus, descriptors = Single(pool, environ).take(demand, wait, tell)
    hold_through_exec(descriptors)
    return gpus


def port_for_good() -> int:
    """Reserve a port until the last process that inherits it ends; return the port."""
    port = reserve_port()
    hold_through_exec([port.fileno()])
    return port.port


def own_scope() -> str:
    """Return the name of the leases of this process's cards, for launchers inside it."""
    return f"exec/{os.getpid()}"


def hold_through_exec(descriptors: Sequence[int]) -> None:
    """Let the command inherit these descriptors, at numbers that it does not use by itself."""
    import fcntl

    least = high_number()
    for fd in descriptors:
        os.set_inheritable(fcntl.fcntl(fd, fcntl.F_DUPFD, least), True)


def _ledger(gpus: Sequence[Gpu]) -> Ledger:
    ledger = Ledger()
    opened = RunOpened(JOB, JOB, 1, "", "", "", os.getpid(), tuple(gpus))
    ledger.apply(opened, _now())
    return ledger


def _now() -> Instant:
    return Instant(time.monotonic(), time.time())
