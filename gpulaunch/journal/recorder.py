"""Keeps a run's directory true to its facts: the journal first, then what is derived from it.

Derived are `results/JOB` links, `joblog.tsv` and the images in `manifest.json`. Only the journal is
the truth.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from gpulaunch.base.errors import UsageError
from gpulaunch.core.facts import (
    AdmissionPaused,
    AttemptEnded,
    AttemptLaunched,
    Fact,
    ImageKnown,
    JobAdded,
    JobSettled,
)
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant
from gpulaunch.journal import manifest
from gpulaunch.journal.append import Journal
from gpulaunch.journal.find import make_latest
from gpulaunch.journal.joblog import JobLog
from gpulaunch.journal.rundir import RunDir

ROOM = 256 << 10
"""Bytes that the disk must have free for an attempt: its log, its `{{out}}`, its end record."""


class Recorder:
    """Records facts. `ledger` is the run's own, which has them applied already."""

    def __init__(self, run: RunDir, journal: Journal, joblog: JobLog, ledger: Ledger) -> None:
        self._run = run
        self._journal = journal
        self._joblog = joblog
        self._ledger = ledger
        self._derive: deque[Fact] = deque()
        self._rows: list[AttemptId] = []
        self._succeeded: deque[str] = deque()
        self._recorded_ends: list[AttemptId] = []
        self._synced_ends: list[AttemptId] = []
        self._scarcity: OSError | None = None
        self._new_images = False
        self._begun = any(job.attempts for job in ledger.jobs.values())

    @property
    def failure(self) -> str:
        """Why facts are not written, or the next attempt has no room; empty if all is well."""
        failure = self._journal.failure or self._scarcity
        return "" if failure is None else (failure.strerror or str(failure))

    @property
    def unrecoverable(self) -> bool:
        """True once the run's directory is gone: waiting does not help then."""
        return isinstance(self._journal.failure or self._scarcity, FileNotFoundError)

    def append(self, facts: Sequence[tuple[Fact, Instant]]) -> bool:
        """Record the facts; return whether all facts so far are written, and there is room."""
        launches = put_off = False
        for fact, _ in facts:
            if isinstance(fact, _DERIVED):
                self._derive.append(fact)
            elif isinstance(fact, AttemptLaunched):
                launches = True
            elif isinstance(fact, AdmissionPaused | JobAdded):
                put_off = put_off or _puts_off(fact)
        whole = self._written(self._journal.append(facts))
        if launches:
            self._look_for_room()
        if launches or put_off:
            self._begin()
        return whole and self._scarcity is None

    def retry(self) -> bool:
        self._look_for_room()
        return self._written(self._journal.retry()) and self._scarcity is None

    def link_results(self) -> None:
        """Point `results/JOB` to what the jobs have left that have succeeded since the last call.

        A job that needs others looks there.
        """
        while self._succeeded:
            link_result(self._run, self._ledger, self._succeeded.popleft())

    def derive(self) -> None:
        """Link the results, write the joblog's rows of the recorded ends, and name the images."""
        self.link_results()
        if self._new_images:
            self._new_images = False
            self._name_images()
        rows, self._rows = self._rows, []
        if rows:
            self._joblog.ended([self._ledger.attempt(ended) for ended in rows], self._ledger)

    def _name_images(self) -> None:
        """Write the images that are known into the manifest; a later supervisor makes up for it."""
        with suppress(OSError, UsageError):
            named = self._run.read_manifest().with_images(self._ledger.images.values())
            manifest.write(self._run.manifest, named)

    def sync(self) -> bool:
        """Sync the journal to disk; return whether it holds all lines.

        Those that it lacks are pending again.
        """
        if not self._journal.sync():
            return False
        self._synced_ends += self._recorded_ends
        self._recorded_ends.clear()
        return True

    def synced_ends(self) -> list[AttemptId]:
        """Return the attempts whose ends have come to be on disk since the last call."""
        ends, self._synced_ends = self._synced_ends, []
        return ends

    def _begin(self) -> None:
        """Point `latest` to the run when the first attempt in it is launched, or put off."""
        if not self._begun:
            self._begun = True
            make_latest(self._run)

    def _look_for_room(self) -> None:
        """Set `_scarcity` where the disk has less room than an attempt needs."""
        try:
            disk = os.statvfs(self._run.path)
            full = disk.f_bavail * disk.f_frsize < ROOM
            self._scarcity = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if full else None
        except OSError as error:
            self._scarcity = error

    def _written(self, whole: bool) -> bool:
        while whole and self._derive:
            self._follow(self._derive.popleft())
        return whole

    def _follow(self, fact: Fact) -> None:
        match fact:
            case AttemptEnded(attempt):
                self._recorded_ends.append(attempt)
                self._rows.append(attempt)
            case JobSettled(name, "succeeded"):
                self._succeeded.append(name)
            case ImageKnown():
                self._new_images = True


def _puts_off(fact: AdmissionPaused | JobAdded) -> bool:
    """Tell whether the run has begun by this: jobs wait for a time, as they were told to."""
    return fact.by == "hours" if isinstance(fact, AdmissionPaused) else fact.due is not None


_DERIVED = (AttemptEnded, JobSettled, ImageKnown)


def link_result(run: RunDir, ledger: Ledger, job: str) -> None:
    """Point `results/JOB` to the `{{out}}` of the job's last attempt, unless that is empty.

    Where the disk does not allow it, nothing changes: a later start of the run tries again.
    """
    attempts = ledger.jobs[job].attempts
    if not attempts:
        return
    with (
        suppress(OSError),
        os.scandir(run.out_dir(attempts[-1].id)) as left,
    ):
        if any(True for _ in left):  # an empty one is removed, sooner or later
            run.link_result(attempts[-1].id)
