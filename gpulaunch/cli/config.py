"""`gpulaunch config`: what the configuration says, and where."""

from __future__ import annotations

import click

from gpulaunch.cli.options import as_json
from gpulaunch.cli.output import print_json
from gpulaunch.contracts import SCHEMA
from gpulaunch.errors import OK, USAGE


@click.command("config")
@as_json
def config(as_json: bool) -> int:
    """Print every setting that is in force, and the file and line, or variable, that it is from.

    The machine's file is /etc/gpulaunch/config.yaml, the user's $XDG_CONFIG_HOME/gpulaunch/
    config.yaml (~/.config). Exits 2 where one of them has a mistake, which is said: nothing is
    started until it is mended.

    \b
    gpulaunch config
    """
    from gpulaunch.app.configured import in_force
    from gpulaunch.digest.words import visible, visible_lines

    found = in_force()
    if as_json:
        settings = [{"key": s.key, "value": s.value, "source": s.source} for s in found.settings]
        mistakes = [one.plain() for one in found.mistakes]
        told = {"files": list(found.files), "settings": settings, "mistakes": mistakes}
        print_json({"schema": SCHEMA, **told})
    else:
        rows = [(s.key, visible(s.value), s.source) for s in found.settings]
        wide = [max(len(row[n]) for row in rows) for n in (0, 1)]
        for key, value, source in rows:
            click.echo(f"{key:<{wide[0]}}  {value:<{wide[1]}}  {source}")
    for mistake in found.mistakes:
        click.echo(visible_lines(mistake.text), err=True)
    return USAGE if found.mistakes else OK
