"""`gpulaunch check` and `schema`: what is in a job file, and what may be. Starts nothing."""

from __future__ import annotations

from pathlib import Path

import click

from gpulaunch.cli import completion
from gpulaunch.cli.given import STDIN, is_stdin, read_stdin
from gpulaunch.cli.options import (
    as_json,
    default,
    engine_options,
    gpus_option,
    job_file,
    simulate_option,
)
from gpulaunch.cli.output import echo_plan, print_json
from gpulaunch.cli.terminal import Terminal
from gpulaunch.jobfile.schema import explained
from gpulaunch.jobfile.schema import schema as json_schema
from gpulaunch.journal.choices import Choices
from gpulaunch.run import check as plan_of
from gpulaunch.run.options import RunOptions


@click.command("check")
@job_file
@gpus_option
@simulate_option
@default
@engine_options
@as_json
def check(
    jobs: Path,
    gpus: str | None,
    simulate: int | None,
    default: tuple[str, ...],
    engine: str | None,
    slurm: tuple[str, ...],
    as_json: bool,
) -> None:
    """Validate a job file, or a list of commands, and print its plan; starts nothing.

    Warns of what in the jobs' commands and scripts does not suit their cards (cuda:1, a mask of
    its own, a fixed port); a comment "# gpulaunch: ok" on a line silences it there.

    Without a card here, only what depends on the cards is left unchecked (and said so);
    foreach: cards is shown for one card.
    --engine slurm says what a cluster cannot do; it asks Slurm nothing.

    \b
    gpulaunch check jobs.yaml
    gpulaunch check jobs.yaml --engine slurm
    gpulaunch check commands.txt --default gpus=2
    """
    choices = Choices(gpus=gpus, simulate=simulate, default=default)
    options = RunOptions(choices, engine, slurm)
    text = read_stdin() if is_stdin(jobs) else None
    file = jobs if text is None else Path(STDIN)
    echo_plan(plan_of.check(file, options, Terminal(), text=text), as_json)


@click.command("schema")
@click.argument("field", required=False, shell_complete=completion.fields)
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
        from gpulaunch.jobfile import config_file as config

        if field is None:
            print_json(config.schema())
        else:
            click.echo(config.explained(field), nl=False)
    elif field is None:
        print_json(json_schema())
    else:
        click.echo(explained(field), nl=False)
