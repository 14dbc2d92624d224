"""Takes cards for one command that then replaces this process: `gpulaunch exec` and `hold`.

    image ─▶ pulled, where it has to be ─▶ cards are taken ─▶ the environment that shows only these
                                                                └─▶ CMD, with the leases
    a small process beside CMD holds the leases too (keeper lease)

It uses the core and the leases as a run of one job does; that job's Launch names the cards. In a
container, CMD is the carrier's or the engine's own command line. Belongs to no run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Literal

from msgspec import Struct

from gpulaunch.base.errors import NoCardsError, UsageError
from gpulaunch.base.loop import Loop
from gpulaunch.base.wording import job_reason
from gpulaunch.core.events import Instruction, Launch, Submitted
from gpulaunch.core.facts import Fact, JobSettled
from gpulaunch.core.ledger import unrecorded
from gpulaunch.core.model import Container, Demand, Gpu, Instant, Job
from gpulaunch.core.run import Run
from gpulaunch.core.state import OnCards, RunConfig
from gpulaunch.engines.affinity import NearCpus
from gpulaunch.engines.context import ImageHere
from gpulaunch.engines.environment import (
    AttemptPlace,
    as_given,
    delta,
)
from gpulaunch.engines.local.leases import CardLeases, LeaseUser
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.programs import program_line
from gpulaunch.gpus.lease import SCOPE_VARIABLE, lease_name, scope_of
from gpulaunch.gpus.socket_locks import reserve_port
from gpulaunch.run.driver import Driver
from gpulaunch.run.wait_queue import Turn, bit_of

JOB = "exec"
HIGH_NUMBER = 100
"""The least number of an inherited lease's descriptor: programs seldom use such numbers."""
_INHERITED: list[int] = []
"""What the command inherits from this process, in copies that stay open through its execve."""


class WaitRanOut(NoCardsError):
    """No card came free in the time that `--wait` gave."""


class CardRequest(Struct, frozen=True):
    """What a command line asks for: `wait` in seconds, None for ever; `tell` gets lines for people.

    `turn`: this launcher's place in the line; None where it does not wait.
    """

    pool: CardPool
    demand: Demand
    wait: float | None
    environ: Mapping[str, str]
    tell: Callable[[str], object]
    affinity: Literal["card", "none"] | None = None
    turn: Turn | None = None


class CardTaker(LeaseUser):
    """Waits for some of these cards and holds their leases until `execve` or `close`."""

    def __init__(self, asked: CardRequest) -> None:
        pool, scope = asked.pool, scope_of(asked.environ)
        self._others = asked.turn.others() if asked.turn else None
        self._bits = {gpu.uuid: bit_of(lease_name(gpu.key, scope)) for gpu in pool.gpus}
        self._loop = Loop()
        self._run = Run(
            pool.gpus,
            RunConfig(OnCards(pool.most, memory=pool.memory, limited_by=pool.limited_by)),
            unrecorded(pool.gpus, JOB, os.getpid()),
        )
        self._tell: Callable[[str], object] | None = asked.tell
        self._launch: Launch | None = None
        self._driver = Driver(self._run, self._loop, self, asked.wait)
        self._cards = CardLeases(pool, self._loop, self._driver.post, asked.environ, self)
        self._driver.post(Submitted((Job(JOB, "", demand=asked.demand),)))

    def take(self) -> tuple[tuple[Gpu, ...], list[int]]:
        """Wait for cards, and return them and their leases' descriptors.

        Raises WaitRanOut, or NoCardsError when the cards can never be had.
        """
        self._driver.settle()
        while self._launch is None:
            self._driver.turn()
        # The driver's helper process has to end: the command must not have it as a child.
        self._cards.settle()
        if self._others is not None:
            self._others.close()
        gpus = self._launch.gpus
        return gpus, self._cards.descriptors([gpu.uuid for gpu in gpus])

    def working(self) -> bool:
        return False

    def is_for_others(self, gpu: str) -> bool:
        return self._others is not None and self._others.wait_for(self._bits[gpu])

    def record(self, facts: Sequence[Fact], now: Instant) -> None:
        """Keep no record; raise NoCardsError where the job can never be placed."""
        for fact in facts:
            if isinstance(fact, JobSettled):
                raise NoCardsError(job_reason(fact.reason))

    def carry_out(self, instruction: Instruction) -> None:
        """Take and release cards; the launch ends the waiting."""
        if isinstance(instruction, Launch):
            self._launch = instruction
        else:
            self._cards.carry_out(instruction)

    def card_awaited(self) -> None:
        """Say once why no card can be had."""
        if self._tell is not None:
            self._tell(job_reason(self._run.why_waiting(JOB)))
            self._tell = None

    def wait_over(self) -> None:
        """Raise WaitRanOut."""
        why = job_reason(self._run.why_waiting(JOB))
        raise WaitRanOut(f"no card came free in time: {why}")


def demand_of(count: int, card: str | None, compute: str | None) -> Demand:
    """Return what a command line asks for: so many cards, and which. Raises UsageError."""
    if card is None and compute is None:  # without what a job file takes to be read
        return Demand(gpus=count)
    from gpulaunch.jobfile.values import compute_capability, glob_of_names

    option = "--card"
    try:
        glob = "" if card is None else glob_of_names(card)
        option = "--compute"
        least = () if compute is None else compute_capability(compute)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    return Demand(gpus=count, card=glob, compute=least)


def take_cards(asked: CardRequest) -> tuple[Gpu, ...]:
    """Take cards until the last process that inherits them ends. Raises as CardTaker.take does."""
    gpus, descriptors = CardTaker(asked).take()
    hold_through_exec(descriptors)
    return gpus


def run_near(asked: CardRequest, gpus: Sequence[Gpu]) -> NearCpus | None:
    """Keep this process, and what it becomes, to the CPUs near its cards; return them.

    None: to none but those it has.
    """
    job = Job(JOB, (), demand=asked.demand, affinity=asked.affinity)
    near = asked.pool.machine.placement.near(job, gpus)
    if near is None:
        return None
    try:
        os.sched_setaffinity(0, near.cpus)
    except OSError:
        asked.tell("the CPUs near the card are not allowed any more: it runs on those that are")
        return None
    return near


def environment_on(
    gpus: tuple[Gpu, ...], asked: CardRequest, near: NearCpus | None = None
) -> dict[str, str]:
    """Return the environment in which a program sees only these cards; reserves its port."""
    environ = as_given(asked.environ)
    job = Job(JOB, (), demand=Demand(gpus=len(gpus)))
    place = _place(gpus, asked, near)
    return delta(job, place, asked.pool.machine, environ, {}).over(environ)


def in_container(
    argv: tuple[str, ...],
    container: Container,
    here: ImageHere,
    gpus: tuple[Gpu, ...],
    asked: CardRequest,
    near: NearCpus | None,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the line, and its environment, that runs `argv` there with these cards.

    Raises OSError or NotContainedError.
    """
    from gpulaunch.run.in_container import made_contained

    job = Job(JOB, argv, demand=asked.demand, cwd=os.getcwd(), container=container)
    place = _place(gpus, asked, near)
    return made_contained(job, here, place, asked.pool.machine, as_given(asked.environ), argv)


def _place(gpus: tuple[Gpu, ...], asked: CardRequest, near: NearCpus | None) -> AttemptPlace:
    port = reserve_port()
    hold_through_exec([port.fileno()])
    return AttemptPlace(gpus, asked.pool.style, own_scope(), port.port, near=near)


def own_scope() -> str:
    """Return the name of the leases of this process's cards, for launchers inside it."""
    return f"exec/{os.getpid()}"


def hold_through_exec(descriptors: Sequence[int]) -> list[int]:
    """Let the command inherit copies of these descriptors, at numbers that it does not use itself.

    Return the copies. `keep_beside_command` has another process hold them too.
    """
    import fcntl

    soft, _ = getrlimit(RLIMIT_NOFILE)
    least = HIGH_NUMBER if soft == RLIM_INFINITY else min(HIGH_NUMBER, soft // 2)
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, least) for fd in descriptors]
    for fd in copies:
        os.set_inheritable(fd, True)
    _INHERITED.extend(copies)
    return copies


def keep_beside_command(seconds: float = math.inf, grace: float = 0.0) -> None:
    """Start a small process that holds what the command inherits, until the command has ended.

    The command may close all descriptors that it inherited (closefrom(3)). After `seconds`, the
    process ends the command and all that the command started: SIGTERM, SIGKILL after `grace`
    seconds. Raises OSError.
    """
    if not _INHERITED:
        return
    mark, numbers = f"{SCOPE_VARIABLE}={own_scope()}", map(str, _INHERITED)
    line = program_line("lease", str(os.getpid()), mark, str(seconds), str(grace), *numbers)
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    with suppress(ChildProcessError):  # SIGCHLD is ignored here
        pid = os.posix_spawn(line[0], line, {}, file_actions=nowhere)
        if os.waitpid(pid, 0)[1]:
            raise OSError("the process that keeps the card for the command could not be started")


# ── Containers ────────────────────────────────────────────────────────────────────────────────────
