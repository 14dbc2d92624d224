"""`gpulaunch schema`: the job file's JSON Schema, or one of its fields in words."""

from __future__ import annotations

import click


@click.command("schema")
@click.argument("field", required=False)
def command(field: str | None) -> None:
    """Print the job file's JSON Schema, so that editors complete and check it.

    With FIELD: what that field means, in words, with an example.

    \b
    gpulaunch schema > jobs.schema.json
    gpulaunch schema retries
    """
    from gpulaunch.cli.output import print_json
    from gpulaunch.jobfile import schema
    from gpulaunch.jobfile.explained import explained

    if field is None:
        print_json(schema())
    else:
        click.echo(explained(field), nl=False)
