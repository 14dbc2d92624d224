"""`gpulaunch exec`: become one command on the next free card(s)."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import click

from gpulaunch.cli.options import DURATION, pool_options, refuse_option_as_command
from gpulaunch.errors import (
    EXEC_CANNOT_EXECUTE,
    EXEC_NOT_FOUND,
    EXEC_OWN_FAILURE,
    EXEC_WAIT_RAN_OUT,
    GpulaunchError,
)


@click.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-g", "count", type=click.IntRange(0), metavar="N", help="Cards (1).")
@click.option("--wait", type=DURATION, help="How long to wait for a card (for ever).")
@click.option("--no-wait", is_flag=True, help="Do not wait at all.")
@pool_options
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD...")
def command(
    count: int | None,
    wait: float | None,
    no_wait: bool,
    gpus: str | None,
    simulate: int | None,
    share_busy: bool | None,
    argv: tuple[str, ...],
) -> int:
    """Become CMD on the next free card(s).

    Stands where CUDA_VISIBLE_DEVICES=1 CMD stood: terminal, job control, signals and exit status
    are CMD's own. The lease ends with its processes. Exit status 124: the wait ran out; 125:
    gpulaunch's own failure; 126, 127: CMD cannot be executed, or was not found.

    \b
    gpulaunch exec -- python predict.py --device cuda:0
    gpulaunch exec -g 2 --wait 1h -- torchrun --nproc-per-node 2 train.py
    gpulaunch exec --gpus 3, -- python predict.py       on card 3; --gpus 3: on 3 cards, any
    """
    from gpulaunch.engines.single import WaitRanOut

    try:
        refuse_option_as_command(argv)
        environment = _take(count, 0.0 if no_wait else wait, gpus, simulate, bool(share_busy))
    except KeyboardInterrupt:
        return 130
    except WaitRanOut as error:
        return _say(str(error), EXEC_WAIT_RAN_OUT)
    except (GpulaunchError, OSError) as error:
        return _say(str(error), EXEC_OWN_FAILURE)
    return _become(argv, environment)


def _take(
    count: int | None, wait: float | None, spec: str | None, simulate: int | None, share_busy: bool
) -> dict[str, str]:
    """Take the cards; returns the environment under which CMD finds exactly them.

    `count` as `-g` says it; None: as many as `spec` does, else one. What a `spec` came to is said.
    """
    from gpulaunch.core.selection import describe_taken
    from gpulaunch.engines.pool import open_pool, require
    from gpulaunch.engines.single import exec_environment

    pool = open_pool(spec, simulate, os.environ, f"exec-{os.getpid()}", share_busy)
    if count is None:
        count = 1 if pool.selection.count is None else pool.selection.count
    require(pool, count)
    if spec is not None and pool.here:
        _tell(describe_taken(count, pool.selection, pool.here))
    return exec_environment(pool, count, wait, os.environ, _tell)


def _become(argv: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and that outlives an exec
    try:
        if not argv[0]:
            raise FileNotFoundError
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        raise SystemExit(_say(f"{argv[0] or repr(argv[0])}: not found", EXEC_NOT_FOUND)) from None
    except OSError as error:
        text = f"{argv[0]}: cannot be executed: {error.strerror}"
        raise SystemExit(_say(text, EXEC_CANNOT_EXECUTE)) from None


def _tell(text: str) -> None:
    _say(text, 0)


def _say(text: str, status: int) -> int:
    click.echo(f"gpulaunch exec: {text}", err=True)
    return status
