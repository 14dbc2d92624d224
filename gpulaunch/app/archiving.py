"""Keeps a standing run small: jobs that ended long ago go to its history, and are forgotten.

    too many jobs are over ─▶ a process writes a shorter journal ─▶ it takes the journal's place
                                                                └─▶ the core and all else forget

Only the last step is this process's own, and takes milliseconds. Where anything goes wrong, all
stays as it is, and the run as well.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from gpulaunch.app.supervisor import Supervisor
from gpulaunch.core.facts import Fact, JobSettled
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import SETTLED_STATES, Instant
from gpulaunch.core.run import Run
from gpulaunch.helper_process import command, start
from gpulaunch.journal.append import Journal, ShorterJournal
from gpulaunch.journal.codec import BadLineError
from gpulaunch.journal.rundir import RunDir
from gpulaunch.loop import Loop

ARCHIVE_AT = 5_000
"""Jobs that are over and in the journal, above which the older ones are archived."""
ARCHIVE_KEEP = 1_000
"""Jobs that ended last, which stay."""
RETRY_SECONDS = 600.0
"""Seconds until a compaction that failed is tried again."""
_TIMER = "archive"


class _Chosen(Struct, frozen=True):
    """The jobs of a compaction under way, and how far each was: nothing may come to it since."""

    names: tuple[str, ...]
    ends: tuple[object, ...]
    size: int


class Archiver:
    """Compacts the journal of one run while it lives. Let it `see` each fact; close it.

    `forget` are called with the names of jobs that have been archived. `at` and `keep`: see
    ARCHIVE_AT, ARCHIVE_KEEP.
    """

    def __init__(
        self,
        directory: RunDir,
        run: Run,
        journal: Journal,
        supervisor: Supervisor,
        loop: Loop,
        forget: Sequence[Callable[[Sequence[str]], object]],
        at: int = ARCHIVE_AT,
        keep: int = ARCHIVE_KEEP,
    ) -> None:
        self._directory, self._run, self._journal = directory, run, journal
        self._supervisor, self._loop, self._forget = supervisor, loop, forget
        self._at, self._keep = at, keep
        self._enough = at
        self._process: subprocess.Popen[bytes] | None = None
        self._chosen = _Chosen((), (), 0)
        self._said = b""
        self._resting = False

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None:
        """Look, where this is a job's end."""
        if isinstance(fact, JobSettled):
            self.look()

    def look(self) -> None:
        """Have the oldest jobs archived soon, if there are enough of them."""
        if self._over > self._enough and self._process is None and not self._resting:
            self._loop.call_after(_TIMER, 0.0, self._begin)

    @property
    def _over(self) -> int:
        """How many jobs are over and not archived."""
        ledger = self._run.ledger
        counts, archived = ledger.counts, ledger.archived
        return sum(counts[state] - archived[state] for state in SETTLED_STATES)

    def _begin(self) -> None:
        self._resting = False
        if self._over <= self._enough or self._process is not None:
            return
        size = self._journal.size
        names = tuple(self._run.archivable(self._keep))
        if size is None or len(names) <= self._keep:
            # The journal cannot be written now, or too many of them are needed: look later.
            self._enough = self._over + self._keep
            return
        self._chosen = _Chosen(names, self._ends(names), size)
        asked = json.dumps({"size": size, "names": names}).encode()
        directory = str(self._directory.path)
        line = command("gpulaunch.journal.compaction", directory, title="compaction")
        try:
            with open(os.memfd_create("compaction"), "r+b") as told:
                told.write(asked)
                told.seek(0)
                pipes: dict[str, Any] = {"stdin": told, "stdout": subprocess.PIPE}
                self._process = start(line, **pipes, cwd="/")
        except OSError as error:
            self._failed(error.strerror or str(error))
            return
        assert self._process.stdout is not None
        self._said = b""
        self._loop.watch(self._process.stdout.fileno(), self._hear)

    def _ends(self, names: Sequence[str]) -> tuple[object, ...]:
        jobs = self._run.ledger.jobs
        known = (jobs.get(name) for name in names)
        return tuple((job.settled, len(job.attempts)) if job else None for job in known)

    def _hear(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        if said := os.read(self._process.stdout.fileno(), 1 << 16):
            self._said += said
            return
        self._reap()
        try:
            told = json.loads(self._said)
        except ValueError:
            self._failed("its process ended without a word")
            return
        if "refused" in told:
            self._supervisor.note(None, f"the journal grows on: {told['refused']}")
            self._resting = True
        elif "failed" in told:
            self._failed(told["failed"])
        else:
            self._take(told)

    def _take(self, told: dict[str, Any]) -> None:
        """Put the draft in the journal's place, unless one of the jobs is needed again."""
        names, draft = self._chosen.names, ShorterJournal(**told)

        def put() -> bool:
            still = self._ends(names) == self._chosen.ends
            if not still or not set(names).issubset(self._run.archivable(self._keep)):
                return False
            self._journal.go_on_in(draft)
            return True

        try:
            done = self._supervisor.archive(names, draft.history, put)
        except (OSError, BadLineError) as error:
            self._failed(getattr(error, "strerror", None) or str(error))
            return
        if not done:
            with suppress(OSError):
                os.unlink(draft.path)
            self._enough = self._over + self._keep
            return
        for forget in self._forget:
            forget(names)
        self._enough = self._at

    def _failed(self, why: str) -> None:
        minutes = f"{RETRY_SECONDS / 60:.0f} minutes"
        text = f"the journal could not be compacted ({why}); tried again in {minutes}"
        self._supervisor.note(None, text)
        self._resting = True
        self._loop.call_after(_TIMER, RETRY_SECONDS, self._begin)

    def _reap(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        self._loop.unwatch(process.stdout.fileno())
        process.stdout.close()
        process.wait()

    def close(self) -> None:
        """End a compaction that is under way: nothing comes of it."""
        self._loop.forget(_TIMER)
        if self._process is not None:
            self._process.kill()
            self._reap()
