"""`gpulaunch top`: a run on the whole screen, as it goes or as it was."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence

import click

from gpulaunch.base.errors import UsageError
from gpulaunch.base.extras import require
from gpulaunch.cli.options import run_argument
from gpulaunch.cli.terminal import Terminal
from gpulaunch.core.events import Request
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant, RunState
from gpulaunch.core.reasons import NeedsOthers
from gpulaunch.journal.codec import now
from gpulaunch.journal.find import durations_before, owner_of
from gpulaunch.journal.liveness import origin_of, original_of
from gpulaunch.journal.manifest import boot_id
from gpulaunch.journal.read import Fault, Follower, read
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.life_signs import mark_last_seen
from gpulaunch.observe.metrics.read import open_metrics
from gpulaunch.observe.terminal.terminal import can_redraw, is_terminal
from gpulaunch.observe.top.board import Dated, SampleStore, Why
from gpulaunch.run.control_client import call, reasons, watch
from gpulaunch.run.control_protocol import EXPLAINED, NoAnswerError
from gpulaunch.run.damage import tell
from gpulaunch.run.lookup import SUPERVISOR_ANSWER_TIMEOUT, directory
from gpulaunch.run.typed_paths import TypedPaths


@click.command("top")
@run_argument
def command(run: str | None) -> int | None:
    """Watch a run on the whole screen, live or afterwards. RUN: the newest one here.

    Cards, what runs on them, what waits and why, what failed; ? lists the keys, q quits and
    leaves the run alone.

    \b
    gpulaunch top
    gpulaunch top gpulaunch-runs/nanobodies-20261120-074215
    """
    require("top", "gpulaunch top")
    _refuse_other_terminals()
    # The ledger is no garbage, and collecting again and again while it grows would take a third of
    # the time in which 100,000 jobs are read.
    gc.set_threshold(100_000, 50, 100)
    terminal = Terminal()
    link = Attached(directory(run, terminal))
    try:
        from gpulaunch.observe.top.app import Top

        if not os.environ.get("NO_COLOR"):
            os.environ.pop("NO_COLOR", None)  # set and empty means nothing (no-color.org)
        app = Top(link, hung_up=_end_with_terminal)
        app.run()
    finally:
        link.close()
    if app.refused:
        raise UsageError(app.refused)
    tell(link.run, link.faults, "running", terminal)
    return app.return_code


def _end_with_terminal() -> None:
    """End by SIGHUP, even under nohup: Textual would read from a closed terminal for ever."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGHUP)


def _refuse_other_terminals() -> None:
    """Raise UsageError if the screen cannot be drawn, or keys cannot be read."""
    streams = (("input", sys.stdin), ("output", sys.stdout), ("error", sys.stderr))
    for name, stream in streams:
        if not is_terminal(stream):
            raise UsageError(
                f"top fills a terminal, and standard {name} is none: gpulaunch status says the same"
            )
    if not can_redraw(sys.stderr, os.environ):
        term, encoding = os.environ.get("TERM") or "not set", sys.stderr.encoding
        raise UsageError(
            "top needs a terminal that moves its cursor and shows UTF-8, and this one is"
            f" TERM={term} with {encoding}: gpulaunch status says the same"
        )


class Attached:
    """A run's directory, and its supervisor while it lives. Owns the descriptors; `close` it."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._here = origin_of(run).here
        self._follower = Follower(run.events)
        self._pulse: socket.socket | None = None
        self._samples: SampleStore | None = None
        self.root = TypedPaths(run).root

    def close(self) -> None:
        self._follower.close()
        self._lose_pulse()
        if self._samples is not None:
            self._samples.close()

    # ── Looking ─────────────────────────────────────────────────────────────────────────────────

    def read(self) -> list[Dated]:
        return self._follower.read(piece=True)

    def share(self) -> float:
        return self._follower.share

    @property
    def faults(self) -> Sequence[Fault]:
        """The faults of the journal, as far as it was read."""
        return self._follower.faults

    def past(self) -> Iterator[Dated]:
        return read(self.run.events)

    def state(self, ledger: Ledger) -> RunState:
        if ledger.closed:
            self._lose_pulse()
            return ledger.state
        if not self._here or self._beats(ledger.opening.run):
            return "running"
        mark_last_seen(self.run, ledger)
        return "interrupted"

    def gone(self) -> bool:
        return not self.run.events.exists()

    def now(self, ledger: Ledger) -> Instant:
        return ledger.here(now(), boot_id())

    def samples(self) -> SampleStore | None:
        """Open the samples once they exist, and return them; the sampler starts after the run."""
        if self._samples is None:
            self._samples = open_metrics(self.run.metrics)
        return self._samples

    def log(self, attempt: AttemptId) -> os.PathLike[str]:
        return self.run.log(attempt)

    def earlier(self) -> dict[str, float]:
        return durations_before(self.run)

    # ── The supervisor ──────────────────────────────────────────────────────────────────────────

    def reasons(self) -> Why:
        told = reasons(self._id(), SUPERVISOR_ANSWER_TIMEOUT)
        others = NeedsOthers(len(told)) if len(told) >= EXPLAINED else None
        return lambda name: told.get(name, others)

    def ask(self, request: Request) -> None:
        call(self._id(), request)

    def add(self, command: str) -> str:
        from gpulaunch.run.edit import add_command

        return add_command([command], {}, self.run.path).names[0]

    def _id(self) -> str:
        if original := original_of(self.run):
            raise NoAnswerError(f"this is a copy of {original.path}, and not alive")
        return self.run.read_manifest().run

    def _beats(self, run: str) -> bool:
        """Tell whether the supervisor lives, by a connection that hangs up once it is gone."""
        if self._pulse is not None:
            if not select.select([self._pulse], [], [], 0)[0]:
                return True
            self._lose_pulse()  # gone, or too many ask the run at once
        self._pulse = None if original_of(self.run) else watch(run, owner_of(self.run))
        return self._pulse is not None

    def _lose_pulse(self) -> None:
        if self._pulse is not None:
            self._pulse.close()
            self._pulse = None
