"""`gpulaunch run`, `resume` and `retry`: start a run, and go on with it.

What carries a run out is imported once the command line is understood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpulaunch.base.errors import OF_A_RUN, UsageError
from gpulaunch.cli import completion
from gpulaunch.cli.options import (
    default,
    engine_options,
    following,
    job_file,
    only,
    per_gpu,
    pool_options,
    pool_options_again,
    run_argument,
    run_dir,
    run_option,
    run_options,
    run_options_of,
    tells_exit_statuses,
)

if TYPE_CHECKING:
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.run.options import RunOptions

Found = TypeVar("Found")


@click.command("run")
@job_file
@click.argument("more", nargs=-1, metavar="", shell_complete=completion.files)
@pool_options
@per_gpu
@default
@only
@following
@engine_options
@run_options
@run_dir
@click.option("--dry-run", is_flag=True, help="Print the plan, start nothing.")
@click.option("--new", is_flag=True, help="Start afresh, whatever became of the last run.")
@click.option("--continue", "go_on", is_flag=True, help="Go on with the last run, or start one.")
@tells_exit_statuses(OF_A_RUN)
def run(jobs: Path, more: tuple[str, ...], new: bool, go_on: bool, **options: Any) -> int:
    """Run a job list to its end, in the foreground.

    JOBS is a job file, or a list of commands, one a line; -: either, from standard input.

    Exit status:

    {statuses}

    \b
    gpulaunch run jobs.yaml
    gpulaunch run jobs.yaml --simulate 2      on pretend cards, on any machine
    gpulaunch run jobs.yaml --engine slurm    on a cluster: Slurm says when and where
    gpulaunch run commands.txt --default timeout=2h
    ./make-list | gpulaunch run -
    """
    if more:
        raise UsageError(
            f"run takes one job file, and {jobs} {' '.join(more)} is more: a run for each, or one"
            " file with all jobs; one command: gpulaunch exec -- CMD"
        )
    if go_on and new:
        raise UsageError("--new starts afresh and --continue goes on: choose one")
    from gpulaunch.cli.given import is_stdin
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.run import start

    new = new or options["dry_run"]
    asked, terminal = run_options_of(options), Terminal(options)
    if is_stdin(jobs):
        return _of_stdin(jobs, asked, terminal, options["run_dir"], go_on)
    return start.run(jobs, asked, terminal, run_dir=options["run_dir"], new=new, go_on=go_on).status


def _of_stdin(
    jobs: Path, asked: RunOptions, terminal: Terminal, run_dir: Path | None, go_on: bool
) -> int:
    """Run a list from standard input, which no other run can be of; return its exit status."""
    from gpulaunch.cli.given import plan_of
    from gpulaunch.run import start
    from gpulaunch.run.preflight import surroundings_at_start

    if go_on:
        raise UsageError("--continue finds a file's last run, and - is none: gpulaunch resume RUN")
    if asked.choices.follow:
        raise UsageError("--follow looks at a file as it grows; - is read once, to its end")
    plan = plan_of(jobs, surroundings_at_start(asked))
    return start.start(plan, None, asked, terminal, run_dir).status


@click.command("resume")
@run_argument
@pool_options_again
@per_gpu
@default
@only
@following
@engine_options
@run_options
@click.option(
    "--changed",
    is_flag=True,
    help="Also rerun what was redefined or has another input since, and what needs it.",
)
@click.option("--recorded", is_flag=True, help="Use the run's own copy of the job file.")
@click.option(
    "--take-over", is_flag=True, help="A run on Slurm whose launcher died on another machine."
)
@click.option("--dry-run", is_flag=True, help="Print what would run, start nothing.")
def resume(run: str | None, changed: bool, recorded: bool, take_over: bool, **options: Any) -> int:
    """Go on with a run: everything not yet succeeded, and what the job file has gained since.

    RUN is a run directory, a name, an id or a job file (its newest run); left out, the newest run
    under this directory, or under its nearest parent that has one.

    \b
    gpulaunch resume
    gpulaunch resume gpulaunch-runs/nanobodies-20261120-074215 --changed
    """
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.run import resumption as resuming

    asked, terminal = run_options_of(options), Terminal(options)
    return resuming.resume(
        run, asked, terminal, changed=changed, recorded=recorded, take_over=take_over
    ).status


@click.command("retry")
@run_option("The run; every word is a job then.")
@click.argument(
    "words",
    nargs=-1,
    metavar="[RUN] [JOB]...",
    shell_complete=completion.jobs_or_runs(*completion.SETTLED),
)
@pool_options_again
@per_gpu
@default
@engine_options
@run_options
@click.option("--recorded", is_flag=True, help="Use the run's own copy of the job file.")
@click.option("--dry-run", is_flag=True, help="Print what would run, start nothing.")
def retry(run: str | None, words: tuple[str, ...], recorded: bool, **options: Any) -> int:
    """Run again only what failed, and what was skipped because of it; or these jobs.

    JOB may be a pattern. The job file is read again. On a live run the jobs are put back into it,
    as the file has them now, and the command returns at once.

    \b
    gpulaunch retry
    gpulaunch retry 'fold-x*'
    gpulaunch retry -r nanobodies-20261120-074215 fold-x2
    """
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.run import resumption as resuming

    terminal = Terminal(options)
    one, jobs = _told_apart(run, words, terminal)
    return resuming.retry(one, jobs, run_options_of(options), terminal, recorded=recorded).status


def _told_apart(
    run: str | None, words: Sequence[str], terminal: Terminal
) -> tuple[Path, Sequence[str]]:
    """Return the run and the patterns of jobs of `-r RUN JOB ...`, `RUN JOB ...` or `JOB ...`.

    Raises UsageError if the first word names both a run and a job, or neither.
    """
    from gpulaunch.journal.find import find, typed, working_directory
    from gpulaunch.journal.read import replay
    from gpulaunch.run.lookup import directory, jobs_of, runs_here

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
