"""`gpulaunch run`: a job list to its end, in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpulaunch.cli.options import (
    RunOptions,
    engine_options,
    job_file,
    only,
    per_gpu,
    pool_options,
    run_options,
)

if TYPE_CHECKING:
    from gpulaunch.journal.rundir import RunDir


@click.command("run")
@job_file
@click.argument("more", nargs=-1, metavar="")
@pool_options
@per_gpu
@only
@engine_options
@run_options
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where the run is kept.")
@click.option("--dry-run", is_flag=True, help="Print the plan, start nothing.")
@click.option("--new", is_flag=True, help="Start afresh, whatever became of the last run.")
@click.option("--continue", "go_on", is_flag=True, help="Go on with the last run, or start one.")
def command(jobs: Path, more: tuple[str, ...], new: bool, go_on: bool, **options: Any) -> int:
    """Run a job list to its end, in the foreground.

    Exit status: 0 every job succeeded; 1 some job did not; 2 the command line or the job file is
    wrong; 3 the cards cannot be had; 4 the run could not be recorded; 5 the last run of this file
    is unfinished; 130, 143, 129: stopped by Ctrl-C, SIGTERM, SIGHUP.

    \b
    gpulaunch run jobs.yaml
    gpulaunch run jobs.yaml --simulate 2      on pretend cards, on any machine
    gpulaunch run jobs.yaml --engine slurm    on a cluster: Slurm says when and where
    """
    from gpulaunch.cli import resuming, running
    from gpulaunch.cli.beforehand import looking_for
    from gpulaunch.errors import UsageError
    from gpulaunch.jobfile import load

    if more:
        raise UsageError(
            f"run takes one job file, and {jobs} {' '.join(more)} is more: a run for each, or one"
            " file with all jobs; one command: gpulaunch exec -- CMD"
        )
    opts = RunOptions.of(options)
    if go_on and new:
        raise UsageError("--new starts afresh and --continue goes on: choose one")
    if go_on and (last := _last(jobs, opts)) is not None:
        return resuming.resume(last, opts)
    look = looking_for(opts.engine)
    plan = load(jobs, environ=os.environ, per_gpu=opts.choices.per_gpu, look=look)
    beside = []
    if not (new or opts.dry_run or opts.run_dir):
        beside = [running.refuse_unfinished(jobs, opts), running.alive_elsewhere(jobs)]
    return running.start(plan, jobs, opts, beside)


def _last(jobs: Path, options: RunOptions) -> RunDir | None:
    """Return the run that `--continue` goes on with; print its name if it was not begun here.

    It is found as `resume JOBS` finds it: cron and Makefiles start in other directories than
    people do.
    """
    from gpulaunch.cli.output import say, typed
    from gpulaunch.journal.finding import counts, newest_around, newest_of, working_directory
    from gpulaunch.journal.rundir import RunDir

    if options.run_dir:
        named = RunDir(options.run_dir)
        return named if named.holds_run and counts(named) else None
    cwd = working_directory()
    if last := newest_of(jobs, cwd):
        return last
    if last := newest_around(Path(os.path.realpath(jobs)), cwd):
        say(f"goes on with {typed(last.path)}, which was not begun here", options)
    return last
