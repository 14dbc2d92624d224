"""The command of a job, started by hand and outside its run: `gpulaunch exec --job`.

cards ─▶ a directory of its own ─▶ placeholders filled ─▶ argv, directory, environment

The run that the job is of is read and left as it is: no log, `out/` or `results/` of its own is
touched, and its processes are never taken for the run's.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from gpulaunch.core.model import AttemptId, Demand, Gpu, Job
from gpulaunch.core.template import render
from gpulaunch.engines import strict
from gpulaunch.engines.environment import AttemptPlace, placeholders
from gpulaunch.engines.local.readiness import address_of
from gpulaunch.engines.local.single import own_scope, port_for_good
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.prepare import argv_of, dressed, materialise, wants_port
from gpulaunch.journal.rundir import RunDir


@dataclass(frozen=True, slots=True)
class SourceRun:
    """The run that a job belongs to. `run` is the run's id, empty for a job file without a run.

    `directory` is the run's, or, without a run, the one where runs are made. `attempt` is the
    number that the job's next attempt would have.
    """

    directory: RunDir
    run: str = ""
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class ByHand:
    """The program to execute. `out` is the command's `{{out}}`; `address` a service's HOST:PORT."""

    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str] = field(repr=False)
    out: str
    address: str = ""


def demand_of(job: Job) -> Demand:
    """Return the demand that a start by hand waits for: the job's cards, without its tokens.

    Tokens are counted within a run, and this start is in none.
    """
    return Demand(gpus=job.demand.gpus, gpu_memory=job.demand.gpu_memory)


def prepared(
    job: Job, origin: SourceRun, pool: CardPool, gpus: Sequence[Gpu], environ: Mapping[str, str]
) -> ByHand:
    """Make what the command needs on disk, reserve its ports, and return what to execute.

    Raises OSError, NotPreparedError or UsageError where that cannot be.
    """
    home = _fresh(origin.directory, job.name)
    place = strict.placed(job, _place(job, origin, home, pool, gpus))
    log = home.log(AttemptId(job.name, origin.attempt))
    log.touch(0o600)
    values = placeholders(place, str(log), materialise(job, home))
    changes = dressed(job, place, pool.machine, environ, values)
    ready_at = render(job.service.ready, values) if job.service else ""
    return ByHand(
        argv=argv_of(job, values),
        cwd=job.cwd,
        environment=changes.over(environ),
        out=place.out,
        address=address_of(ready_at) if ready_at else "",
    )


def _fresh(directory: RunDir, job: str) -> RunDir:
    """Return a directory that no other start by hand of the job uses, with an empty `{{out}}`.

    A directory in which an earlier start left nothing is used again.
    """
    for number in count(1):
        home = directory.by_hand(job, number)
        home.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = _made(home.path)
        if _kept(home, new):
            break
    home.outs.mkdir(mode=0o700, exist_ok=True)
    home.logs.mkdir(mode=0o700, exist_ok=True)
    return home


def _made(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _kept(home: RunDir, new: bool) -> bool:
    """Take the directory if no other process has it and it holds only empty logs; return whether.

    The lock's descriptor is never closed: the executed command and all its children inherit it, as
    they inherit the cards' leases.
    """
    held = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = new or not _used(home)
    except BlockingIOError:
        mine = False
    except OSError:  # a file system without locks
        mine = new
    if mine:
        os.set_inheritable(held, True)
    else:
        os.close(held)
    return mine


def _used(home: RunDir) -> bool:
    """Whether the directory holds anything but empty logs."""
    left = (each for each in home.path.rglob("*") if each not in (home.outs, home.logs))
    return any(each.parent != home.logs or each.stat().st_size > 0 for each in left)


def _place(
    job: Job, origin: SourceRun, home: RunDir, pool: CardPool, gpus: Sequence[Gpu]
) -> AttemptPlace:
    run_dir = origin.directory if origin.run else home
    return AttemptPlace(
        gpus=tuple(gpus),
        style="uuid" if pool.style == "uuid" else job.visible,
        scope=own_scope(),
        master_port=port_for_good(),
        # Not the run's own id: by that its processes are known, and ended.
        run=f"{origin.run}-byhand",
        run_dir=str(run_dir.path),
        attempt=origin.attempt,
        out=str(home.outs),
        port=port_for_good() if wants_port(job) else None,
    )
