"""The journal's one writer: whole lines appended to `events.jsonl`, or kept until they can be.

Owns the file's end. Never rewrites a line, never decides when to give up: `append` and `retry`
say whether everything is on file, `failure` why not, and the supervisor acts on that.

A line is acknowledged when `write` took all of it; a SIGKILL after that loses nothing (the page
cache is the kernel's), `sync` guards against a power cut as well.

INVARIANT: between calls the file ends with a whole line, or `_torn` says that it may not.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from gpulaunch.core.facts import Fact
from gpulaunch.core.model import Instant
from gpulaunch.errors import UsageError
from gpulaunch.journal.codec import encode
from gpulaunch.journal.read import scan
from gpulaunch.journal.rundir import RunDir

_BATCH_LINES = 4096
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class BusyJournalError(UsageError):
    """Another process writes this journal."""


class Journal:
    """The append-only record of one run. Make it with `create` or `reopen`; close it.

    `recovered` is how many bytes of a torn last line `reopen` cut off (0: none).
    """

    def __init__(
        self,
        path: Path,
        fd: int,
        number: int = 1,
        *,
        recovered: int = 0,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self.path = path
        self.failure: OSError | None = None
        self.recovered = recovered
        self._fd = fd
        self._write = write
        self._next = number
        self._size = os.fstat(fd).st_size
        self._pending: deque[bytes] = deque()
        self._torn = False
        self._unsynced = False

    @classmethod
    def create(cls, rundir: RunDir) -> Journal:
        """A new journal. Raises UsageError where the directory already holds a run."""
        try:
            fd = os.open(rundir.events, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise UsageError(
                f"{rundir.path} already holds a run: name another directory, or go on with it:"
                f" gpulaunch resume {rundir.path}"
            ) from None
        return cls._locked(rundir.events, fd, scan_first=False)

    @classmethod
    def reopen(cls, rundir: RunDir) -> Journal:
        """The journal of a run that goes on, a torn last line cut off.

        Raises BusyJournalError while another process writes it, DamagedJournalError where a line
        before the last is not what was written, UsageError where there is none.
        """
        try:
            fd = os.open(rundir.events, _FLAGS)
        except FileNotFoundError:
            raise UsageError(f"{rundir.path} holds no run: it has no events.jsonl") from None
        return cls._locked(rundir.events, fd, scan_first=True)

    @classmethod
    def _locked(cls, path: Path, fd: int, *, scan_first: bool) -> Journal:
        try:
            _lock(path, fd)
            if not scan_first:
                return cls(path, fd)
            found = scan(path)
            torn = os.fstat(fd).st_size - found.end
            if torn:
                os.ftruncate(fd, found.end)
            return cls(path, fd, found.lines + 1, recovered=torn)
        except BaseException:
            os.close(fd)
            raise

    @property
    def next(self) -> int:
        """The number that the next fact's line will have."""
        return self._next

    @property
    def pending(self) -> int:
        """How many lines wait in memory because they could not be written."""
        return len(self._pending)

    @property
    def gone(self) -> bool:
        """The file was deleted, or its directory was deleted, moved or replaced."""
        ours = os.fstat(self._fd)
        if ours.st_nlink == 0:
            return True
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # cannot be asked: the next write tells
        return (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino)

    def append(self, facts: Sequence[tuple[Fact, Instant]]) -> bool:
        """Record the facts, in order. False: some lines wait in `pending`, `failure` says why."""
        for fact, at in facts:
            self._pending.append(encode(self._next, fact, at))
            self._next += 1
        return self.retry()

    def retry(self) -> bool:
        """Write what is pending. True when every line so far is on file and the file is there."""
        try:
            if self.gone:
                raise FileNotFoundError(errno.ENOENT, "the run directory is gone", str(self.path))
            self._mend()
            while self._pending:
                self._write_batch()
        except OSError as error:
            self.failure = error
            return False
        self.failure = None
        return True

    def sync(self) -> bool:
        """Have the disk hold what was written. False: it does not, `failure` says why."""
        if not self._unsynced:
            return self.failure is None
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self.failure = error
            return False
        self._unsynced = False
        return self.failure is None

    def close(self) -> None:
        """Sync and let go of the file. Pending lines are lost: `retry` first."""
        if self._fd < 0:
            return
        self.sync()
        os.close(self._fd)
        self._fd = -1

    def _write_batch(self) -> None:
        lines = [self._pending[i] for i in range(min(_BATCH_LINES, len(self._pending)))]
        data = b"".join(lines)
        self._torn = True
        written = self._write(self._fd, data)
        if written == len(data):
            self._torn = False
        # A short write is a disk that is filling up: its whole lines count, the torn one goes.
        whole = data.rfind(b"\n", 0, written) + 1
        self._size += whole
        self._unsynced = self._unsynced or whole > 0
        for _ in range(data.count(b"\n", 0, whole)):
            self._pending.popleft()
        self._mend()

    def _mend(self) -> None:
        # Also after an error: a write that failed may still have left something behind.
        if self._torn:
            os.ftruncate(self._fd, self._size)
            self._torn = False


def _lock(path: Path, fd: int) -> None:
    """Beside the control socket, which excludes within one network namespace only."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyJournalError(
            f"{path} is being written by another gpulaunch, which gpulaunch ps shows"
        ) from None
    except OSError:
        return  # a file system without locks: the control socket has to do
