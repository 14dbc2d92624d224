"""What a run on a Slurm cluster needs before it begins; see `engines.EngineSetup`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which

from gpulaunch.base.errors import NoCardsError, UsageError
from gpulaunch.base.text import parse_span
from gpulaunch.core.model import Selection
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import MachineLimits
from gpulaunch.engines.pool import CardPool, SelectionError, cache_directory, parse
from gpulaunch.engines.protocol import Engine
from gpulaunch.jobfile.config import required
from gpulaunch.journal.choices import Choices

CYCLE = "GPULAUNCH_SLURM_CYCLE"


def require_fitting(choices: Choices, words: Sequence[str], wait: float | None) -> None:
    for given, name, reason in (
        (choices.simulate, "--simulate", "pretend cards are this machine's"),
        (choices.share_busy, "--share-busy", "which cards are in use, Slurm knows"),
        (choices.free_below, "--free-below", "which cards are in use, Slurm knows"),
        (choices.per_gpu, "--per-gpu", "Slurm gives a job whole cards"),
        (wait is not None, "--wait", "jobs wait in Slurm's queue; --slurm --deadline=TIME"),
    ):
        if given:
            raise UsageError(f"{name} does not go with --engine slurm: {reason}")


def open_pool(
    spec: str | Selection | None, choices: Choices, environ: Mapping[str, str], run: str
) -> CardPool:
    """Return a limit, and no card of this machine: looks for none, and needs no driver."""
    selection = parse(spec)
    required(environ)
    if selection.which is not None:
        raise SelectionError(
            "under --engine slurm it is all, or a number, the most cards at once: which they are,"
            " Slurm says"
        )
    return CardPool(
        gpus=(),
        limit=selection.count,
        style="index",
        # A node's CPUs are shared out by Slurm: one, where a job does not say how many it needs.
        machine=MachineLimits(cpus=1, pool=1, cache=cache_directory(environ)),
        selection=selection,
        here=(),
        engine="slurm",
    )


def require_here(pool: CardPool, environ: Mapping[str, str]) -> None:
    from gpulaunch.engines.slurm.commands import PROGRAMS
    from gpulaunch.engines.slurm.health import unconfigured

    cycle_of(environ)
    if missing := [name for name in PROGRAMS if not which(name)]:
        raise NoCardsError(
            f"--engine slurm: {', '.join(missing)} not found in PATH: start the run where Slurm's"
            " commands are, on a login node as a rule"
        )
    if why := unconfigured(environ):
        raise NoCardsError(
            f"--engine slurm: {why}; set SLURM_CONF, or start the run where `sinfo` answers"
        )


def runs_in_queue(environ: Mapping[str, str]) -> tuple[list[Path], str]:
    from gpulaunch.engines.slurm.health import find_runs_in_queue

    return find_runs_in_queue(environ)


def make(context: RunContext, pool: CardPool, words: Sequence[str]) -> Engine:
    from gpulaunch.engines.slurm.engine import SlurmEngine

    return SlurmEngine(context, words, cycle_of(os.environ))


def cycle_of(environ: Mapping[str, str]) -> float:
    """Return the seconds between two looks at Slurm's queue. Raises UsageError for no duration."""
    try:
        if cycle := parse_span(environ.get(CYCLE, "5s")):
            return cycle
    except ValueError as error:
        raise UsageError(f"{CYCLE}: {error}") from None
    raise UsageError(f"{CYCLE}: expected a duration longer than 0")
