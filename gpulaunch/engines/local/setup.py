"""What this machine's engine needs before a run; see `engines.EngineSetup`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpulaunch.core.selection import Selection
from gpulaunch.engines import pool as pools
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.descriptors import require_descriptors
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.protocol import Engine, Post
from gpulaunch.errors import UsageError
from gpulaunch.journal.choices import Choices
from gpulaunch.loop import Loop


def require_fitting(choices: Choices, words: Sequence[str], wait: float | None) -> None:
    if words:
        raise UsageError("--slurm goes with --engine slurm")


def open_pool(
    spec: str | Selection | None, choices: Choices, environ: Mapping[str, str], run: str
) -> CardPool:
    return pools.open_pool(spec, choices.simulate, environ, run, bool(choices.share_busy))


def require_here(pool: CardPool, environ: Mapping[str, str]) -> None:
    require_descriptors(len(pool.gpus))


def make(
    context: RunContext, pool: CardPool, words: Sequence[str], loop: Loop, post: Post
) -> Engine:
    from gpulaunch.engines.local.engine import Local

    return Local(context, pool, loop, post)
