"""`gpulaunch retry`: run again only what failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from gpulaunch.journal.rundir import RunDir


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
    from gpulaunch.app.lookup import directory
    from gpulaunch.errors import UsageError
    from gpulaunch.journal.finding import typed

    if run is not None or not words:
        return directory(run, terminal).path, words
    named, here = _called(words[0]), _here()
    is_job = here is not None and _names_jobs(here, words[0])
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


def _called(run: str) -> RunDir | None:
    """Return the run here that a word may mean, or None; only -r reaches one elsewhere."""
    from gpulaunch.errors import UsageError
    from gpulaunch.journal.finding import find, working_directory

    try:
        return find(run, working_directory())
    except UsageError:
        return None


def _here() -> RunDir | None:
    from gpulaunch.app.lookup import runs_here
    from gpulaunch.errors import UsageError

    try:
        return runs_here().runs[0]
    except UsageError:
        return None


def _names_jobs(run: RunDir, pattern: str) -> bool:
    from gpulaunch.app.lookup import jobs_of
    from gpulaunch.errors import UsageError
    from gpulaunch.journal.read import replay

    try:
        return bool(jobs_of(replay(run.events), [pattern]))
    except UsageError:
        return False
