"""What `exec` and `hold` share: they become a command, and speak and exit as a shell has it."""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn, Protocol

import click

from gpulaunch.errors import (
    EXEC_CANNOT_EXECUTE,
    EXEC_NOT_FOUND,
    EXEC_OWN_FAILURE,
    EXEC_WAIT_RAN_OUT,
    GpulaunchError,
)

if TYPE_CHECKING:
    from gpulaunch.config.model import CardSettings
    from gpulaunch.engines.pool import CardPool


class Say(Protocol):
    """Write a line to standard error, and return the status given."""

    def __call__(self, text: str, status: int = 0, /) -> int: ...


def as_command(name: str) -> Say:
    """Return a Say whose lines begin with the command's name."""

    def say(text: str, status: int = 0, /) -> int:
        click.echo(f"gpulaunch {name}: {text}", err=True)
        return status

    return say


def with_status(run: Callable[[], int], say: Say) -> int:
    """Return the status of `run`; where it fails, say why and return the status for that."""
    from gpulaunch.app.single import WaitRanOut

    try:
        return run()
    except KeyboardInterrupt:
        return 130
    except WaitRanOut as error:
        return say(str(error), EXEC_WAIT_RAN_OUT)
    except (GpulaunchError, OSError) as error:
        return say(str(error), EXEC_OWN_FAILURE)


def pool_asked_for(
    name: str,
    count: int | None,
    gpus: str | None,
    simulate: int | None,
    share_busy: bool | None,
    free_below: str | None,
    config: CardSettings | None = None,
) -> tuple[CardPool, int]:
    """Return the cards to choose from, and how many are wanted: as many as --gpus names, else one.

    `name`: of the command. `config`: as `open_pool` has it. Raises UsageError where there are not
    so many.
    """
    from gpulaunch.engines.pool import open_pool, require
    from gpulaunch.free_below import parse_free_below

    line = parse_free_below(free_below) if free_below else None
    run = f"{name}-{os.getpid()}"
    pool = open_pool(gpus, simulate, os.environ, run, bool(share_busy), line, config)
    if count is None:
        count = 1 if pool.selection.count is None else pool.selection.count
    require(pool, count)
    return pool, count


def become(
    argv: tuple[str, ...],
    environment: Mapping[str, str],
    say: Callable[[str, int], int],
    seconds: float = math.inf,
    grace: float = 0.0,
) -> NoReturn:
    """Become the command; where that fails, exit with the status that `say` returns.

    `seconds`, `grace`: as `keep_beside_command` has them. Raises OSError where nothing can be
    started that keeps the cards beside the command.
    """
    from gpulaunch.app.single import keep_beside_command

    keep_beside_command(seconds, grace)
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and an exec would keep that
    try:
        if not argv[0]:
            raise FileNotFoundError(errno.ENOENT, "")
        if own_files := sys.modules.get("gpulaunch.own_files"):
            own_files.OWN.close(used=(*argv, *environment.values()))
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise SystemExit(say(*_not_executed(argv[0], error.errno or errno.EIO))) from None


def _not_executed(program: str, error: int) -> tuple[str, int]:
    """Return why the program was not executed, and a shell's status for that."""
    if error == errno.ENOENT:
        return f"{program or repr(program)}: not found", EXEC_NOT_FOUND
    return f"{program}: cannot be executed: {os.strerror(error)}", EXEC_CANNOT_EXECUTE
