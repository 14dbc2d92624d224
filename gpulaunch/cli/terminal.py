"""The terminal as a run's observer: the only place of a run that prints, forks away, or exits."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from gpulaunch.base import errors
from gpulaunch.base.files import end_of, regular
from gpulaunch.base.text import shell_word
from gpulaunch.cli.output import JsonView, echo_plan, say, show_summary, stderr_console
from gpulaunch.core.ledger import Ledger
from gpulaunch.journal.find import typed
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.terminal.terminal import SilentView, View
from gpulaunch.run.options import Observer, Preview

_LISTED = b"listed"


class DetachedSupervisor:
    """The child of the fork, which keeps the terminal for errors until the run has begun."""

    def __init__(self, channel: int, log: Path) -> None:
        self._channel = channel
        self._log = log

    def goes_on(self, log: Path) -> None:
        """Write into this file once the next run of the same process has begun."""
        self._log = log

    def begun(self) -> None:
        _redirect(self._log)

    def listed(self) -> None:
        if self._channel < 0:
            return  # the run before has told
        with suppress(BrokenPipeError):  # nobody waits any more: Ctrl-C
            os.write(self._channel, _LISTED)
        os.close(self._channel)
        self._channel = -1


def detach(log: Path) -> int | DetachedSupervisor:
    """Fork, before any thread, lock or socket of one side; return the supervisor in the child.

        parent ──fork──▶ child: setsid; once begun, standard streams away from the terminal
           ▲──── "listed" once its jobs are recorded; or its exit status, and its words ──┘

    What the run starts has its streams, so they lead to the file before anything is started.

    In the process that the user started: its exit status, 0 once the run's jobs are recorded, so
    that whoever looks next finds them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    before = _size(log)
    pid = os.fork()
    if pid:
        # The child blocks signals at first; this side does not: Ctrl-C ends its waiting.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(write)
        with open(read, "rb") as channel:
            # Not to its end: what the child forks has it open as well.
            if channel.read(len(_LISTED)):
                return errors.OK
        _, status = os.waitpid(pid, 0)
        _repeat(log, before)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else errors.SOME_JOB_FAILED
    os.close(read)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return DetachedSupervisor(write, log)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _repeat(log: Path, before: int) -> None:
    """Say on standard error what the run wrote into its file instead, and why it ended."""
    with suppress(OSError):
        said, _ = end_of(log, max(0, _size(log) - before))
        sys.stderr.write(said.decode(errors="replace"))


def _redirect(log: Path) -> None:
    """Redirect standard streams to /dev/null and the run's file, away from the terminal."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)


# ── The observer ──────────────────────────────────────────────────────────────────────────────────


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
        from gpulaunch.run.settings import ended_at_logout, how_to_stay

        if what := ended_at_logout():
            self.warn(f"the run ends when you log out: {what}; to stay: {how_to_stay(what)}")
        side = detach(run.path / "supervisor.log")
        if isinstance(side, int):
            click.echo(run.path)
            raise click.exceptions.Exit(side)
        self._detached = side

    def opened(self, event: int, earlier: Mapping[str, float]) -> None:
        from gpulaunch.observe.terminal.lines import choose_view

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
                from gpulaunch.observe.terminal.overview import print_report

                print_report(stderr_console(), typed(run.report))
