"""The terminal as a run's observer: the only place of a run that prints, forks away, or exits."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from gpulaunch.app.observer import Observer, Preview
from gpulaunch.cli.detach import DetachedSupervisor, detach
from gpulaunch.cli.output import JsonView, echo_plan, say, show_summary, stderr_console
from gpulaunch.core.ledger import Ledger
from gpulaunch.journal.finding import typed
from gpulaunch.journal.rundir import RunDir
from gpulaunch.text import shell_word
from gpulaunch.views.terminal import SilentView, View


class Terminal(Observer):
    """Shows a run as its options ask for it.

    `options` are those of the command line: quiet, no_progress, as_json, detach, dry_run.
    """

    _detached: DetachedSupervisor | None = None
    _view: View = SilentView()

    def __init__(self, options: Mapping[str, Any] = {}) -> None:
        self.quiet = bool(options.get("quiet"))
        self.preview_only = bool(options.get("dry_run"))
        self._lines = bool(options.get("no_progress"))
        self._json = bool(options.get("as_json"))
        self._detach = bool(options.get("detach"))

    def note(self, text: str, urgent: bool = False) -> None:
        if urgent or not self.quiet:
            say(text)

    def warn(self, text: str) -> None:
        click.echo(f"warning: {text}", err=True)

    def planned(self, preview: Preview) -> None:
        if self.preview_only:
            echo_plan(preview, self._json)
            raise click.exceptions.Exit(0)

    def created(self, run: RunDir) -> None:
        if not self._detach or self.preview_only:
            return
        if self._detached is not None:
            self._detached.goes_on(run.path / "supervisor.log")
            return
        from gpulaunch.app.logout import ended_at_logout, how_to_stay

        if what := ended_at_logout():
            self.warn(f"the run ends when you log out: {what}; to stay: {how_to_stay(what)}")
        side = detach(run.path / "supervisor.log")
        if isinstance(side, int):
            click.echo(run.path)
            raise click.exceptions.Exit(side)
        self._detached = side

    def opened(self, event: int, earlier: Mapping[str, float]) -> None:
        from gpulaunch.views.lines import choose_view

        if self._json:
            self._view = JsonView(sys.stdout, event)
            return
        # Detached, standard error is about to become a file: no display that redraws, no colours.
        environ = {**os.environ, "NO_COLOR": "1"} if self._detach else os.environ
        lines = self._lines or self._detach
        self._view = choose_view(sys.stderr, environ, self.quiet, lines, earlier=earlier)

    def begun(self) -> None:
        gc.freeze()  # the jobs stay to the end: none of them is looked through for garbage again
        if self._detached is not None:
            self._detached.begun()

    def listed(self) -> None:
        if self._detached is not None:
            self._detached.listed()

    @property
    def view(self) -> View:
        return self._view

    def ended(self, run: RunDir, ledger: Ledger) -> None:
        if self._json:
            return
        try:
            show_summary(ledger, run)
        except ModuleNotFoundError as error:  # its environment was removed while the run lived
            what = f"the end cannot be shown here: {error.name} is not installed any more"
            self.note(f"{what}: gpulaunch status {shell_word(typed(run.path))}", urgent=True)

    def reported(self, run: RunDir, why: str) -> None:
        if why:
            again = f"gpulaunch report {shell_word(typed(run.path))}"
            self.note(f"the report could not be written: {why}; once more: {again}")
        elif not self.quiet and not self._json:
            with suppress(ModuleNotFoundError):  # `ended` has told
                from gpulaunch.views.overview import print_report

                print_report(stderr_console(), typed(run.report))
