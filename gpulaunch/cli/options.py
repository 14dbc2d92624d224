"""Options that several commands share, the values they take, and the job list given to a command.

The list is a file, or, for `-`, what standard input has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.base.text import parse_span
from gpulaunch.cli import completion
from gpulaunch.journal.choices import Choices

if TYPE_CHECKING:
    from gpulaunch.run.options import RunOptions

    OfFloat = click.ParamType[float]
    OfStr = click.ParamType[str]
else:
    OfFloat = OfStr = click.ParamType  # click before 8.4 has one for all


F = TypeVar("F", bound=Callable[..., Any])


class Duration(OfFloat):
    """Seconds, typed as in a job file: `90`, `30s`, `2h`, `1h30m`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_span(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class HoursOfTheWeek(OfStr):
    """Hours as `--between` takes them, spelled in one way: `mon-fri 19:00-07:30,sat,sun`."""

    name = "hours"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from gpulaunch.base.hours import ALWAYS, parse_hours

        try:
            return str(parse_hours(value) or ALWAYS)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class MemoryLine(OfStr):
    """What `--free-below` takes, as it was typed: `2GB`, `5%` or `2GB,5%`."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from gpulaunch.base.free_below import parse_free_below

        try:
            parse_free_below(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def run_options_of(given: Mapping[str, Any]) -> RunOptions:
    """Return the options of a run from click's parsed values, by name; others are passed over."""
    from gpulaunch.run.options import RunOptions

    choices = Choices(**{name: given[name] for name in _CHOICES & given.keys()})
    own = {name: given[name] for name in ("engine", "slurm", "wait") if name in given}
    detached = bool(given.get("detach"))
    return RunOptions(
        choices=choices,
        metrics_port=None if given.get("dry_run") else given.get("metrics_port"),
        watched=not detached and sys.stdin.isatty() and sys.stderr.isatty(),
        detached=detached,
        **own,
    )


_CHOICES = frozenset(Choices.__struct_fields__)

DURATION = Duration()


def run_option(text: str, *names: str, multiple: bool = False) -> Callable[[F], F]:
    """Return the option `-r RUN`."""
    complete = completion.runs
    return click.option(
        "-r", "--run", *names, metavar="RUN", multiple=multiple, shell_complete=complete, help=text
    )


only_alive = run_option("The run; the only one alive here.")
run_dir = click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the run is kept.",
)


def job_option(name: str, text: str, multiple: bool = False) -> Callable[[F], F]:
    """Return an option that takes the name of a job."""
    complete = completion.jobs()
    return click.option(name, metavar="JOB", multiple=multiple, shell_complete=complete, help=text)


def command_words(name: str, metavar: str, required: bool = True) -> Callable[[F], F]:
    """Return the argument that takes a command, its options included."""
    return click.argument(
        name,
        nargs=-1,
        required=required,
        type=click.UNPROCESSED,
        metavar=metavar,
        shell_complete=completion.program,
    )


def run_argument(command: F) -> F:
    """Give a command its RUN as an argument, or as `-r` as in commands that take jobs."""

    @click.argument("run", required=False, shell_complete=completion.runs)
    @run_option("The run, as its place says too.", "named")
    @wraps(command)
    def with_run(run: str | None, named: str | None, **options: Any) -> Any:
        if run is not None and named is not None:
            raise UsageError(f"two runs are named, {run!r} and (-r) {named!r}: leave one out")
        return command(run=named if run is None else run, **options)

    return with_run  # type: ignore[return-value]


job_file = click.argument(
    "jobs",
    type=click.Path(path_type=Path, allow_dash=True),
    shell_complete=completion.job_files,
)


class AskedForJson(Struct):
    """Whether a command's failure is to be reported as JSON too."""

    json: bool = False


def _note_json(context: click.Context, _: click.Parameter, value: bool) -> bool:
    if value and isinstance(context.obj, AskedForJson):
        context.obj.json = True
    return value


def json_option(text: str) -> Callable[[F], F]:
    """Return the option `--json`, with which a command's failure is reported as JSON too."""
    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=_note_json, help=text
    )


def tells_exit_statuses(meanings: Mapping[int, str]) -> Callable[[F], F]:
    """Return a decorator that lists exit statuses in a help text, where it has {statuses}."""
    lines = [f"    {status:<3}  {meaning}" for status, meaning in meanings.items()]

    def tell(function: F) -> F:
        doc = function.__doc__ or ""  # None under -OO
        function.__doc__ = doc.replace("    {statuses}", "\n".join(["    \b", *lines]))
        return function

    return tell


as_json = json_option("Print JSON on standard output.")


def refuse_option_as_command(words: Sequence[str]) -> None:
    """Raise UsageError if the command's first word is a mistyped option.

    A command of such a name can be given after `--`, which is not among the words.
    """
    if words and words[0].startswith("-") and sys.argv.count("--") <= words.count("--"):
        option = words[0].partition("=")[0]
        if not option.startswith("--"):
            option = option[:2]
        context = click.get_current_context()
        raise UsageError(f"there is no option {option}{instead_of_option(option, context)}")


def as_options(error: JobFileError, command: str) -> str:
    """Return the mistakes of a job that a command line made, each by its option: `--timeout: ...`.

    There is no file: its lines and columns mean nothing.
    """
    told = dict.fromkeys(f"{_option_of(one.field, command)}: {one.message}" for one in error.found)
    return "\n".join(told)


def _option_of(field: str, command: str) -> str:
    """Return the command line's name for a field: CMD for `jobs[0].run[1]`."""
    name = field.rpartition(".")[2].partition("[")[0]
    own = {"run": "CMD", "foreach": "ITEM", "gpus": "-g", "": command}
    own |= {"foreach": "--gpus"} if command == "each" else {}
    own |= {"image": "--container", "mounts": "--mount"}
    return own.get(name, f"--{name.replace('_', '-')}")


def refuse_mounts_alone(mounts: Sequence[str]) -> None:
    """Raise UsageError for --mount where there is no --container."""
    if mounts:
        raise UsageError(f"--mount {mounts[0]} goes with --container IMAGE")


def instead_of_option(option: str, context: click.Context) -> str:
    """Return the end of a line about an unknown option of a command."""
    from gpulaunch.cli import habits

    command = context.command
    known = [name for param in command.params for name in (*param.opts, *param.secondary_opts)]
    fields: Collection[str] = ()
    defaults: Collection[str] = ()
    if command.name in ("run", "map", "resume", "retry", "check"):
        from gpulaunch.jobfile.fields import DEFAULT_FIELDS as defaults
        from gpulaunch.jobfile.fields import FIELDS as fields
    return habits.instead_of_option(option, command.name or "", known, fields, defaults)


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator that adds all the options, in their order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _simulate(least: int, text: str) -> Callable[[F], F]:
    return click.option("--simulate", type=click.IntRange(least, 64), metavar="N", help=text)


GPUS_HELP = "all; how many; which: 0,2 (one: 2,), UUIDs."
gpus_option = click.option("--gpus", metavar="SPEC", shell_complete=completion.gpus, help=GPUS_HELP)
simulate_option = _simulate(1, "Pretend N cards.")
_SHARE_BUSY = click.option(
    "--share-busy/--no-share-busy",
    default=None,
    help="Also take cards that others' processes use.",
)
_FREE_BELOW = click.option(
    "--free-below",
    type=MemoryLine(),
    metavar="MEMORY",
    help="A card with less in use, by nobody known or by a desktop, is free: 2GB, 5% (512MiB,1%).",
)
_TAKING = (_SHARE_BUSY, _FREE_BELOW)
pool_options = _options(gpus_option, simulate_option, *_TAKING)
"""Which cards, for commands that start something new."""
pool_options_again = _options(
    gpus_option, _simulate(0, "Pretend N cards; 0: the real ones again."), *_TAKING
)
"""Which cards, for commands that go on with a run."""
container_options = _options(
    click.option(
        "--container",
        metavar="IMAGE",
        shell_complete=completion.files,
        help="Inside this image: image.sif, docker://name:tag.",
    ),
    click.option(
        "--mount",
        multiple=True,
        metavar="PATH[:INSIDE[:ro]]",
        shell_complete=completion.files,
        help="With --container: this file or directory appears inside as well.",
    ),
)
"""The container, for `exec` and `map`."""
kind_options = _options(
    click.option(
        "--card",
        metavar="GLOB",
        shell_complete=completion.models,
        help="Only cards of such a name: '*A100*'.",
    ),
    click.option("--compute", metavar="N.N", help="Only of this compute capability, or more: 8.0."),
    click.option(
        "--affinity",
        type=click.Choice(["card", "none"]),
        help="On the CPUs near its card; on all (card, with NUMA nodes).",
    ),
)
"""The kind of cards, and the CPUs, for `exec`, `map` and `add`."""
engine_options = _options(
    click.option(
        "--engine",
        type=click.Choice(["local", "slurm"]),
        help="Run on this machine's cards (local), or hand the jobs to Slurm.",
    ),
    click.option(
        "--slurm",
        multiple=True,
        metavar="OPTION",
        help="An option of sbatch for every job: --slurm --partition=gpu.",
    ),
)
"""The engine, for `run`, `map`, `resume`, `retry` and `check`."""
only = click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    shell_complete=completion.jobs_of_file,
    help="These jobs, and what they need ('*': all).",
)
per_gpu = click.option(
    "--per-gpu",
    type=click.IntRange(1),
    metavar="N",
    help="Jobs a card, where a job does not say; above the file's own per_gpu.",
)

default = click.option(
    "--default",
    multiple=True,
    metavar="FIELD=VALUE",
    shell_complete=completion.defaults,
    help="A field of jobs that do not say: timeout=2h, gpus=2, 'env={A: 1}'.",
)

following = _options(
    click.option(
        "--follow/--no-follow",
        default=None,
        help="Look at the inputs of foreach again as they change, until gpulaunch finish.",
    ),
    click.option(
        "--settle",
        type=DURATION,
        metavar="TIME",
        help="With --follow: how long a file must have been still (5s).",
    ),
)
"""Whether inputs are followed, for `run` and `resume`."""

_RUNS_OWN = (
    click.option("--fail-fast/--no-fail-fast", default=None, help="Start nothing after a failure."),
    click.option(
        "--max-failures",
        type=click.IntRange(0),
        metavar="N",
        help="... after N failures; 0: however many.",
    ),
    click.option(
        "--breaker",
        type=click.IntRange(0),
        metavar="N",
        help="Start nothing after N (10) fast failures alike in a row; 0: never stop so.",
    ),
    click.option(
        "--pin",
        type=click.Choice(["fail", "warn"]),
        help="A job that is seen on a card that is not its own: it fails (fail), or is named.",
    ),
    click.option(
        "--explain/--no-explain", default=None, help="Report Python's uncaught device errors."
    ),
    click.option("--preload/--no-preload", default=None, help="Start every job cold."),
    click.option(
        "--between",
        type=HoursOfTheWeek(),
        metavar="HOURS",
        help="Start jobs in these hours alone: 19:00-07:30; mon-fri 19:00-07:30,sat,sun; always.",
    ),
)
"""Kept with the run, and overridden by the next start that gives them."""

_OF_THIS_START = (
    click.option("--wait", type=DURATION, help="How long to wait for a first card."),
    click.option("--quiet", "-q", is_flag=True, help="Show failures and the summary only."),
    click.option("--no-progress", is_flag=True, help="Lines, also on a terminal."),
    json_option("One JSON event per line."),
    click.option("--detach", is_flag=True, help="Print the run directory and go on alone."),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="N",
        help="Serve metrics for Prometheus on 127.0.0.1:N (0: a free port).",
    ),
)

run_options = _options(*_RUNS_OWN, *_OF_THIS_START)
"""A run's behaviour and output, for `run`, `map`, `resume` and `retry`."""


# ── The job list ──────────────────────────────────────────────────────────────────────────────────
