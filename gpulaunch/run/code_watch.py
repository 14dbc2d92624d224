"""Watches for code that changes under a live run: the code of its jobs, and gpulaunch's own.

    every two seconds ─▶ a thread: which files; have they another time? ─▶ CodeNews
             CodeChanged ◀─ CodeMinder: how many of its jobs had started ◀────┘

A change of a job's code counts while some of its jobs are still to come. All that may take long or
hang (a file server) is the thread's: the run's loop never waits for it. A short run is over before
the first look. Of its own code, a live run imports the rest early.
"""

from __future__ import annotations

import importlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from gpulaunch.base.loop import Callback, Loop
from gpulaunch.core.facts import CodeChanged, Fact, JobAdded
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import SETTLED_STATES, Instant, Job
from gpulaunch.core.run import Run

START_AFTER = 1.0
"""Seconds until the code is looked for: a run's first jobs start meanwhile."""
LOOK_EVERY = 2.0
"""Seconds between two looks, at least: looking takes a twentieth of the time at most."""
TOLD_AT_MOST_EVERY = 60.0
"""Seconds between two changes of one file that are told: who tries something saves often."""
MAX_FILES = 1000
"""Files that are followed."""

_Stamp: TypeAlias = tuple[int, int, int]
"""A file's time in ns, its size and its inode."""


class CodeNews(Struct, frozen=True):
    """A file became another one at `utc`; `groups` are the entries of the jobs that run it."""

    path: str
    utc: float
    groups: frozenset[int]


class _Known(Struct):
    """How a file was last. `told`: when (monotonic) its last change was told, -inf for never."""

    stamp: _Stamp
    groups: set[int]
    told: float = float("-inf")


class CodeLook:
    """Knows the files with jobs' code, and which of them have changed. For one thread at a time.

    `mono` and `utc`: this machine's clocks, in seconds.
    """

    def __init__(
        self,
        mono: Callable[[], float] = time.monotonic,
        utc: Callable[[], float] = time.time,
    ) -> None:
        from gpulaunch.diagnose.lint.report import JobsCode

        self._mono, self._utc = mono, utc
        self._code = JobsCode()
        self._known: dict[str, _Known] = {}

    def look(self, jobs: Sequence[Job], since: float | None) -> list[CodeNews]:
        """Return which files have changed since the last look, and follow the code of more jobs.

        Of a file that is new here, a change after `since` (UTC; None: none) is news.
        """
        news = [one for path, known in self._known.items() if (one := self._changed(path, known))]
        for path, groups in self._code.of(jobs).items():
            if path in self._known:
                self._known[path].groups |= groups
            elif len(self._known) < MAX_FILES and (stamp := _stamp(path)) is not None:
                known = self._known[path] = _Known(stamp, set(groups))
                if since is not None and since < stamp[0] / 1e9 <= self._utc():
                    news.append(self._told(path, known, stamp[0] / 1e9))
        return news

    def _changed(self, path: str, known: _Known) -> CodeNews | None:
        """Return the news of a file, None for none. A file that is gone for now is left out."""
        stamp = _stamp(path)
        if stamp is None or stamp == known.stamp:
            return None
        if self._mono() - known.told < TOLD_AT_MOST_EVERY:
            return None  # a later look finds it
        before, known.stamp = known.stamp, stamp
        written = stamp[0] / 1e9
        # A file that was moved there has its own time, and some clocks are wrong.
        is_likely = before[0] < stamp[0] and written <= self._utc()
        return self._told(path, known, written if is_likely else self._utc())

    def _told(self, path: str, known: _Known, utc: float) -> CodeNews:
        known.told = self._mono()
        return CodeNews(path, utc, frozenset(known.groups))


def _stamp(path: str) -> _Stamp | None:
    """Return how a file is now; None where it is none."""
    try:
        its = os.stat(path)
    except OSError:
        return None
    return (its.st_mtime_ns, its.st_size, its.st_ino) if stat.S_ISREG(its.st_mode) else None


class CodeMinder:
    """Records that the code of a run's jobs has changed. Let it `see` each fact; close it.

    `record` takes the facts, `note` a line where nothing is watched any more. `base`: paths below
    it are told without it.
    """

    def __init__(
        self,
        run: Run,
        loop: Loop,
        base: str,
        record: Callable[[CodeChanged], object],
        note: Callable[[str], object],
    ) -> None:
        self._run, self._loop, self._record, self._note = run, loop, record, note
        self._base = base
        self._new: dict[str, None] = {}
        self._look: CodeLook | None = None
        self._since: float | None = None
        self._began = 0.0
        self._forget: Callback | None = None
        loop.call_after("code", START_AFTER, self._begin)

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None:
        """Learn of jobs that the list gains."""
        if isinstance(fact, JobAdded):
            self._new[fact.name] = None

    def close(self) -> None:
        """Watch no more; waits for nothing."""
        self._loop.forget("code")
        if self._forget is not None:
            self._forget()

    def _begin(self) -> None:
        """Have a thread look, for all jobs that were added until now."""
        if self._look is None:
            self._since = _first_start(self._run.ledger)
            self._new = dict.fromkeys(self._run.ledger.jobs)
        jobs = [job for name in self._new if (job := self._run.job(name)) is not None]
        self._new, self._began = {}, self._loop.now()
        try:
            self._forget = self._loop.in_thread(partial(self._looked, jobs), self._tell)
        except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is left
            self._note(f"changes of the jobs' code are not noticed: {error}")

    def _looked(self, jobs: Sequence[Job]) -> list[CodeNews]:
        if self._look is None:
            self._look = CodeLook()
        return self._look.look(jobs, self._since)

    def _tell(self, found: list[CodeNews] | Exception) -> None:
        if isinstance(found, Exception):
            trouble = f"{type(found).__name__}: {found}"
            self._note(f"changes of the jobs' code are not noticed any more: {trouble}")
            return
        for news in found:
            if (fact := code_changed(news, self._run.ledger, self._base)) is not None:
                self._record(fact)
        took = self._loop.now() - self._began
        self._loop.call_after("code", max(LOOK_EVERY, 20 * took), self._begin)


def _first_start(ledger: Ledger) -> float | None:
    """Return when the run's first attempt was launched; None where none was."""
    launched = (job.attempts[0].launched.utc for job in ledger.jobs.values() if job.attempts)
    return min(launched, default=None)


def code_changed(news: CodeNews, ledger: Ledger, base: str) -> CodeChanged | None:
    """Return the fact that this is; None where no job of it had started, or none is to come.

    Nor is there one where a change since is recorded already.
    """
    path = _below(news.path, base)
    before = ledger.code_changes.get(path)
    if before is not None and before.utc >= news.utc:
        return None
    jobs = [job for job in ledger.jobs.values() if job.definition.group in news.groups]
    listed = [job for job in jobs if not job.gone]
    begun = (job.attempts[0].launched for job in listed if job.attempts)
    started = sum(launched.utc < news.utc for launched in begun)
    if not started or all(job.state in SETTLED_STATES for job in listed):
        return None
    return CodeChanged(path, news.utc, started, len(listed))


def _below(path: str, base: str) -> str:
    relative = os.path.relpath(path, base)
    return path if relative.startswith("..") else relative


# ── The modules of the run itself ─────────────────────────────────────────────────────────────────

IMPORT_AFTER = 5.0
"""Seconds after a run's start: its first jobs run by then, and many runs are over."""
LATER = (
    "gpulaunch.diagnose.failure.judge",
    "gpulaunch.diagnose.lint.python",
    "urllib.request",
    "gpulaunch.observe.terminal.overview",
)
"""What the modules of a live run import inside functions."""


def import_the_rest(loop: Loop, note: Callable[[str], object]) -> Callback:
    """Import in a thread, a while after the start of the run; return a function that forgets that.

    A run that lasts for weeks imports some modules only at its end, or when a job fails. These
    modules must be of the version that the run began with: another gpulaunch may be installed
    meanwhile. The programs that the run starts are copied: see `engines.programs`.
    `note` takes a line for people if something cannot be imported.
    """
    forgets: list[Callback] = [lambda: loop.forget("imports")]

    def begin() -> None:
        try:
            forgets.append(loop.in_thread(_import, over))
        except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is left
            over(error)

    def over(found: Exception | None) -> None:
        if found is not None:
            note(f"do not upgrade gpulaunch while this run lives: {found}")

    def forget() -> None:
        for one in forgets:
            one()

    loop.call_after("imports", IMPORT_AFTER, begin)
    return forget


def _import() -> None:
    for name in LATER:
        importlib.import_module(name)
    from gpulaunch.base.environment_modules import script
    from gpulaunch.observe.metrics.store import queries

    queries()
    script()
