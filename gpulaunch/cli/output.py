"""Prints for commands: JSON events, plans, summaries, and lines on standard error."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click
from msgspec.structs import replace

from gpulaunch.base.text import in_utf8
from gpulaunch.core.facts import Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant
from gpulaunch.journal import codec
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.present.words import visible_lines
from gpulaunch.observe.terminal.terminal import SilentView, console_for
from gpulaunch.run.typed_paths import TypedPaths

if TYPE_CHECKING:
    from rich.console import Console

    from gpulaunch.run.options import Preview


def say(text: str) -> None:
    """Print a line of gpulaunch's own on standard error."""
    click.echo(f"gpulaunch: {visible_lines(text)}", err=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    click.echo(in_utf8(json.dumps(value, indent=2, ensure_ascii=False)))


class JsonView(SilentView):
    """Prints one event per line, as the journal has it. `first` is the first event's number."""

    def __init__(self, stream: TextIO, first: int) -> None:
        self._stream: TextIO | None = stream
        self._number = first

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None:
        line = codec.encode(self._number, fact, at)
        self._number += 1
        if self._stream:
            try:
                self._stream.buffer.write(line)
                self._stream.flush()
            except (OSError, ValueError):
                self._stream = None


def stdout_console() -> Console:
    return console_for(sys.stdout, os.environ, raises=True)


def stderr_console() -> Console:
    return console_for(sys.stderr, os.environ)


def show_summary(ledger: Ledger, run: RunDir) -> None:
    """Print the end of a run for people, on standard error."""
    from gpulaunch.observe.metrics.read import measured
    from gpulaunch.observe.present.summary import summarise
    from gpulaunch.observe.terminal.overview import print_summary

    told = summarise(ledger, TypedPaths(run), codec.now(), measured=measured(run.metrics))
    if not run.holds_run:
        told = replace(told, next_command=None)  # nothing is left to go on with
    print_summary(stderr_console(), told)


def echo_plan(preview: Preview, as_json: bool) -> None:
    """Print what a run would do; as JSON also the findings in its commands and scripts."""
    from gpulaunch.observe.notify.preflight import describe
    from gpulaunch.observe.terminal.plan import print_plan
    from gpulaunch.observe.terminal.terminal import LinePrinter
    from gpulaunch.run.check import plan_document
    from gpulaunch.run.preflight import targets_of

    if as_json:
        print_json(plan_document(preview))
        return
    plan, pool, jobs = preview.plan, preview.pool, preview.jobs
    printer = LinePrinter(sys.stdout, os.environ)
    print_plan(printer, plan.name, pool.echo, plan.limits, jobs, pool.engine, pool.gpus)
    if told := targets_of(plan):
        printer.print([(), *((f"tells {describe(target)}",) for target in told)])
    printer.flush()
