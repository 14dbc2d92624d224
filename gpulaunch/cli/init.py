"""`gpulaunch init`: a starter job file, or the one that replaces a shell script."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from gpulaunch.cli.output import say
from gpulaunch.errors import UsageError
from gpulaunch.extras import require
from gpulaunch.files import regular

MAX_SCRIPT_CHARACTERS = 16 << 20
"""Characters of a script that `init` reads at most."""


@click.command("init")
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("jobs.yaml"))
def command(script: Path | None, output: Path) -> None:
    """Write a starter job file; given a shell script, the job file that replaces it.

    SCRIPT has lines like CUDA_VISIBLE_DEVICES=1 python predict.py ... & ; what could not be
    translated is said, line by line. "-o -" writes to standard output.

    \b
    gpulaunch init
    gpulaunch init run_all.sh -o jobs.yaml
    """
    from gpulaunch.starter import starter, translate

    text = starter()
    if script is not None:
        require("init", "translating a script")
        translation = translate(_read(script), script.name, partial(_beside, script.parent))
        text = translation.yaml_text
        for number, line, why in translation.untranslated:
            say(f"{script}:{number}: {why}\n    {line}")
        if not text:
            raise UsageError(f"{script}: no command in it could become a job; nothing was written")
    if str(output) == "-":
        click.echo(text, nl=False)
        return
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{output} exists already: name another file with -o") from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from None
    say(f"wrote {output}; next: gpulaunch check {output}")


def _beside(directory: Path, name: str) -> str | None:
    """Return the text of a file that the script names; None if it cannot be read."""
    try:
        with open(directory / name, encoding="utf-8", opener=regular) as file:
            text = file.read(MAX_SCRIPT_CHARACTERS + 1)
    except (OSError, ValueError):
        return None
    return text if len(text) <= MAX_SCRIPT_CHARACTERS else None


def _read(script: Path) -> str:
    """Return the script's text, from a file or from a pipe such as `<(...)`."""
    try:
        with open(script, encoding="utf-8") as file:
            text = file.read(MAX_SCRIPT_CHARACTERS + 1)
    except OSError as error:
        raise UsageError(f"{script} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{script} is no text in UTF-8: a shell script is expected") from None
    if len(text) > MAX_SCRIPT_CHARACTERS:
        raise UsageError(
            f"{script}: a script may have at most {MAX_SCRIPT_CHARACTERS:,} characters"
        )
    return text
