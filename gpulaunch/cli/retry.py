"""`gpulaunch retry`: run again only what failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpulaunch.cli.options import (
    engine_options,
    per_gpu,
    pool_options_again,
    run_options,
    run_options_of,
)

if TYPE_CHECKING:
    from gpulaunch.cli.terminal import Terminal

Found = TypeVar("Found")


@click.command("retry")
@click.option("-r", "--run", metavar="RUN", help="The run; every word is a job then.")
@click.argument("words", nargs=-1, metavar="[RUN] [JOB]...")
@pool_options_again
@per_gpu
@engine_options
@run_options
@click.option("--recorded", is_flag=True, help="Use the run's own copy of the job file.")
@click.option("--dry-run", is_flag=True, help="Print what would run, start nothing.")
def command(run: str | None, words: tuple[str, ...], recorded: bool, **options: Any) -> int:
    """Run again only what failed, and what was skipped because of it; or these jobs.

    JOB may be a pattern. The job file is read again. On a live run the jobs are put back into it,
    as the file has them now, and the command returns at once.

    \b
    gpulaunch retry
    gpulaunch retry 'fold-x*'
    gpulaunch retry -r nanobodies-20261120-074215 fold-x2
    """
    from gpulaunch.app.resuming import retry
    from gpulaunch.cli.terminal import Terminal

    terminal = Terminal(options)
    one, jobs = _told_apart(run, words, terminal)
    return retry(one, jobs, run_options_of(options), terminal, recorded=recorded).status


def _told_apart(
    run: str | None, words: Sequence[str], terminal: Terminal
) -> tuple[Path, Sequence[str]]:
    """Return the run and the patterns of jobs of `-r RUN JOB ...`, `RUN JOB ...` or `JOB ...`.

    Raises UsageError if the first word names both a run and a job, or neither.
    """
    from gpulaunch.app.lookup import directory, jobs_of, runs_here
    from gpulaunch.errors import UsageError
    from gpulaunch.journal.finding import find, typed, working_directory
    from gpulaunch.journal.read import replay

    def found(look: Callable[[], Found]) -> Found | None:
        try:
            return look()
        except UsageError:
            return None

    if run is not None or not words:
        return directory(run, terminal).path, words
    # Only -r reaches a run elsewhere.
    named = found(lambda: find(words[0], working_directory()))
    here = found(lambda: runs_here().runs[0])
    is_job = here is not None and bool(found(lambda: jobs_of(replay(here.events), words[:1])))
    if named is not None and not is_job:
        return named.path, words[1:]
    if here is None or (named is None and is_job):
        # Without a run here, an error names those elsewhere.
        return directory(None, terminal).path, words
    if named is None:
        raise UsageError(
            f"{words[0]} is not a run, nor a job of {typed(here.path)}: gpulaunch status --all"
            " lists the jobs"
        )
    raise UsageError(
        f"{words[0]} is a run and a job of {typed(here.path)}: say which with -r {words[0]}, or"
        f" -r {typed(here.path)} {words[0]}"
    )
