"""`gpulaunch hold`: cards kept by name, for a time or as long as a command lives."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gpulaunch.cli.exec import (
    as_command,
    become,
    in_line,
    pool_asked_for,
    turn_option,
    with_status,
)
from gpulaunch.cli.options import (
    DURATION,
    command_words,
    pool_options,
    refuse_option_as_command,
    tells_exit_statuses,
)
from gpulaunch.errors import OF_HOLD, UsageError
from gpulaunch.text import shell_word

if TYPE_CHECKING:
    from gpulaunch.core.model import Gpu
    from gpulaunch.gpus.names import NamedHold

SHOWN = (
    *("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"),
    *("GPULAUNCH_GPU_INDEX", "GPULAUNCH_GPU_UUID", "GPULAUNCH_LEASED"),
)
"""The variables with which another terminal uses the cards; by the last, launchers there do too."""

_say = as_command("hold")


@click.command(
    "hold",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-g", "count", type=click.IntRange(1), metavar="N", help="Cards (1).")
@click.option(
    "--for", "seconds", type=DURATION, default=math.inf, help="How long, once the cards are there."
)
@click.option("--name", default="", metavar="NAME", help="What for: others see it.")
@click.option("--grace", type=DURATION, default=10.0, help="CMD's time from TERM to KILL (10s).")
@click.option("--wait", type=DURATION, help="How long to wait for a card (for ever).")
@click.option("--no-wait", is_flag=True, help="Do not wait at all.")
@pool_options
@turn_option
@command_words("argv", "[CMD...]", required=False)
@tells_exit_statuses(OF_HOLD)
def command(
    argv: tuple[str, ...],
    seconds: float,
    wait: float | None,
    no_wait: bool,
    turn: str | None,
    **given: Any,
) -> int:
    """Keep the next free card(s): for a time, or as long as CMD lives.

    `gpulaunch gpus` and every launcher that waits say whose they are, what for, and until when.

    As `exec`, it becomes CMD, which sees exactly these cards, and the lease ends with CMD's
    processes. When the time of --for is over, CMD and all that it started get SIGTERM, and SIGKILL
    after --grace. Without CMD it becomes a program that waits until the time is over or Ctrl-C, and
    a line on standard output says how another terminal uses the cards. Exit statuses of gpulaunch:

    {statuses}

    \b
    gpulaunch hold -g 1 --for 4h -- bash           a shell with a card, for four hours
    gpulaunch hold --gpus 2, --for 90m --name 'lunch demo'
    gpulaunch hold -g 2 --wait 1h -- jupyter lab
    """
    wait = 0.0 if no_wait else wait
    return with_status(lambda: _hold(argv, seconds, wait, turn, **given), _say)


def _hold(
    argv: tuple[str, ...],
    seconds: float,
    wait: float | None,
    told: str | None,
    count: int | None,
    name: str,
    grace: float,
    gpus: str | None,
    simulate: int | None,
    share_busy: bool | None,
    free_below: str | None,
) -> NoReturn:
    """Take the cards, say how long they are held, and become CMD, or a program that waits."""
    from gpulaunch.app.exec import (
        CardRequest,
        environment_on,
        hold_through_exec,
        run_near,
        take_cards,
    )
    from gpulaunch.app.wait_queue import Turn
    from gpulaunch.core.model import Demand
    from gpulaunch.gpus.names import NamedHold, announce_hold, printable

    turn = None if told is None else Turn.come(told)
    refuse_option_as_command(argv)
    if not seconds:
        raise UsageError("--for takes a time like 90m or 4h, and found none at all")
    if not printable(name):
        raise UsageError("--name: expected at most 60 bytes that can be printed")
    config = None if turn is None else turn.config
    pool, count = pool_asked_for("hold", count, gpus, simulate, share_busy, free_below, config)
    asked = CardRequest(pool, Demand(gpus=count), wait, os.environ, _say)
    asked = in_line("hold", asked, turn)
    cards = take_cards(asked)
    environment = environment_on(cards, asked, run_near(asked, cards) if argv else None)
    hold = NamedHold(name, None if math.isinf(seconds) else time.time() + seconds)
    announced = announce_hold(hold)
    hold_through_exec([announced.fileno()])
    _say(_held(cards, hold, seconds))
    if not argv:
        _say(f"{'Ctrl-C gives them back' if count > 1 else 'Ctrl-C gives it back'}; elsewhere:")
        click.echo(f"export {_exported(environment)}")
        argv = ("sleep", "infinity" if math.isinf(seconds) else str(seconds))
        seconds += 1.0  # it ends by itself, unless it was stopped
    hint = _no_job(argv)
    become(argv, environment, lambda text, status: _say(text + hint, status), seconds, grace)


def _no_job(argv: Sequence[str]) -> str:
    """Return what somebody may have meant who typed one word that is no program."""
    if len(argv) > 1:
        return ""
    return "; hold keeps cards: a job is kept from starting by not_before: in the job file"


def _held(cards: Sequence[Gpu], hold: NamedHold, seconds: float) -> str:
    """`GPU 0 is held for 'lunch demo' until 17:30 (in 4 h)`."""
    from gpulaunch.digest.words import cards as named
    from gpulaunch.localtime import about

    left = "" if math.isinf(seconds) else f" (in {about(seconds)})"
    return f"{named(cards)} {'is' if len(cards) == 1 else 'are'} held{hold}{left}"


def _exported(environment: Mapping[str, str]) -> str:
    """Return the variables with which a program elsewhere uses the cards, for a shell."""
    return " ".join(
        f"{name}={shell_word(environment[name])}" for name in SHOWN if name in environment
    )
