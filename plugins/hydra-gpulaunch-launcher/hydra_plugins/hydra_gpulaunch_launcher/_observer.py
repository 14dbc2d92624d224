"""Tells Hydra's log what becomes of a sweep's run, a line for what people wait for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from shlex import quote

from gpulaunch.base.text import span
from gpulaunch.core.facts import Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant
from gpulaunch.journal.find import typed
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.present.events import EventLine, LineFormatter, Tone
from gpulaunch.run import Observer

LEVELS: Mapping[Tone, int] = {
    "good": logging.INFO,
    "start": logging.INFO,
    "calm": logging.DEBUG,
    "warn": logging.WARNING,
    "bad": logging.ERROR,
}


class SweepObserver(Observer):
    """Hears of one launch, and writes to this log. `first`: the run begins with it."""

    def __init__(self, log: logging.Logger, first: bool) -> None:
        self._log = log
        self._first = first
        self._lines = LineFormatter()

    def note(self, text: str, urgent: bool = False) -> None:
        self._log.log(logging.INFO if urgent else logging.DEBUG, text)

    def warn(self, text: str) -> None:
        self._log.warning(text)

    def created(self, run: RunDir) -> None:
        if self._first:
            where = quote(typed(run.path))
            self._log.info(f"run directory {where}; to look at it: gpulaunch status {where}")

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None:
        for line in self._lines.tell(fact, at, ledger):
            self._tell(line)

    def close(self, ledger: Ledger) -> None:
        for line in self._lines.flush():
            self._tell(line)

    def reported(self, run: RunDir, why: str) -> None:
        if why:
            self._log.warning(f"the report could not be written: {why}")

    def _tell(self, line: EventLine) -> None:
        took = "" if line.seconds is None else f" in {span(round(line.seconds, 1))}"
        self._log.log(LEVELS[line.tone], f"\t{line.subject} {line.verb}{took}: {line.detail}")
