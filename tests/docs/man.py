"""The manual pages, made from the same click commands and fields as docs/reference.

python -m tests.docs.reference        writes them anew; `test_man` compares

    docs/man/man1/gpulaunch.1 gpulaunch-run.1 gpulaunch-queue-start.1 ...
    docs/man/man5/gpulaunch-jobs.5

A wheel brings them to share/man, which `man` finds beside the bin of an environment on PATH.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from gpulaunch.cli import COMMANDS, cli
from gpulaunch.jobfile.fields import JOB
from gpulaunch.jobfile.schema import DESCRIPTIONS, OF_FILE, OF_JOB
from tests.docs.examples import commands_of, examples_in

FOLDER = Path(__file__).parents[2] / "docs" / "man"
MADE = r".\" Made by `python -m tests.docs.reference`; not to be edited here."
JOBS = "gpulaunch-jobs"
EXAMPLE = """\
name: nanobodies
gpus: all
limits: {msa_server: 1}
defaults: {timeout: 2h, retries: 1}
jobs:
  - name: fold-{{stem}}
    foreach: inputs/*.fasta
    run: chai-lab fold {{path}} {{out}}
    uses: [msa_server]
  - name: summary
    gpus: 0
    after: ["fold-*"]
    run: ls {{run_dir}}/results"""


def pages() -> dict[str, str]:
    """Every page by its path below docs/man."""
    made = {f"man1/{'-'.join(context.command_path.split())}.1": command_page(context)
            for context in commands_of(cli)}  # fmt: skip
    return {**made, f"man5/{JOBS}.5": jobs_page()}


def write() -> None:
    wanted = pages()
    for path in FOLDER.glob("man*/*"):
        if str(path.relative_to(FOLDER)) not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text)


# ── roff ────────────────────────────────────────────────────────────────────────────────────────


def escaped(text: str) -> str:
    """Text as roff prints it, whatever is in it and wherever in a line it stands."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in text)
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def flow(text: str) -> str:
    return escaped(" ".join(text.split()))


def verbatim(text: str) -> str:
    return f".PP\n.RS 4\n.nf\n{escaped(text)}\n.fi\n.RE"


def bold(text: str) -> str:
    return f"\\fB{escaped(text)}\\fP"


def tagged(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in items:
        yield f".TP\n{bold(name)}\n{flow(text)}"


def page(name: str, section: int, purpose: str, parts: Iterable[str]) -> str:
    head = [
        MADE,
        f'.TH {escaped(name.upper())} {section} "" gpulaunch "gpulaunch manual"',
        f".SH NAME\n{escaped(name)} \\- {flow(purpose.rstrip('.'))}",
    ]
    return "\n".join([*head, *parts]) + "\n"


def see_also(names: Iterable[str]) -> str:
    refs = [f".BR {escaped(name)} ({5 if name == JOBS else 1})" for name in names]
    return ".SH SEE ALSO\n" + " ,\n".join(refs)


# ── commands ────────────────────────────────────────────────────────────────────────────────────


def command_page(context: click.Context) -> str:
    name = "-".join(context.command_path.split())
    first, *rest = inspect.cleandoc(context.command.help or "").split("\n\n")
    return page(name, 1, first, _of_command(context, [first, *rest]))


def _of_command(context: click.Context, paragraphs: list[str]) -> Iterator[str]:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SH SYNOPSIS\n{bold(context.command_path)} {escaped(usage)}"
    yield ".SH DESCRIPTION"
    examples = []
    for number, paragraph in enumerate(paragraphs):
        text = paragraph.removeprefix("\b\n")
        if text == paragraph:
            yield flow(text) if not number else f".PP\n{flow(text)}"
        elif examples_in(paragraph):
            examples.append(text)
        else:
            yield verbatim(text)
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        yield from tagged(_subcommands(command, context))
    if options := [one.get_help_record(context) for one in command.get_params(context)]:
        yield ".SH OPTIONS"
        yield from tagged(record for record in options if record)
    yield ".SH EXAMPLES"
    yield "\n".join(map(verbatim, examples)).removeprefix(".PP\n")
    yield see_also(_related(context))


def _subcommands(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        if group is cli:
            yield name, COMMANDS[name][1]
        else:
            inner = group.get_command(context, name)
            assert inner is not None
            yield name, inner.get_short_help_str(200)


def _related(context: click.Context) -> Iterator[str]:
    if context.parent is not None:
        yield "-".join(context.parent.command_path.split())
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            yield "-".join([*context.command_path.split(), name])
    yield JOBS


# ── the job file ────────────────────────────────────────────────────────────────────────────────


def jobs_page() -> str:
    return page(JOBS, 5, "the job file of gpulaunch", _of_jobs())


def _of_jobs() -> Iterator[str]:
    yield ".SH DESCRIPTION"
    yield flow("""
        A job file is YAML: a list of entries under jobs:, and beside it what holds for all of them.
        Each entry is one job, or with foreach: or matrix: many. Values are read as they are typed.
        Unknown keys are mistakes; gpulaunch check FILE reports all mistakes at once, and gpulaunch
        schema FIELD explains a field.
    """)
    yield verbatim(EXAMPLE)
    yield ".SH KEYS OF THE FILE"
    yield from tagged((key, KEYS.get(key) or DESCRIPTIONS[key]) for key in OF_FILE)
    yield ".SH FIELDS OF A JOB"
    for field in JOB:
        yield from tagged([(field, DESCRIPTIONS[field])])
        yield f".RS 7\n.sp\n.nf\n{escaped(OF_JOB[field])}\n.fi\n.RE"
    yield see_also(["gpulaunch", "gpulaunch-run", "gpulaunch-check", "gpulaunch-schema"])


KEYS = {
    "name": "The run's name (the file's, without its ending).",
    "gpus": DESCRIPTIONS["pool"],
    "defaults": "Fields that all jobs have unless they say otherwise; env: is merged.",
    "jobs": "The list of jobs.",
}
"""The file's own keys, where a job's field of that name is another matter, or there is none."""
