"""`gpulaunch export`: the job list for people who run it with something else."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from gpulaunch.app.checks import foreseen
from gpulaunch.cli.given import file_of, plan_of
from gpulaunch.cli.options import default, job_file
from gpulaunch.cli.output import say
from gpulaunch.config.files import current
from gpulaunch.errors import UsageError
from gpulaunch.export import ExportSelection, Note, Target, choose, to_hyperqueue, to_slurm
from gpulaunch.jobfile import Plan, Surroundings
from gpulaunch.text import listing

NEXT = {"hyperqueue": "hq job submit-file {}", "slurm": "bash {}/submit.sh"}


@click.command("export")
@job_file
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Choice(list(NEXT)),
    help="hyperqueue: its job file; slurm: sbatch scripts.",
)
@click.option(
    "-o", "--output", metavar="PATH", help="The file (-: standard output), or Slurm's directory."
)
@click.option("--force", is_flag=True, help="Write over what is there.")
@default
def command(
    jobs: Path, target: Target, output: str | None, force: bool, default: tuple[str, ...]
) -> None:
    """Write a job list as what HyperQueue or Slurm runs.

    What that cannot do is named, line by line, here and in what is written.

    \b
    gpulaunch export jobs.yaml --to slurm -o cluster/
    """
    if target == "slurm" and output in (None, "-"):
        raise UsageError("--to slurm writes a directory: name it with -o")
    plan = plan_of(jobs, Surroundings(os.environ, defaults=default))
    chosen = _chosen(plan, file_of(jobs), target, output)
    files, more = _files(chosen)
    for note in (*chosen.notes, *more, *_configured(chosen)):
        say(str(note))
    if output in (None, "-"):
        sys.stdout.buffer.write(_bytes(files[""]))
        return
    assert output is not None
    _write(Path(output), files, force)
    count = len(chosen.jobs)
    what = "a job" if count == 1 else f"{count} jobs"
    say(f"wrote {output} ({what}); next: {NEXT[target].format(output)}")


def _chosen(plan: Plan, jobs: Path | None, target: Target, output: str | None) -> ExportSelection:
    directory = plan.base / (re.sub(r"[^\w.-]+", "_", plan.name) + "-export")
    if target == "slurm" and output is not None:
        directory = Path(os.path.abspath(output))
    return choose(foreseen(plan, jobs)[0], target, str(directory))


def _files(chosen: ExportSelection) -> tuple[Mapping[str, str], tuple[Note, ...]]:
    """Return the texts by file name ("" for a single file), and notes on differences to a run."""
    if chosen.target == "slurm":
        return to_slurm(chosen)
    return {"": to_hyperqueue(chosen)}, ()


def _configured(chosen: ExportSelection) -> Iterator[str]:
    """Yield a line on what the configuration would tell Slurm of these jobs, and no script does."""
    config = current()
    lacking = [
        f"{key} ({config.sources[f'slurm.{key}']})"
        for key in config.slurm
        if any(key not in job.engine.get("slurm", {}) for job in chosen.jobs)
    ]
    if chosen.target == "slurm" and lacking:
        yield (
            f"slurm: {listing(lacking)} of the configuration: not in the scripts, which have what"
            " the job file says: write it there as engine: {slurm: ...}"
        )


def _bytes(text: str) -> bytes:
    """Return the text's bytes; names of files that are not UTF-8 keep their bytes."""
    return text.encode(errors="surrogateescape")


def _write(output: Path, files: Mapping[str, str], force: bool) -> None:
    """Write all files. Raises UsageError, before it writes any, if one exists already."""
    paths = {output / name if name else output: text for name, text in files.items()}
    for path in () if force else paths:
        if os.path.lexists(path):
            raise UsageError(f"{path} exists already: name another with -o, or use --force")
    try:
        for path, text in paths.items():
            if path != output:
                path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb" if force else "xb") as file:
                file.write(_bytes(text))
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from None
