"""`gpulaunch exec` becomes one command on the next free card(s); `gpulaunch hold` keeps cards.

`hold` keeps them by name, for a time or as long as a command lives.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import click

from gpulaunch.base.errors import (
    EXEC_CANNOT_EXECUTE,
    EXEC_NOT_FOUND,
    EXEC_OWN_FAILURE,
    EXEC_WAIT_RAN_OUT,
    OF_EXEC,
    OF_HOLD,
    GpulaunchError,
    UsageError,
)
from gpulaunch.base.text import shell_word
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

if TYPE_CHECKING:
    from gpulaunch.core.model import Container, Gpu
    from gpulaunch.engines.context import ImageHere
    from gpulaunch.engines.pool import CardPool
    from gpulaunch.gpus.socket_locks import NamedHold
    from gpulaunch.jobfile.config_model import CardSettings
    from gpulaunch.run.exec import CardRequest
    from gpulaunch.run.wait_queue import Turn


turn_option = click.option("--turn", hidden=True, help="Own: goes on with a place in the line.")


class Say(Protocol):
    """Write a line to standard error, and return the status given."""

    def __call__(self, text: str, status: int = 0, /) -> int: ...


def as_command(name: str) -> Say:
    """Return a Say whose lines begin with the command's name."""

    def say(text: str, status: int = 0, /) -> int:
        click.echo(f"gpulaunch {name}: {text}", err=True)
        return status

    return say


_say = as_command("exec")


def with_status(run: Callable[[], int], say: Say) -> int:
    """Return the status of `run`; where it fails, say why and return the status for that."""
    from gpulaunch.run.exec import WaitRanOut

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
    from gpulaunch.base.free_below import parse_free_below
    from gpulaunch.engines.pool import open_pool, require

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
    from gpulaunch.run.exec import keep_beside_command

    keep_beside_command(seconds, grace)
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and an exec would keep that
    try:
        if not argv[0]:
            raise FileNotFoundError(errno.ENOENT, "")
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise SystemExit(say(*_not_executed(argv[0], error.errno or errno.EIO))) from None


def _not_executed(program: str, error: int) -> tuple[str, int]:
    """Return why the program was not executed, and a shell's status for that."""
    if error == errno.ENOENT:
        return f"{program or repr(program)}: not found", EXEC_NOT_FOUND
    return f"{program}: cannot be executed: {os.strerror(error)}", EXEC_CANNOT_EXECUTE


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
@turn_option
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
    from gpulaunch.journal.find import working_directory
    from gpulaunch.run.in_container import container_of

    return container_of(image, mounts, working_directory(), os.environ)


def _bytes_of(memory: str) -> int:
    from gpulaunch.base.text import parse_size

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

    from gpulaunch.containers.engines import CARRIED
    from gpulaunch.core.model import describe_taken
    from gpulaunch.run.exec import (
        CardRequest,
        demand_of,
        environment_on,
        in_container,
        run_near,
        take_cards,
    )
    from gpulaunch.run.wait_queue import Turn

    turn = None if told is None else Turn.come(told)
    refuse_option_as_command(argv)
    config = None if turn is None else turn.config
    pool, count = pool_asked_for("exec", count, gpus, simulate, share_busy, free_below, config)
    if gpus is not None and pool.here and turn is None:
        _say(describe_taken(count, pool.selection, pool.here))
    demand = replace(demand_of(count, card, compute), memory=memory)
    here = None if turn is None else turn.image
    if container is not None and here is None:
        from gpulaunch.run.in_container import pulled

        here = pulled(container.source, os.environ, _say)
    asked = CardRequest(pool, demand, wait, os.environ, _say, affinity)
    asked = in_line("exec", asked, turn, here)
    taken = take_cards(asked)
    near = run_near(asked, taken)
    environment: Mapping[str, str]
    if container is None or here is None:
        environment = environment_on(taken, asked, near)
    else:
        argv, environment = in_container(argv, container, here, taken, asked, near)
    if here is None or here.engine not in CARRIED:
        _limit(memory)
    become(argv, environment, _say)


def in_line(
    command: str, asked: CardRequest, turn: Turn | None, image: ImageHere | None = None
) -> CardRequest:
    """Wait for this launcher's turn to ask for cards; return the request with its turn.

    Where somebody is ahead, becomes a small process that waits, and goes on with `--turn`.
    """
    from msgspec.structs import replace

    from gpulaunch.base.text import several
    from gpulaunch.run.wait_queue import Turn

    if turn is None and asked.wait != 0 and asked.demand.gpus:
        turn = Turn.take(asked.pool, asked.demand, asked.wait, image, asked.environ)
        if ahead := turn.ahead:
            others = several(ahead, "launcher")
            asked.tell(f"waits its turn: {others} of yours asked for the same before")
            sys.stderr.flush()
            turn.wait(command, sys.argv[sys.argv.index(command, 1) + 1 :], asked.environ)
    return replace(asked, turn=turn, wait=turn.left) if turn else asked


# ── Hold ──────────────────────────────────────────────────────────────────────────────────────────

SHOWN = (
    *("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"),
    *("GPULAUNCH_GPU_INDEX", "GPULAUNCH_GPU_UUID", "GPULAUNCH_LEASED"),
)
"""The variables with which another terminal uses the cards; by the last, launchers there do too."""

_say_holding = as_command("hold")


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
def hold(
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
    return with_status(lambda: _hold(argv, seconds, wait, turn, **given), _say_holding)


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
    from gpulaunch.core.model import Demand
    from gpulaunch.gpus.socket_locks import NamedHold, announce_hold, printable
    from gpulaunch.run.exec import (
        CardRequest,
        environment_on,
        hold_through_exec,
        run_near,
        take_cards,
    )
    from gpulaunch.run.wait_queue import Turn

    turn = None if told is None else Turn.come(told)
    refuse_option_as_command(argv)
    if not seconds:
        raise UsageError("--for takes a time like 90m or 4h, and found none at all")
    if not printable(name):
        raise UsageError("--name: expected at most 60 bytes that can be printed")
    config = None if turn is None else turn.config
    pool, count = pool_asked_for("hold", count, gpus, simulate, share_busy, free_below, config)
    asked = CardRequest(pool, Demand(gpus=count), wait, os.environ, _say_holding)
    asked = in_line("hold", asked, turn)
    cards = take_cards(asked)
    environment = environment_on(cards, asked, run_near(asked, cards) if argv else None)
    hold = NamedHold(name, None if math.isinf(seconds) else time.time() + seconds)
    announced = announce_hold(hold)
    hold_through_exec([announced.fileno()])
    _say_holding(_held(cards, hold, seconds))
    if not argv:
        _say_holding(
            f"{'Ctrl-C gives them back' if count > 1 else 'Ctrl-C gives it back'}; elsewhere:"
        )
        click.echo(f"export {_exported(environment)}")
        argv = ("sleep", "infinity" if math.isinf(seconds) else str(seconds))
        seconds += 1.0  # it ends by itself, unless it was stopped
    hint = _no_job(argv)
    become(
        argv, environment, lambda text, status: _say_holding(text + hint, status), seconds, grace
    )


def _no_job(argv: Sequence[str]) -> str:
    """Return what somebody may have meant who typed one word that is no program."""
    if len(argv) > 1:
        return ""
    return "; hold keeps cards: a job is kept from starting by not_before: in the job file"


def _held(cards: Sequence[Gpu], hold: NamedHold, seconds: float) -> str:
    """`GPU 0 is held for 'lunch demo' until 17:30 (in 4 h)`."""
    from gpulaunch.base.localtime import about
    from gpulaunch.observe.present.words import cards as named

    left = "" if math.isinf(seconds) else f" (in {about(seconds)})"
    return f"{named(cards)} {'is' if len(cards) == 1 else 'are'} held{hold}{left}"


def _exported(environment: Mapping[str, str]) -> str:
    """Return the variables with which a program elsewhere uses the cards, for a shell."""
    return " ".join(
        f"{name}={shell_word(environment[name])}" for name in SHOWN if name in environment
    )
