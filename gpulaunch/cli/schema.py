"""`gpulaunch schema`: the job file's JSON Schema."""

from __future__ import annotations

import click


@click.command("schema")
def command() -> None:
    """Print the job file's JSON Schema, so that editors complete and check it.

    \b
    gpulaunch schema > jobs.schema.json
    """
    from gpulaunch.cli.output import print_json
    from gpulaunch.spec import schema

    print_json(schema())
