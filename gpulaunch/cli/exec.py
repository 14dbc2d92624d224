"""`gpulaunch exec`: become one command on the next free card(s)."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from gpulaunch.cli.becoming import as_command, become, pool_asked_for, with_status
from gpulaunch.cli.options import (
    DURATION,
    command_words,
    container_options,
    kind_options,
    pool_options,
    refuse_mounts_alone,
    refuse_option_as_command,
    tells_exit_statuses,
)
from gpulaunch.errors import OF_EXEC, UsageError

if TYPE_CHECKING:
    from gpulaunch.app.in_line import Turn
    from gpulaunch.core.model import Container, Demand
    from gpulaunch.engines.context import ImageHere
    from gpulaunch.engines.pool import CardPool

_say = as_command("exec")


@click.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-g", "count", type=click.IntRange(0), metavar="N", help="Cards (1).")
@click.option("--wait", type=DURATION, help="How long to wait for a card (for ever).")
@click.option("--no-wait", is_flag=True, help="Do not wait at all.")
@click.option("--memory", metavar="SIZE", help="The most host memory it may use: 64GB.")
@kind_options
@pool_options
@container_options
@click.option("--turn", hidden=True, help="Goes on with a place in the line: app/in_line.py.")
@command_words("argv", "CMD...")
@tells_exit_statuses(OF_EXEC)
def command(
    argv: tuple[str, ...],
    wait: float | None,
    no_wait: bool,
    memory: str | None,
    container: str | None,
    mount: tuple[str, ...],
    turn: str | None,
    **given: Any,
) -> int:
    """Become CMD on the next free card(s).

    Stands where CUDA_VISIBLE_DEVICES=1 CMD stood: terminal, job control, signals and exit status
    are CMD's own. The lease ends with its processes. Exit statuses of gpulaunch:

    {statuses}

    \b
    gpulaunch exec -- python predict.py --device cuda:0
    gpulaunch exec -g 2 --wait 1h -- torchrun --nproc-per-node 2 train.py
    gpulaunch exec --gpus 3, -- python predict.py       on card 3; --gpus 3: on 3 cards, any
    gpulaunch exec --container boltz.sif -- boltz predict a.yaml
    """
    wait = 0.0 if no_wait else wait

    def run() -> NoReturn:
        most = 0 if memory is None else _bytes_of(memory)
        if container is None:
            refuse_mounts_alone(mount)
            _the_line(argv, wait, None, most, turn, **given)
        _the_line(argv, wait, _asked(container, mount), most, turn, **given)

    return with_status(run, _say)


def _asked(image: str, mounts: tuple[str, ...]) -> Container:
    from gpulaunch.app.in_container import container_of
    from gpulaunch.journal.finding import working_directory

    return container_of(image, mounts, working_directory(), os.environ)


def _bytes_of(memory: str) -> int:
    from gpulaunch.text import parse_size

    try:
        return parse_size(memory)
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None


def _limit(memory: int) -> None:
    """Limit this process's memory, and that of the command that it becomes; say where it is not."""
    from gpulaunch.engines.local.memory_limits import enter_for_good

    if memory and (why := enter_for_good(memory)):
        _say(f"its memory is not limited: {why}")


def _the_line(
    argv: tuple[str, ...],
    wait: float | None,
    container: Container | None,
    memory: int,
    told: str | None,
    count: int | None,
    gpus: str | None,
    simulate: int | None,
    share_busy: bool | None,
    free_below: str | None,
    card: str | None,
    compute: str | None,
    affinity: Literal["card", "none"] | None,
) -> NoReturn:
    """Take the cards and become CMD, in an environment in which it finds exactly them.

    In a container, that is where its image is there. Prints which cards --gpus gave.
    """
    from msgspec.structs import replace

    from gpulaunch.app.in_line import Turn
    from gpulaunch.app.single import demand_of, exec_environment, exec_in_container
    from gpulaunch.containers.command_lines import CARRIED
    from gpulaunch.core.selection import describe_taken

    turn = None if told is None else Turn.come(told)
    refuse_option_as_command(argv)
    config = None if turn is None else turn.config
    pool, count = pool_asked_for("exec", count, gpus, simulate, share_busy, free_below, config)
    if gpus is not None and pool.here and turn is None:
        _say(describe_taken(count, pool.selection, pool.here))
    demand = replace(demand_of(count, card, compute), memory=memory)
    here = None if turn is None else turn.image
    if container is not None and here is None:
        from gpulaunch.app.in_container import pulled

        here = pulled(container.source, os.environ, _say)
    # A place is kept until this process becomes the command.
    if turn := turn or _take_turn(pool, demand, wait, here):
        turn.wait()
        wait = turn.left
    taken = pool, demand, wait, os.environ, _say, affinity, turn.place if turn else None
    if container is None or here is None:
        environment = exec_environment(*taken)
        _limit(memory)
        become(argv, environment, _say)
    made = exec_in_container(argv, container, here, *taken)
    if here.engine not in CARRIED:
        _limit(memory)
    become(*made, _say)


def _take_turn(
    pool: CardPool, demand: Demand, wait: float | None, image: ImageHere | None
) -> Turn | None:
    """Return this launcher's turn to ask for cards, which is to be waited for; None: it needs none.

    Where several are ahead, becomes a small process that waits, and goes on with `--turn`.
    """
    from gpulaunch.app.in_line import Turn
    from gpulaunch.text import several

    if wait == 0 or not demand.gpus:
        return None
    until = None if wait is None else time.monotonic() + wait
    turn = Turn.take(pool, demand, until, image, os.environ)
    if ahead := turn.ahead:
        _say(f"waits its turn: {several(ahead, 'launcher')} of yours asked for the same before")
    if turn.is_far:
        sys.stderr.flush()
        turn.become_small(sys.argv[sys.argv.index("exec", 1) + 1 :], os.environ)
    return turn
