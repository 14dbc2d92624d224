"""Watches the sources of `foreach` for a run that follows them (`run --follow`), in a thread.

    SourceLook ─▶ Counted ─▶ load(file, following=Following(counted))
       ▲             └▶ fileno() readable
    a thread: SourceWatch

What counts, and why, is `source_look`'s and `stillness`'s matter.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from gpulaunch.app.source_look import Counted, SourceLook
from gpulaunch.errors import JobFileError
from gpulaunch.jobfile import Plan
from gpulaunch.jobfile.sources import Following, ForeachSource, NothingYet

SETTLE = 5.0
"""Seconds for which a file must have been still, where `--settle` says nothing."""
_BREATH = 50
"""Milliseconds for which changes are gathered before they are read: a copy makes thousands."""


def first_plan(read: Callable[[Following], Plan], settle: float | None, more: bool = True) -> Plan:
    """Return the plan of what counts now. `read` reads the job file; `more` as in Following.

    Raises JobFileError for a file without anything to follow.
    """
    plan = read(Following(NothingYet()))
    if not plan.sources:
        why = "nothing to follow: no job has foreach: over files, lines, a CSV or a FASTA file"
        raise JobFileError([plan.mistake(("jobs",), why)])
    look = SourceLook(SETTLE if settle is None else settle)
    try:
        look.follow(plan.sources)
        look.turn(())
        return read(Following(look.counted(), more))
    finally:
        look.close()


class SourceWatch:
    """Watches sources in a thread. `fileno` becomes readable when what counts has changed.

    Then `take` gives what counts now. All methods are for one thread, that of the run's loop.
    `trouble`: why nothing is watched any more; '' while it is.

    INVARIANT: what counts, and whether that is all, is replaced in one step.
    """

    def __init__(self, sources: Iterable[ForeachSource], settle: float = SETTLE) -> None:
        """Look at all sources once, and go on watching. Blocks for as long as that look takes."""
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._look = SourceLook(settle)
        self._wanted: tuple[ForeachSource, ...] | None = None
        self._closed = self._finishing = self._looked_anew = self._all = False
        self.trouble = ""
        self._look.follow(tuple(sources))
        self._look.turn(())
        self._taken = self._look.counted(), False
        self._thread = threading.Thread(target=self._run, name="sources", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._read

    def take(self) -> tuple[Counted, bool]:
        """Return what counts now, and whether that is all; `fileno` is readable once it changes.

        It is all once everything was looked at since `finish`, and nothing there may be
        half-written.
        """
        with suppress(BlockingIOError):
            os.read(self._read, 4096)
        return self._taken

    def finish(self) -> None:
        """Have what counts told without a delay, once it is all."""
        self._finishing = True
        self._signal(self._wake)

    def follow(self, sources: Iterable[ForeachSource]) -> None:
        """Watch these sources from now on: the job file has others."""
        self._wanted = tuple(sources)
        self._signal(self._wake)

    def close(self) -> None:
        """End the watching. Take `fileno` out of the loop first."""
        self._closed = True
        self._signal(self._wake)
        self._thread.join()
        self._look.close()
        for fd in (self._read, self._write, self._woken, self._wake):
            os.close(fd)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # the loop must learn that nobody watches any more
            self.trouble = f"{type(error).__name__}: {error}"
            self._signal(self._write)

    def _watch(self) -> None:
        poll, breath = select.poll(), select.poll()
        breath.register(self._woken, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        if self._look.fileno() >= 0:
            poll.register(self._look.fileno(), select.POLLIN)
        while not self._closed:
            due = self._look.due()
            patience = None if due is None else max(0.0, due - time.monotonic())
            ready = poll.poll(None if patience is None else 1000 * patience + 1)
            if any(fd == self._woken for fd, _ in ready) or (ready and breath.poll(_BREATH)):
                os.read(self._woken, 4096)
            if (wanted := self._wanted) is not None:
                self._wanted = None
                self._look.follow(wanted)
            self._turn()

    def _turn(self) -> None:
        finishing = self._finishing  # before the look: what came before it was asked for counts
        if finishing and not self._looked_anew:
            self._looked_anew = True
            self._look.look_anew()
        told = self._look.turn(self._look.changes())
        before, self._all = self._all, finishing and not self._look.waiting
        if told or (self._all and not before):
            self._taken = self._look.counted(), self._all
            self._signal(self._write)

    @staticmethod
    def _signal(fd: int) -> None:
        with suppress(BlockingIOError):  # full: it is readable already
            os.write(fd, b"\0")
