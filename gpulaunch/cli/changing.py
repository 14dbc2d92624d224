"""What another terminal asks of a live run.

`gpulaunch reload`, `add`, `set` and `finish` change its list; `cancel` ends jobs, `drain` gives
cards back, `wait` waits for its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.base.schemas import SCHEMA
from gpulaunch.base.text import listing, several
from gpulaunch.cli import completion
from gpulaunch.cli.given import STDIN, is_stdin, read_stdin
from gpulaunch.cli.options import (
    as_json,
    as_options,
    command_words,
    job_option,
    kind_options,
    only_alive,
    refuse_option_as_command,
    run_argument,
)
from gpulaunch.cli.output import print_json, say
from gpulaunch.cli.terminal import Terminal
from gpulaunch.journal.codec import plain
from gpulaunch.journal.find import typed, working_directory
from gpulaunch.run import edit
from gpulaunch.run.control_protocol import Changed


@click.command("reload")
@run_argument
@click.option("--dry-run", is_flag=True, help="Say what would change, change nothing.")
@as_json
def reload(run: str | None, dry_run: bool, as_json: bool) -> None:
    """Have a live run read its job file anew: new jobs join, waiting ones are as they are now.

    Waiting jobs that the file has no more are withdrawn; running and finished ones stay as they
    are. A file with a mistake changes nothing.

    \b
    gpulaunch reload
    gpulaunch reload --dry-run
    """
    one, told = edit.reload(run, Terminal(), dry_run=dry_run)
    if as_json:
        print_json({"schema": SCHEMA, "run": str(one.path), **plain(told)})
        return
    for line in (*_sentences(told), *told.notes):
        say(line)
    done = "nothing was changed (--dry-run)" if dry_run else "the run has it so from now on"
    if not told.change.nothing:
        say(f"{typed(one.path)}: {done}")


@click.command(
    "add", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@only_alive
@click.option("--name", metavar="NAME", help="The job's name; else its program's, and a number.")
@click.option("-g", "gpus", type=click.IntRange(0), metavar="N", help="Cards (1).")
@click.option("--gpu-memory", metavar="SIZE", help="Only a card with so much memory free: 16GB.")
@click.option("--share", is_flag=True, default=None, help="Share the card, as --gpu-memory fits.")
@click.option("--memory", metavar="SIZE", help="Host memory reserved: 64GB.")
@kind_options
@click.option("--cpus", type=click.IntRange(1), metavar="N", help="CPUs (1).")
@click.option("--uses", multiple=True, metavar="TOKEN", help="Named tokens of the run.")
@job_option("--needs", "Starts once these have succeeded.", multiple=True)
@job_option("--after", "Starts once these have ended.", multiple=True)
@click.option("--priority", metavar="N", help="Higher is earlier (0).")
@click.option("--timeout", metavar="TIME", help="Longest run: 2h.")
@click.option("--retries", metavar="N", help="How often it is tried again.")
@click.option("--not-before", metavar="TIME", help="Not started before: 19:00.")
@click.option("--env", multiple=True, metavar="K=V", help="A variable; kept with the job.")
@click.option(
    "--cwd", metavar="DIR", shell_complete=completion.directories, help="Its directory; this one."
)
@click.option("--wait", is_flag=True, help="Wait for its end, and exit as it does.")
@click.option("--follow", is_flag=True, help="Show its log meanwhile, and exit as it does.")
@as_json
@command_words("words", "CMD... | FILE")
def add(
    run: str | None,
    words: tuple[str, ...],
    wait: bool,
    follow: bool,
    as_json: bool,
    **fields: Any,
) -> int:
    """Add a command, or a file of jobs, to a live run. Prints the jobs' names once recorded.

    The job has this directory and this shell's environment, which is kept in memory alone. One word
    is a shell command, several are executed as they are. A file ends in .yaml, .yml or .txt (a list
    of commands, one a line), and no command stands behind it; -: either, from standard input.

    \b
    gpulaunch add -- python train.py --lr 3e-4
    gpulaunch add --name plots --needs 'fold-*' -g 0 -- 'python plot.py > plot.log'
    gpulaunch add more.yaml
    """
    terminal, given = Terminal(), _fields(fields)
    if len(words) == 1 and (words[0] == "-" or words[0].endswith((".yaml", ".yml", ".txt"))):
        if given:
            option = next(iter(given)).replace("_", "-")
            raise UsageError(f"--{option} is for a command: a file says that of each of its jobs")
        added = _add_list(Path(words[0]), run, terminal)
    else:
        refuse_option_as_command(words)
        try:
            added = edit.add_command(words, given, run, terminal)
        except JobFileError as error:
            raise UsageError(f"{as_options(error, 'add')}\nnothing was added") from None
    if as_json:
        print_json({"schema": SCHEMA, "run": str(added.run.path), "names": list(added.names)})
    elif not follow:
        click.echo("\n".join(added.names))
    if follow:
        from gpulaunch.cli.logs import follow_logs
        from gpulaunch.run.lookup import LogSelection

        say(f"added {listing(added.names, 3)} to {typed(added.run.path)}")
        follow_logs(LogSelection(added.run, added.run_id, added.names, None, raw=False), None)
    return edit.status_of(added) if wait or follow else 0


@click.command("set", context_settings={"ignore_unknown_options": True})
@only_alive
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="JOB... FIELD=VALUE...",
    shell_complete=completion.settings,
)
def set_(run: str | None, words: tuple[str, ...]) -> None:
    """Set priority, timeout, retries, gpus, memory, needs of waiting jobs. JOB may be a pattern.

    It holds over what the job file says, also after a reload, until FIELD= takes it back.

    \b
    gpulaunch set fold-x2 priority=10
    gpulaunch set 'train-*' timeout=8h 'retries={times: 3, on: [timeout]}'
    gpulaunch set fold-x2 priority=
    """
    one, told = edit.set_fields(words, run, Terminal())
    changed = told.change.changed
    if not changed:
        say(f"{typed(one.path)}: nothing changed, it was so already")
    else:
        say(f"{typed(one.path)}: set for {listing(changed, 5)}")


@click.command("finish")
@run_argument
def finish(run: str | None) -> None:
    """Tell a run that follows its inputs, or a queue, that no more jobs come.

    It runs what it has, and ends.

    \b
    gpulaunch finish
    """
    one = edit.finish(run, Terminal())
    say(f"{typed(one.path)}: no more jobs come; it ends once those that it has are over")


def _add_list(jobs: Path, run: str | None, terminal: Terminal) -> edit.Added:
    if not is_stdin(jobs):
        return edit.add_file(jobs, run, terminal)
    text = read_stdin().decode(errors="surrogateescape")
    return edit.add(text, STDIN, working_directory(), run, terminal)


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given as fields of a job, as typed."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if "env" in given:
        pairs = [word.partition("=") for word in given["env"]]
        if wrong := next((name for name, equals, _ in pairs if not (name and equals)), None):
            raise UsageError(f"--env {wrong}: expected NAME=VALUE")
        given["env"] = {name: value for name, _, value in pairs}
    return {
        name: list(value) if isinstance(value, tuple) else value if name == "env" else str(value)
        for name, value in given.items()
    }


def _sentences(told: Changed) -> Sequence[str]:
    """Return what a reload changes, and what it leaves, in one line."""
    change = told.change
    parts = [
        f"{several(len(names), 'job')} {what}: {listing(names, 5)}"
        for what, names in (
            ("new", change.new),
            ("changed", change.changed),
            ("withdrawn", change.withdrawn),
        )
        if names
    ]
    if change.running:
        parts.append(
            f"running, and changed from their next attempt on: {listing(change.running, 5)}"
        )
    if change.over:
        parts.append(
            f"over, and defined otherwise now: {listing(change.over, 5)}"
            " (resume --changed or retry runs them so)"
        )
    if change.gone:
        parts.append(f"no longer in the file, and left as they are: {listing(change.gone, 5)}")
    return parts or ["nothing has changed"]


# ── Cancel, drain and wait ────────────────────────────────────────────────────────────────────────
