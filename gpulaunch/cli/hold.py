"""`gpulaunch hold`: cards kept by name, for a time or as long as a command lives."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpulaunch.cli.becoming import (
    as_command,
    become,
    not_executed,
    pool_asked_for,
    with_status,
)
from gpulaunch.cli.options import (
    DURATION,
    command_words,
    pool_options,
    refuse_option_as_command,
    tells_exit_statuses,
)
from gpulaunch.errors import (
    EXEC_OWN_FAILURE,
    HOLD_TIME_OVER,
    OF_HOLD,
    OK,
    UsageError,
)
from gpulaunch.text import shell_word, shell_words

if TYPE_CHECKING:
    from gpulaunch.app.guard import Held, HoldEnd
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
@click.option("--for", "seconds", type=DURATION, help="How long, once the cards are there.")
@click.option("--name", default="", metavar="NAME", help="What for: others see it.")
@click.option("--grace", type=DURATION, default=10.0, help="CMD's time from TERM to KILL (10s).")
@click.option("--wait", type=DURATION, help="How long to wait for a card (for ever).")
@click.option("--no-wait", is_flag=True, help="Do not wait at all.")
@pool_options
@command_words("argv", "[CMD...]", required=False)
@tells_exit_statuses(OF_HOLD)
def command(
    argv: tuple[str, ...],
    seconds: float | None,
    wait: float | None,
    no_wait: bool,
    **given: Any,
) -> int:
    """Keep the next free card(s): for a time, or as long as CMD lives.

    `gpulaunch gpus` and every launcher that waits say whose they are, what for, and until when.

    With CMD as `exec`: it sees exactly these cards, at its terminal. When the time of --for is
    over, CMD and all that it started get TERM, after --grace KILL; so does what CMD leaves behind
    when it ends earlier. Without --for the lease ends with its processes.

    Without CMD the cards are kept until the time is over or Ctrl-C, and a line on standard output
    says how another terminal uses them. Exit statuses of gpulaunch:

    {statuses}

    \b
    gpulaunch hold -g 1 --for 4h -- bash           a shell with a card, for four hours
    gpulaunch hold --gpus 2, --for 90m --name 'lunch demo'
    gpulaunch hold -g 2 --wait 1h -- jupyter lab
    """
    wait = 0.0 if no_wait else wait
    return with_status(lambda: _hold(argv, seconds, wait, **given), _say)


def _hold(
    argv: tuple[str, ...],
    seconds: float | None,
    wait: float | None,
    count: int | None,
    name: str,
    grace: float,
    gpus: str | None,
    simulate: int | None,
    share_busy: bool | None,
    free_below: str | None,
) -> int:
    """Take the cards and keep them; return the exit status."""
    from gpulaunch.app.guard import Held
    from gpulaunch.app.single import Single, environment_on, hold_through_exec, run_near
    from gpulaunch.core.model import Demand, Job
    from gpulaunch.gpus.names import NamedHold, announce_hold, printable

    refuse_option_as_command(argv)
    if seconds == 0:
        raise UsageError("--for takes a time like 90m or 4h, and found none at all")
    if not printable(name):
        raise UsageError("--name: expected at most 60 bytes that can be printed")
    pool, count = pool_asked_for("hold", count, gpus, simulate, share_busy, free_below)
    single = Single(pool, Demand(gpus=count), wait, os.environ, _say)
    cards, descriptors = single.take()
    hold = NamedHold(name, None if seconds is None else time.time() + seconds)
    job = Job("hold", (), demand=Demand(gpus=count))
    near = run_near(pool, job, cards, _say) if argv else None
    environment = environment_on(cards, pool, os.environ, near)
    with announce_hold(hold) as announced:
        kept = hold_through_exec([*descriptors, announced.fileno()])
        _say(_held(cards, hold, seconds))
        if argv and seconds is None:
            become(argv, environment, lambda text, status: _say(text + _no_job(argv), status))
        if not argv:
            _say(f"{'Ctrl-C gives them back' if count > 1 else 'Ctrl-C gives it back'}; elsewhere:")
            click.echo(f"export {_exported(environment)}")
        heard: list[int] = []
        held = Held(argv, environment, kept, seconds, grace)
        over = _guarded(held, single.forget, heard)
    return _status(argv, over, seconds, heard)


def _guarded(held: Held, forget: Callable[[], None], heard: list[int]) -> HoldEnd:
    """Leave the leases to a guard, and wait for its end; signals that caused it go to `heard`."""
    from gpulaunch.app.guard import Guarded, on_signals, terminal_as_before

    _flush()
    with terminal_as_before():
        guarded = Guarded(held)
        on_signals(guarded, heard.append, interrupt=not held.argv)
        for fd in held.descriptors:
            os.close(fd)
        forget()
        return guarded.wait()


def _status(argv: Sequence[str], over: HoldEnd, seconds: float | None, heard: Sequence[int]) -> int:
    """Return the exit status, and say why where it is not the command's own end."""
    from gpulaunch.text import span

    if over.error is not None:
        why, status = not_executed(argv[0], over.error)
        return _say(why + _no_job(argv), status)
    if over.by == "guard":
        return _say("what kept the cards was killed, and they are given back", EXEC_OWN_FAILURE)
    if over.by == "time" and argv:
        took = f"the time is over ({span(seconds or 0.0)})"
        return _say(f"{took}: {shell_words(argv)} was ended", HOLD_TIME_OVER)
    if over.status is not None:
        return over.status
    if over.by == "time":
        return _say("the time is over: given back", OK)
    return _say("given back", 128 + (heard[0] if heard else signal.SIGTERM))


def _no_job(argv: Sequence[str]) -> str:
    """Return what somebody may have meant who typed one word that is no program."""
    if len(argv) > 1:
        return ""
    return "; hold keeps cards: a job is kept from starting by not_before: in the job file"


def _held(cards: Sequence[Gpu], hold: NamedHold, seconds: float | None) -> str:
    """`GPU 0 is held for 'lunch demo' until 17:30 (in 4 h)`."""
    from gpulaunch.digest.words import cards as named
    from gpulaunch.localtime import about

    left = f" (in {about(seconds)})" if seconds is not None else ""
    return f"{named(cards)} {'is' if len(cards) == 1 else 'are'} held{hold}{left}"


def _exported(environment: Mapping[str, str]) -> str:
    """Return the variables with which a program elsewhere uses the cards, for a shell."""
    return " ".join(
        f"{name}={shell_word(environment[name])}" for name in SHOWN if name in environment
    )


def _flush() -> None:
    """Write out what is said: a fork would say it twice."""
    sys.stdout.flush()
    sys.stderr.flush()
