"""Takes cards for one command that then replaces this process: `gpulaunch exec`.

It uses the core and the leases as a run of one job does; that job's Launch names the cards.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Literal

from gpulaunch.app.in_line import bit_of, own_place
from gpulaunch.core.events import Instruction, Launch, Submitted
from gpulaunch.core.facts import Fact, JobSettled
from gpulaunch.core.ledger import unrecorded
from gpulaunch.core.model import Container, Demand, Gpu, Instant, Job
from gpulaunch.core.run import Run
from gpulaunch.core.state import OnCards, RunConfig
from gpulaunch.driver import Driver
from gpulaunch.engines.affinity import NearCpus
from gpulaunch.engines.context import ImageHere
from gpulaunch.engines.environment import AttemptPlace, as_given, delta
from gpulaunch.engines.local.cards import CardLeases, LeaseUser
from gpulaunch.engines.pool import CardPool
from gpulaunch.errors import NoCardsError, UsageError
from gpulaunch.farside import line
from gpulaunch.gpus.lease import SCOPE_VARIABLE, lease_name, scope_of
from gpulaunch.gpus.port import reserve_port
from gpulaunch.loop import Loop
from gpulaunch.own_files import KEPT_AFTER, OWN
from gpulaunch.process.native import program_line
from gpulaunch.wording import job_reason

JOB = "exec"
HIGH_NUMBER = 100
"""The least number of an inherited lease's descriptor: programs seldom use such numbers."""
_INHERITED: list[int] = []
"""What the command inherits from this process, in copies that stay open through its execve."""


class WaitRanOut(NoCardsError):
    """No card came free in the time that `--wait` gave."""


class Single(LeaseUser):
    """Waits for some of these cards and holds their leases until `execve` or `close`.

    `wait` in seconds, None for ever; `tell` gets one line if there is a wait. `place`: the one that
    this process has in a line; else it takes one of its own, where it may wait at all.
    """

    def __init__(
        self,
        pool: CardPool,
        demand: Demand,
        wait: float | None,
        environ: Mapping[str, str],
        tell: Callable[[str], object],
        place: socket.socket | None = None,
    ) -> None:
        own = None if place or wait == 0 else own_place(pool, environ)
        there = place or own
        self._own_place, self._others = own, line.OtherLines(there) if there else None
        scope = scope_of(environ)
        self._bits = {gpu.uuid: bit_of(lease_name(gpu.key, scope)) for gpu in pool.gpus}
        self._loop = Loop()
        self._run = Run(
            pool.gpus,
            RunConfig(OnCards(pool.most, memory=pool.memory, limited_by=pool.limited_by)),
            unrecorded(pool.gpus, JOB, os.getpid()),
        )
        self._tell: Callable[[str], object] | None = tell
        self._launch: Launch | None = None
        self._driver = Driver(self._run, self._loop, self, wait)
        self._cards = CardLeases(pool, self._loop, self._driver.post, environ, self)
        self._driver.post(Submitted((Job(JOB, "", demand=demand),)))
        self._loop.call_after(OWN, KEPT_AFTER, OWN.keep)

    def take(self) -> tuple[tuple[Gpu, ...], list[int]]:
        """Wait for cards, and return them and their leases' descriptors.

        Raises WaitRanOut, or NoCardsError when the cards can never be had.
        """
        self._driver.settle()
        while self._launch is None:
            self._driver.turn()
        # The driver's helper process has to end: the command must not have it as a child.
        self._cards.settle()
        self._leave()
        gpus = self._launch.gpus
        return gpus, self._cards.descriptors([gpu.uuid for gpu in gpus])

    def working(self) -> bool:
        return False

    def is_for_others(self, gpu: str) -> bool:
        return self._others is not None and self._others.wait_for(self._bits[gpu])

    def _leave(self) -> None:
        """Give up the place that was taken here, and the connections to those in other lines."""
        for ours in (self._own_place, self._others):
            if ours is not None:
                ours.close()

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

    def close(self) -> None:
        self._leave()
        self._cards.close()
        self._loop.close()


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


def exec_environment(
    pool: CardPool,
    demand: Demand,
    wait: float | None,
    environ: Mapping[str, str],
    tell: Callable[[str], object],
    affinity: Literal["card", "none"] | None = None,
    place: socket.socket | None = None,
) -> dict[str, str]:
    """Take cards for good; return the environment in which a program sees only these.

    This process runs on the CPUs near them from then on, as `affinity` says.
    """
    gpus = take_for_good(pool, demand, wait, environ, tell, place)
    job = Job(JOB, (), demand=demand, affinity=affinity)
    return environment_on(gpus, pool, environ, run_near(pool, job, gpus, tell))


def run_near(
    pool: CardPool, job: Job, gpus: Sequence[Gpu], tell: Callable[[str], object]
) -> NearCpus | None:
    """Keep this process, and what it becomes, to the CPUs near its cards; return them.

    None: to none but those it has.
    """
    near = pool.machine.placement.near(job, gpus)
    if near is None:
        return None
    try:
        os.sched_setaffinity(0, near.cpus)
    except OSError:
        tell("the CPUs near the card are not allowed any more: it runs on those that are")
        return None
    return near


def exec_in_container(
    argv: tuple[str, ...],
    container: Container,
    here: ImageHere,
    pool: CardPool,
    demand: Demand,
    wait: float | None,
    environ: Mapping[str, str],
    tell: Callable[[str], object],
    affinity: Literal["card", "none"] | None = None,
    place: socket.socket | None = None,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Take cards for good; return the line, and its environment, that runs `argv` there.

    Raises as `take_for_good` does, and OSError or NotContainedError.
    """
    from gpulaunch.app.in_container import made_contained

    gpus = take_for_good(pool, demand, wait, environ, tell, place)
    job = Job(JOB, argv, demand=demand, cwd=os.getcwd(), container=container, affinity=affinity)
    attempt = AttemptPlace(
        gpus, pool.style, own_scope(), port_for_good(), near=run_near(pool, job, gpus, tell)
    )
    return made_contained(job, here, attempt, pool.machine, as_given(environ), argv, {})


def environment_on(
    gpus: tuple[Gpu, ...],
    pool: CardPool,
    environ: Mapping[str, str],
    near: NearCpus | None = None,
) -> dict[str, str]:
    """Return the environment in which a program sees only these cards; reserves its port."""
    environ = as_given(environ)
    job = Job(JOB, (), demand=Demand(gpus=len(gpus)))
    place = AttemptPlace(gpus, pool.style, own_scope(), port_for_good(), near=near)
    return delta(job, place, pool.machine, environ, {}).over(environ)


def take_for_good(
    pool: CardPool,
    demand: Demand,
    wait: float | None,
    environ: Mapping[str, str],
    tell: Callable[[str], object],
    place: socket.socket | None = None,
) -> tuple[Gpu, ...]:
    """Take cards until the last process that inherits them ends. Raises as `Single.take` does."""
    gpus, descriptors = Single(pool, demand, wait, environ, tell, place).take()
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
