"""The journal's one writer: appends whole lines to `events.jsonl`, or keeps them until it can.

Owns the file's end. Never changes an acknowledged line, never decides when to give up: `append`
and `retry` return whether everything is on file, `failure` says why not, and the supervisor acts
on that.

A line is acknowledged when `write` took all of it: a SIGKILL after that loses nothing (the page
cache is the kernel's). `sync` guards against a power cut as well. Network file systems report some
errors (a full quota) only then: so lines are kept until they are synced, and written again if that
fails.

INVARIANT: between calls the file ends with a whole line, unless `_torn`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import regular
from gpulaunch.core.facts import Fact
from gpulaunch.core.model import Instant
from gpulaunch.journal.codec import encode
from gpulaunch.journal.read import scan
from gpulaunch.journal.rundir import RunDir

_BATCH_LINES = 4096
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class BusyJournalError(UsageError):
    """Another process writes this journal."""


class Journal:
    """The append-only record of one run. Made by `create` or `reopen`; close it.

    `next` is the number that the next fact's line will have; `failure` is why lines are pending,
    None while all is well.
    """

    def __init__(
        self,
        path: Path,
        fd: int,
        number: int = 1,
        *,
        write: Callable[[int, bytes], int] = os.write,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self.path = path
        self.failure: OSError | None = None
        self._fd = fd
        self.next = number
        found = os.fstat(fd)
        self._size = found.st_size
        # No other file gets its inode number while this process has it open.
        self._identity = found.st_dev, found.st_ino
        self._pending: deque[bytes] = deque()
        self._unsynced: list[bytes] = []
        self._torn = False
        self._taken_back = False
        self._write, self._fdatasync = write, sync

    @classmethod
    def create(cls, rundir: RunDir) -> Journal:
        """Create and return a new journal. Raises UsageError where the directory holds a run."""
        try:
            fd = regular(rundir.events, _FLAGS | os.O_CREAT)
        except OSError as error:
            raise UsageError(f"{rundir.events} cannot be made: {error.strerror}") from None
        try:
            _require_empty(rundir, fd)
            _claim(rundir.events, fd)
            _require_empty(rundir, fd)  # another launcher may have been quicker, and be done
            return cls(rundir.events, fd)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def reopen(cls, rundir: RunDir) -> Journal:
        """Open the journal of a run that goes on, cut a torn last line off, and return it.

        Raises BusyJournalError while another process writes it, DamagedJournalError where a line
        before the last is not what was written, UsageError where there is none.
        """
        fd = _claimed(rundir)
        try:
            found = scan(rundir.events)
            if os.fstat(fd).st_size > found.end:
                os.ftruncate(fd, found.end)
            return cls(rundir.events, fd, found.lines + 1)
        except BaseException:
            os.close(fd)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pending(self) -> int:
        """How many lines wait in memory because they could not be written."""
        return len(self._pending)

    @property
    def gone(self) -> bool:
        """True once the file was deleted, or its directory was deleted, moved or replaced."""
        try:
            named = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False  # not known: the next write reports the error
        return (named.st_dev, named.st_ino) != self._identity

    def _what_is_gone(self) -> str:
        if self.path.parent.is_dir():
            return f"{self.path} was deleted or replaced"
        return f"{self.path.parent} was deleted or moved"

    def append(self, facts: Sequence[tuple[Fact, Instant]]) -> bool:
        """Record the facts, in order. False: some lines wait in memory; `failure` says why."""
        for fact, at in facts:
            self._pending.append(encode(self.next, fact, at))
            self.next += 1
            if len(self._pending) >= _BATCH_LINES and self.failure is None:
                # The lines of a long job list, pending and not yet synced, would take tens of
                # megabytes.
                self.retry()
                self.sync()
        return self.retry()

    def retry(self) -> bool:
        """Write pending lines; return whether all lines are on file and the file still exists."""
        try:
            if self.gone:
                raise FileNotFoundError(errno.ENOENT, self._what_is_gone())
            self._mend()
            while self._pending:
                self._write_batch()
        except OSError as error:
            self.failure = error
            return False
        self.failure = None
        self._taken_back = False
        return True

    def sync(self) -> bool:
        """Sync to disk; return whether it holds all lines. Lines that it lacks become pending."""
        if self._unsynced:
            try:
                self._fdatasync(self._fd)
            except OSError as error:
                self.failure = error
                self._take_back()
            self._unsynced.clear()
        return not self._taken_back

    def close(self) -> None:
        """Sync and close the file. Lines still pending are lost: call `retry` first."""
        if self._fd < 0:
            return
        self.sync()
        os.close(self._fd)
        self._fd = -1

    def _write_batch(self) -> None:
        count = min(_BATCH_LINES, len(self._pending))
        data = b"".join(islice(self._pending, count))
        done = 0
        self._torn = True
        try:
            # A short write means that the disk is filling up: the next write raises the error.
            while done < len(data):
                written = self._write(self._fd, data[done:])
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                done += written
            self._torn = False
        finally:
            # Whole lines count; a torn one is cut off, and stays pending with the rest.
            self._acknowledge(data[: data.rfind(b"\n", 0, done) + 1])
            self._mend()

    def _acknowledge(self, data: bytes) -> None:
        if not data:
            return
        self._size += len(data)
        self._unsynced.append(data)
        for _ in range(data.count(b"\n")):
            self._pending.popleft()

    def _mend(self) -> None:
        # Also after an error: a write that failed may have written something all the same.
        if self._torn:
            os.ftruncate(self._fd, self._size)
            self._torn = False

    def _take_back(self) -> None:
        """Make all unsynced lines pending again: the kernel reports a lost page only once."""
        data = b"".join(self._unsynced)
        self._pending.extendleft(reversed(data.splitlines(keepends=True)))
        self._size -= len(data)
        self._torn = self._taken_back = True


def require_unwritten(rundir: RunDir) -> None:
    """Raise BusyJournalError where another process, on any machine, writes the journal, or where
    the file system has no locks to find out; UsageError where there is no journal.
    """
    try:
        fd = regular(rundir.events, _FLAGS)
    except OSError as error:
        raise UsageError(f"{rundir.events} cannot be opened: {error.strerror}") from None
    try:
        if not lock(fd):
            why = "lies on a file system without locks: nothing tells whether its launcher is dead"
            raise BusyJournalError(f"{rundir.events} {why}")
    except BlockingIOError:
        raise BusyJournalError(f"{rundir.events} is being written: its launcher is alive") from None
    finally:
        os.close(fd)


def _require_empty(rundir: RunDir, fd: int) -> None:
    if os.fstat(fd).st_size:
        raise UsageError(rundir.taken())


@contextmanager
def claimed(rundir: RunDir) -> Iterator[None]:
    """Hold the journal's lock, so that nobody goes on with the run. Raises as `reopen` does."""
    fd = _claimed(rundir)
    try:
        yield
    finally:
        os.close(fd)


def _claimed(rundir: RunDir) -> int:
    """Open the journal of a run, lock it, and return its descriptor. Raises as `reopen` does."""
    while True:
        try:
            fd = regular(rundir.events, _FLAGS)
        except FileNotFoundError:
            raise UsageError(f"{rundir.path} holds no run: it has no events.jsonl") from None
        except OSError as error:
            raise UsageError(f"{rundir.events} cannot be written: {error.strerror}") from None
        try:
            _claim(rundir.events, fd)
            # `gpulaunch clean` may have removed the run since it was opened.
            if os.path.samestat(os.fstat(fd), os.stat(rundir.events)):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _claim(path: Path, fd: int) -> None:
    """Lock the journal. Raises BusyJournalError where another process has it.

    The control socket excludes others only within one network namespace. On a file system without
    locks, it has to do.
    """
    try:
        lock(fd)
    except BlockingIOError:
        raise BusyJournalError(
            f"{path} is being written by another gpulaunch, which gpulaunch ps shows"
        ) from None


def lock(fd: int) -> bool:
    """Lock the journal, so that no other launcher writes it; False: the file system has no locks.

    Raises BlockingIOError where another process has the lock.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True
