"""`gpulaunch init`: a starter job file, or what replaces a script's choice of cards."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpulaunch.base.errors import UsageError
from gpulaunch.base.extras import require
from gpulaunch.base.text import clip
from gpulaunch.cli.output import say
from gpulaunch.observe.present.words import visible_lines

if TYPE_CHECKING:
    from gpulaunch.init import Converted

MAX_SCRIPT_CHARACTERS = 16 << 20
"""Characters of a script that `init` reads at most."""
JOB_FILE = (".yaml", ".yml")


@click.command("init")
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write this file (default: jobs.yaml, or SCRIPT.gpulaunch.sh); - is standard output.",
)
def command(script: Path | None, output: Path | None) -> None:
    """Write a starter job file, or replace the CUDA_VISIBLE_DEVICES of a shell script.

    If every line of SCRIPT is understood for certain, this writes a job file. Otherwise it writes
    the script again with "gpulaunch exec --" in place of each mask, and prints the difference. If
    neither is certain, it says why and writes nothing. A FILE that ends in .yaml is always a job
    file, and one that ends in .sh always a script.

    \b
    gpulaunch init
    gpulaunch init run_all.sh
    gpulaunch init run_all.sh -o run_on_free_cards.sh
    """
    if script is None:
        from gpulaunch.init import starter

        _write(output or Path("jobs.yaml"), starter())
        return
    require("init", "reading a script")
    source = _read(script)
    made = _converted(script, source, output)
    default = script.with_suffix(".gpulaunch.sh") if made.is_script else Path("jobs.yaml")
    output = output or default
    _refuse_other_directory(script, output, made)
    for note in made.notes:
        say(f"{script}: {note}")
    if made.is_script:
        _say_why_no_job_file(script, source, made)
        before, after = source.splitlines(), made.text.splitlines()
        for line in difflib.unified_diff(before, after, str(script), str(output), n=1, lineterm=""):
            click.echo(visible_lines(line), err=True)
    _write(output, made.text, like=script if made.is_script else None)


def _converted(script: Path, source: str, output: Path | None) -> Converted:
    """Return what replaces the script. Raises UsageError with why nothing does."""
    from gpulaunch.init import Unfit, advice, convert

    suffix = output.suffix if output else ""
    kind = "job file" if suffix in JOB_FILE else "script" if suffix in (".sh", ".bash") else ""
    for line in advice(source):
        say(f"{script}: {line}")
    try:
        made = convert(source, script.name, os.environ, kind)
        for text in [source, made.text] if made.is_script else [source]:
            _refuse_unread_by_bash(text)
        return made
    except Unfit as unfit:
        place = f"{script}:{unfit.line}" if unfit.line else f"{script}"
        raise UsageError(f"nothing was written. {place}: {unfit.why}") from None


def _say_why_no_job_file(script: Path, source: str, made: Converted) -> None:
    number, why = made.no_job_file
    if number:
        line = clip(source.splitlines()[number - 1].strip(), 80)
        say(f"{script}:{number}: no job file: {why}: {line}")


def _refuse_unread_by_bash(source: str) -> None:
    """Raise Unfit where bash itself finds a mistake; it runs nothing of the script."""
    from gpulaunch.init import Unfit

    if (bash := shutil.which("bash")) is None:
        return
    done = subprocess.run(
        [bash, "-n"], input=source.encode(), capture_output=True, check=False, env={"LC_ALL": "C"}
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").partition("\n")[0]
        raise Unfit(f"bash cannot read it: {said.removeprefix(f'{bash}: ')}")


def _refuse_other_directory(script: Path, output: Path, made: Converted) -> None:
    """Raise UsageError where the new file would work in another directory than the script."""
    if str(output) == "-" or (made.is_script and not made.own_directory):
        return
    place = script.parent if made.own_directory else Path()
    if output.parent.resolve() != place.resolve():
        raise UsageError(
            f"{script} works in {place.resolve()}, and {output} would work in its own directory:"
            f" -o {place / output.name}"
        )


def _write(output: Path, text: str, like: Path | None = None) -> None:
    """Write a new file, with the permissions of the script that it is like."""
    if str(output) == "-":
        click.echo(text, nl=False)
        return
    try:
        with open(output, "x", encoding="utf-8", newline="") as file:
            file.write(text)
        if like is not None:
            output.chmod(like.stat().st_mode & 0o777)
    except FileExistsError:
        raise UsageError(f"{output} exists already: name another file with -o") from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from None
    then = f"bash {output}" if like is not None else f"gpulaunch check {output}"
    say(f"wrote {output}; next: {then}")


def _read(script: Path) -> str:
    """Return the script's text, from a file or from a pipe such as `<(...)`."""
    try:
        with open(script, encoding="utf-8", newline="") as file:
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
