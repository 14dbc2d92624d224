"""What this machine's engine needs before a run; see `engines.EngineSetup`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

from gpulaunch.base.errors import UsageError
from gpulaunch.base.free_below import parse_free_below
from gpulaunch.base.text import several
from gpulaunch.core.model import Selection
from gpulaunch.engines import pool as pools
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.protocol import Engine
from gpulaunch.journal.choices import Choices

_LAUNCHER = 24
_PER_CARD = 6
"""Descriptors that the launcher needs in all, and for each card.

Those of a card are its lease (three), a launcher that waits for it, a pair of keepers and a port.
"""


def require_fitting(choices: Choices, words: Sequence[str], wait: float | None) -> None:
    if words:
        raise UsageError("--slurm goes with --engine slurm")


def open_pool(
    spec: str | Selection | None, choices: Choices, environ: Mapping[str, str], run: str
) -> CardPool:
    line = parse_free_below(choices.free_below) if choices.free_below else None
    return pools.open_pool(spec, choices.simulate, environ, run, bool(choices.share_busy), line)


def require_here(pool: CardPool, environ: Mapping[str, str]) -> None:
    require_descriptors(len(pool.gpus))


def runs_in_queue(environ: Mapping[str, str]) -> tuple[list[Path], str]:
    return [], ""


def make(context: RunContext, pool: CardPool, words: Sequence[str]) -> Engine:
    from gpulaunch.engines.local.engine import Local

    return Local(context, pool)


def require_descriptors(cards: int) -> None:
    """Raise this process's limit of open files to what a run on so many cards needs.

    The soft limit is raised where the hard one allows it, for the jobs as well. Raises UsageError
    where it does not: jobs would wait for ever for a descriptor that never comes free.
    """
    need = _LAUNCHER + _PER_CARD * cards
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if soft == RLIM_INFINITY or soft >= need:
        return
    if hard != RLIM_INFINITY and hard < need:
        raise UsageError(
            f"this process may have {hard} files open (ulimit -Hn), and a run on"
            f" {several(cards, 'card')} needs {need}: have the limit raised"
        )
    setrlimit(RLIMIT_NOFILE, (need, hard))
