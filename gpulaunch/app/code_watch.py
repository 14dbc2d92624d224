"""Notices that the code of a run's jobs changes while some of them are still to come.

    jobs ─▶ a thread: JobsCode: which files; inotify, or a look now and then ─▶ CodeNews
              fileno() readable ─▶ CodeMinder: how many of its jobs had started ─▶ CodeChanged

All that may take long or hang (a file server) is the thread's: the run's loop never waits for it.
A run is over before the thread begins, where it is short.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from gpulaunch.app.code_look import CodeLook, CodeNews
from gpulaunch.core.facts import CodeChanged, Fact, JobAdded
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import SETTLED_STATES, Instant, Job
from gpulaunch.core.run import Run
from gpulaunch.loop import Loop

T = TypeVar("T")

START_AFTER = 1.0
"""Seconds until the code is looked for: a run's first jobs start meanwhile."""
BREATH = 0.5
"""Seconds for which the kernel's words are gathered: an editor writes a file in several steps."""


class CodeWatch:
    """Follows the code of jobs in a thread. `fileno` is readable when `take` has news.

    `since`: changes after that moment (UTC), and before the first look, are news. `trouble`: why
    nothing is watched any more; empty while it is. The thread ends by itself after `close`, which
    does not wait for it.
    """

    def __init__(self, since: float | None) -> None:
        self._since = since
        self.trouble = ""
        self._read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            os.close(self._read)
            os.close(write)
            raise
        self._jobs: SimpleQueue[Sequence[Job]] = SimpleQueue()
        self._news: SimpleQueue[CodeNews] = SimpleQueue()
        thread = threading.Thread(target=self._run, args=(woken, write), name="code", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            for fd in (self._read, write, woken, self._wake):
                os.close(fd)
            raise

    def fileno(self) -> int:
        return self._read

    def follow(self, jobs: Sequence[Job]) -> None:
        """Follow the code of these jobs, too."""
        self._jobs.put(jobs)
        with suppress(BlockingIOError, BrokenPipeError):  # it is woken already, or has ended
            os.write(self._wake, b"\0")

    def take(self) -> list[CodeNews]:
        """Return the news since the last call."""
        with suppress(BlockingIOError):
            os.read(self._read, 4096)
        return _all_of(self._news)

    def close(self) -> None:
        """Have the thread end. Take `fileno` out of the loop first."""
        os.close(self._wake)
        os.close(self._read)

    def _run(self, woken: int, write: int) -> None:
        look = CodeLook()
        try:
            self._follow_on(look, woken, write)
        except BrokenPipeError:
            pass  # nobody takes news any more
        except Exception as error:  # the loop must learn that nobody watches
            self.trouble = f"{type(error).__name__}: {error}"
            with suppress(OSError):
                os.write(write, b"\0")
        finally:
            look.close()
            os.close(woken)
            os.close(write)

    def _follow_on(self, look: CodeLook, woken: int, write: int) -> None:
        from gpulaunch.diagnose.lint.report import JobsCode

        code, poll, breath = JobsCode(), select.poll(), select.poll()
        breath.register(woken, select.POLLIN)
        poll.register(woken, select.POLLIN)
        if look.fileno() >= 0:
            poll.register(look.fileno(), select.POLLIN)
        while True:
            due = look.due
            ready = poll.poll(None if due is None else due * 1000)
            if any(fd == woken for fd, _ in ready) or (ready and breath.poll(BREATH * 1000)):
                if not os.read(woken, 4096):
                    return
                news = [
                    one
                    for jobs in _all_of(self._jobs)
                    for one in look.follow(code.of(jobs), self._since)
                ]
            else:
                news = look.look() if look.heard() or not ready else []
            for one in news:
                self._news.put(one)
            if news:
                os.write(write, b"\0")


def _all_of(queue: SimpleQueue[T]) -> list[T]:
    found: list[T] = []
    with suppress(Empty):
        while True:
            found.append(queue.get_nowait())
    return found


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
        self._watch: CodeWatch | None = None
        loop.call_after("code", START_AFTER, self._begin)

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None:
        """Learn of jobs that the list gains."""
        if self._watch is not None and isinstance(fact, JobAdded):
            self._new[fact.name] = None
            self._loop.call_after("code", START_AFTER, self._follow)

    def close(self) -> None:
        """Watch no more; waits for nothing."""
        self._loop.forget("code")
        if self._watch is not None:
            self._loop.unwatch(self._watch.fileno())
            self._watch.close()
            self._watch = None

    def _begin(self) -> None:
        try:
            self._watch = CodeWatch(_first_start(self._run.ledger))
        except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is left
            self._note(f"changes of the jobs' code are not noticed: {error}")
            return
        self._loop.watch(self._watch.fileno(), self._tell)
        self._new = dict.fromkeys(self._run.ledger.jobs)
        self._follow()

    def _follow(self) -> None:
        assert self._watch is not None
        names, self._new = self._new, {}
        self._watch.follow([job for name in names if (job := self._run.job(name)) is not None])

    def _tell(self) -> None:
        assert self._watch is not None
        for news in self._watch.take():
            if (fact := code_changed(news, self._run.ledger, self._base)) is not None:
                self._record(fact)
        if trouble := self._watch.trouble:
            self.close()
            self._note(f"changes of the jobs' code are not noticed any more: {trouble}")


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
