"""Before anything starts: what does not suit the cards, who could not be told, and the cards.

Says what it finds, or refuses; starts nothing and leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpulaunch.cli.options import Options
from gpulaunch.cli.output import say
from gpulaunch.core.model import Job
from gpulaunch.engines import strict
from gpulaunch.engines.pool import Pool, SelectionError, open_pool, require
from gpulaunch.errors import JobFileError
from gpulaunch.journal.earlier import RUNS
from gpulaunch.journal.rundir import RunDir, runs_of
from gpulaunch.notify.looking import Looking
from gpulaunch.spec import Plan

if TYPE_CHECKING:
    from gpulaunch.lint import Finding

WARNINGS = 20
"""How many warnings of scripts `run` shows; `check` shows all."""


def runs_before(job_file: Path | None) -> list[RunDir]:
    """Earlier runs of this file, newest first: how long its jobs took then is expected again."""
    return [] if job_file is None else list(islice(runs_of(job_file, Path.cwd()), RUNS))


def warn_of(plan: Plan, options: Options, most: int = WARNINGS) -> list[Finding]:
    """Say what in jobs and their scripts does not suit the cards they get; returns all of it."""
    from gpulaunch.lint import report

    if options.quiet:
        return []
    found = report(plan)
    for finding in found.findings[:most]:
        click.echo(f"warning: {finding}", err=True)
    if len(found.findings) > most:
        say(f"and {len(found.findings) - most:,} more warnings: gpulaunch check shows them all")
    if found.note:
        say(found.note)
    return list(found.findings)


def looking_at(plan: Plan) -> Looking:
    """Begins to look at whom the plan tells; `warn_of_telling` is for what comes of it."""
    return Looking(plan.notify, os.environ, plan.base)


def warn_of_telling(plan: Plan, looking: Looking, options: Options) -> None:
    """Say what would keep people from being told. Raises JobFileError for addresses that are wrong.

    Shows no line of the file: an address may be on it.
    """
    concerns = [
        (one.wrong, plan.point((*one.target.path, one.key), one.text)) for one in looking.concerns()
    ]
    if mistakes := [text for wrong, text in concerns if wrong]:
        raise JobFileError(mistakes)
    for _, text in concerns:
        if not options.quiet:
            click.echo(f"warning: {text}", err=True)


def pool_for(plan: Plan, jobs: Sequence[Job], options: Options, run_id: str) -> Pool:
    """The cards, and whether each of these jobs could run on them."""
    asked = options.gpus if options.gpus is not None else plan.selection
    try:
        pool = open_pool(asked, options.simulate, os.environ, run_id, options.share_busy)
    except SelectionError as error:
        if options.gpus is not None:
            raise
        raise JobFileError([plan.point(("gpus",), error.text)]) from None
    if not pool.gpus:
        require(pool, max((job.demand.gpus for job in jobs), default=0))
    if mistakes := replace(plan, jobs=tuple(jobs)).unplaceable(pool.gpus, pool.size):
        raise JobFileError(mistakes)
    for note in pool.notes if pool.gpus else ():
        say(note, options)
    _refuse_unisolated(plan, jobs, pool, options)
    return pool


def _refuse_unisolated(plan: Plan, jobs: Sequence[Job], pool: Pool, options: Options) -> None:
    """Raises JobFileError where a job wants strict isolation and it cannot be had here."""
    wanting = [job for job in jobs if job.isolation == "strict"]
    if not wanting:
        return
    if why := strict.refusal(pool.gpus):
        raise JobFileError([plan.point(("jobs", wanting[0].group, "isolation"), why)])
    if os.geteuid() == 0:
        say(strict.AS_ROOT, options)
