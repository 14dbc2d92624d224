"""`gpulaunch check` and `schema`: what is in a job file, and what may be. Starts nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from gpulaunch.app import near_cards
from gpulaunch.app.checks import (
    all_told,
    foreseen,
    looking_at,
    looking_for,
    pool_for,
    short_ladders,
    warn_of,
    warn_of_telling,
    warn_of_uuids,
)
from gpulaunch.app.contained import chosen_engines
from gpulaunch.app.earlier_memory import notes
from gpulaunch.app.observer import Preview
from gpulaunch.app.options import RunOptions, with_engine
from gpulaunch.cli.options import as_json, engine_options, gpus_option, job_file, simulate_option
from gpulaunch.cli.output import echo_plan, print_json, say
from gpulaunch.cli.terminal import Terminal
from gpulaunch.engines.pool import open_pool
from gpulaunch.jobfile import load
from gpulaunch.jobfile import schema as json_schema
from gpulaunch.jobfile.schema import explained
from gpulaunch.journal.choices import Choices
from gpulaunch.text import several


@click.command("check")
@job_file
@gpus_option
@simulate_option
@engine_options
@as_json
def check(
    jobs: Path,
    gpus: str | None,
    simulate: int | None,
    engine: str | None,
    slurm: tuple[str, ...],
    as_json: bool,
) -> None:
    """Validate a job file and print its plan; starts nothing.

    Warns of what in the jobs' commands and scripts does not suit their cards (cuda:1, a mask of
    its own, a fixed port); a comment "# gpulaunch: ok" on a line silences it there.

    Without a card here, only what depends on the cards is left unchecked (and said so).
    --engine slurm says what a cluster cannot do; it asks Slurm nothing.

    \b
    gpulaunch check jobs.yaml
    gpulaunch check jobs.yaml --engine slurm
    """
    terminal = Terminal()
    options = with_engine(RunOptions(Choices(gpus=gpus, simulate=simulate), engine, slurm))
    local = options.engine == "local"
    plan, _ = foreseen(load(jobs, environ=os.environ, look=looking_for(engine)), jobs)
    with looking_at(plan) as looking:
        found = warn_of(plan, terminal, most=sys.maxsize)
        pool = open_pool(gpus, simulate, os.environ, "check") if local else None
        here = pool is None or pool.here
        _, asked = all_told(
            lambda: warn_of_telling(plan, looking, terminal),
            lambda: pool_for(plan, plan.jobs, options, "check", terminal) if here else pool,
        )
        pool = asked
        if pool is not None:
            found = warn_of_uuids(plan, pool, found, terminal, most=sys.maxsize)
    if not here:
        for note in (*pool.notes, *short_ladders(plan.jobs)):
            say(note)
        say("no card here: whether every job fits the cards was not checked (see --simulate N)")
    for line in pool.settings if here else ():
        say(line)
    if pool.allowance is not None:
        say(
            f"your launchers may hold {several(pool.allowance.limit, 'card')} at once: "
            f"{pool.allowance.source}"
        )
    for line in near_cards.notes(plan.jobs, pool) if local and here else ():
        say(line)
    for line in (*chosen_engines(plan.jobs, cluster=not local), *notes(plan.jobs, jobs)):
        say(line)
    if local and any(job.preload for job in plan.jobs):
        from gpulaunch.engines.local.preload_preview import told

        for line in told(plan.jobs, os.environ):
            say(line)
    echo_plan(Preview(plan, plan.jobs, pool, found), as_json)


@click.command("schema")
@click.argument("field", required=False)
@click.option("--config", "of_config", is_flag=True, help="Of the configuration, not the job file.")
def schema(field: str | None, of_config: bool) -> None:
    """Print the job file's JSON Schema, so that editors complete and check it.

    With FIELD: what that field means, in words, with an example.

    \b
    gpulaunch schema > jobs.schema.json
    gpulaunch schema retries
    gpulaunch schema --config limits
    """
    if of_config:
        from gpulaunch.config import schema as config

        if field is None:
            print_json(config.schema())
        else:
            click.echo(config.explained(field), nl=False)
    elif field is None:
        print_json(json_schema())
    else:
        click.echo(explained(field), nl=False)
