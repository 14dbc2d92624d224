"""Prints for commands: JSON events, plans, summaries, and lines on standard error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from msgspec.structs import replace

from gpulaunch.core.facts import Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant
from gpulaunch.digest.words import visible_lines
from gpulaunch.journal import codec
from gpulaunch.journal.finding import typed
from gpulaunch.journal.rundir import RunDir
from gpulaunch.views.terminal import SilentView, console_for

if TYPE_CHECKING:
    from rich.console import Console

    from gpulaunch.app.observer import Preview


def say(text: str) -> None:
    """Print a line of gpulaunch's own on standard error."""
    click.echo(f"gpulaunch: {visible_lines(text)}", err=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


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
    return console_for(sys.stdout, os.environ)


def stderr_console() -> Console:
    return console_for(sys.stderr, os.environ)


class TypedPaths:
    """A run's paths as people would type them from here."""

    def __init__(self, run: RunDir, base: str | None = None) -> None:
        self._run = run
        self._base = base

    @property
    def root(self) -> str:
        return self._typed(self._run.path)

    def log(self, attempt: AttemptId) -> str:
        return self._typed(self._run.log(attempt))

    def out(self, attempt: AttemptId) -> str:
        return self._typed(self._run.out(attempt))

    def keep(self, job: str) -> str:
        return self._typed(self._run.keep(job))

    def _typed(self, path: Path) -> str:
        return typed(path, self._base)


def show_summary(ledger: Ledger, run: RunDir) -> None:
    """Print the end of a run for people, on standard error."""
    from gpulaunch.digest.summary import summarise
    from gpulaunch.metrics.read import measured
    from gpulaunch.views.ending import print_summary

    told = summarise(ledger, TypedPaths(run), codec.now(), measured=measured(run.metrics))
    if not run.holds_run:
        told = replace(told, next_command=None)  # nothing is left to go on with
    print_summary(stderr_console(), told)


def echo_plan(preview: Preview, as_json: bool) -> None:
    """Print what a run would do; as JSON also the findings in its commands and scripts."""
    from gpulaunch.app.telling import targets_of
    from gpulaunch.digest.plan import plan_json
    from gpulaunch.notify.preflight import describe
    from gpulaunch.views.plain import LinePrinter
    from gpulaunch.views.plan import print_plan

    plan, pool, jobs = preview.plan, preview.pool, preview.jobs
    told = targets_of(plan)
    if as_json:
        parts = (plan.name, pool.echo, pool.gpus, plan.limits, jobs, pool.engine)
        print_json(plan_json(*parts, [describe(one) for one in told], preview.found))
    else:
        printer = LinePrinter(sys.stdout, os.environ)
        print_plan(printer, plan.name, pool.echo, plan.limits, jobs, pool.engine, pool.gpus)
        if told:
            printer.print([(), *((f"tells {describe(target)}",) for target in told)])
        printer.flush()
