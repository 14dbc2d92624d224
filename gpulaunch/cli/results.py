"""`gpulaunch results`: what jobs came to and what they left, as a table."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from gpulaunch.base.errors import UsageError
from gpulaunch.base.extras import require
from gpulaunch.base.text import listing, several
from gpulaunch.cli import completion
from gpulaunch.cli.options import json_option, run_option
from gpulaunch.cli.output import print_json, say, stdout_console
from gpulaunch.cli.terminal import Terminal
from gpulaunch.observe.present.status import STATES
from gpulaunch.observe.present.words import visible_lines


@click.command("results")
@click.argument("runs", nargs=-1, metavar="[RUN ...]", shell_complete=completion.runs)
@run_option("A run, as RUN.", "named", multiple=True)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    help="The file of figures in each job's {{out}}: .json, .jsonl, .csv, .tsv (metrics.json).",
)
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Jobs in it.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Jobs of such names.")
@click.option(
    "--sort", metavar="COLUMN", help="By that column, rising; falling: -COLUMN. Empty cells last."
)
@click.option("--first", type=click.IntRange(1), metavar="N", help="The first N rows.")
@click.option(
    "--csv",
    "form",
    flag_value="csv",
    help="Print CSV.",
)
@json_option("Print JSON: runs, columns with their types, rows.")
@click.option("--parquet", "form", flag_value="parquet", help="Write Parquet to standard output.")
def results(
    runs: tuple[str, ...],
    named: tuple[str, ...],
    files: tuple[str, ...],
    form: str | None,
    as_json: bool,
    **picked: Any,
) -> None:
    """Show a row for each job: its values of foreach and matrix, what came out, what it took.

    The names in the file that a job left are columns, nested ones as a.b. Several runs stack.
    RUN: the newest one here.

    \b
    gpulaunch results --sort -accuracy --first 10
    gpulaunch results gpulaunch-runs/sweep-* --file eval/scores.json --csv > scores.csv
    """
    from gpulaunch.run.outputs import results as gathered

    if as_json and form:
        raise UsageError(f"--json and --{form}: leave one out")
    if form == "parquet":
        require("parquet", "--parquet")
        if sys.stdout.isatty():
            raise UsageError("--parquet is no text for a terminal: > FILE, or | a program")
    table = gathered((*runs, *named), files or None, Terminal(), **picked)
    if as_json:
        from gpulaunch.observe.results.table import results_json

        print_json(results_json(table))
    elif form == "csv":
        from gpulaunch.observe.results.table import results_csv

        data = results_csv(table)
        if sys.stdout.isatty():  # files and pipes get every cell as it is
            data = visible_lines(data.decode()).encode()
        sys.stdout.buffer.write(data)
    elif form == "parquet":
        from gpulaunch.observe.results.table import results_parquet

        sys.stdout.buffer.write(results_parquet(table))
    else:
        from gpulaunch.observe.terminal.results import print_results
        from gpulaunch.observe.terminal.terminal import LinePrinter

        printer = LinePrinter(sys.stdout, os.environ)
        hidden = print_results(printer, table, stdout_console().width)
        printer.flush()
        if hidden:
            say(
                f"no room for {several(len(hidden), 'column')}: {listing(hidden, 8)}; --csv has all"
            )


# ── Status and report ─────────────────────────────────────────────────────────────────────────────
