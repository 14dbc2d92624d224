"""`gpulaunch retry`: run again only what failed."""

from __future__ import annotations

from typing import Any

import click

from gpulaunch.cli.options import (
    RunOptions,
    engine_options,
    per_gpu,
    pool_options_again,
    run_options,
)


@click.command("retry")
@click.option("-r", "--run", metavar="RUN", help="The run; every word is a job then.")
@click.argument("words", nargs=-1, metavar="[RUN] [JOB]...")
@pool_options_again
@per_gpu
@engine_options
@run_options
@click.option("--recorded", is_flag=True, help="Use the run's own copy of the job file.")
@click.option("--dry-run", is_flag=True, help="Print what would run, start nothing.")
def command(run: str | None, words: tuple[str, ...], **options: Any) -> int:
    """Run again only what failed, and what was skipped because of it; or these jobs.

    JOB may be a pattern. The job file is read again. On a live run the jobs are put back into it,
    as the file has them now, and the command returns at once.

    \b
    gpulaunch retry
    gpulaunch retry 'fold-x*'
    gpulaunch retry -r nanobodies-20261120-074215 fold-x2
    """
    from gpulaunch.cli.retrying import retry, told_apart

    opts = RunOptions.of(options)
    one, jobs = told_apart(run, words, opts)
    return retry(one, jobs, opts)
