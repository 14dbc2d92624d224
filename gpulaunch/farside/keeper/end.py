"""What became of an attempt, and the file that says so."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time

from ..launch import LaunchOrder
from ..wire import END_SIZE, Any, end_line, end_record
from .kernel import CLOCK_REALTIME_COARSE


class AttemptResult:
    """What is known of how an attempt went; `status` is waitpid's of its main process."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.cause: str | None = None
        self.by = ""
        self.error: str | None = None
        self.kind: str | None = None  # of the error, where it is none of the job's doing
        self.missing: list[str] = []
        self.leftovers = 0
        self.main_was_killed = False  # then nobody knows what would have outlived it
        self.note = ""  # for people
        self.warned: tuple[float, float, int, int, str] | None = None
        self.otherwise: tuple[str, str] | None = None  # cause and by of an end that is no success
        self.started: tuple[float, float] | None = None
        self.answered: tuple[float, float] | None = None  # when a worker did

    def succeeded(self, codes: list[int]) -> bool:
        """Tell whether the attempt's own status is a success; its outputs may still be missing."""
        if self.cause or self.error or self.status is None:
            return False
        return os.WIFEXITED(self.status) and os.WEXITSTATUS(self.status) in codes

    def conclude(self, codes: list[int]) -> None:
        """Take an end that followed a warning, and is no success, for what that announced."""
        good = self.succeeded(codes) and not self.missing
        if self.otherwise and not (self.cause or self.error or good):
            self.cause, self.by = self.otherwise

    def record(self, launch: LaunchOrder, pid: int | None, limit: float | None) -> dict[str, Any]:
        """Return the record of the end; it fits the file, however long its paths are."""
        limits = {"timeout": limit, "idle_timeout": launch.idle_timeout}
        missing = [clip(path, 900) for path in self.missing[:40]]
        while len(json.dumps(missing)) > 2000:
            missing.pop()
        return end_record(
            clip(launch.id, 2000),
            pid=pid,
            status=self.status,
            cause=self.cause,
            by=clip(self.by, 600),
            seconds=limits.get(self.cause or ""),
            missing=missing,
            error=self.error and clip(self.error, 2000),
            kind=self.kind,
            leftovers=self.leftovers,
            oom_kills=kills_counted(launch.oom_kills),
            started=self.started,
            ended=self.answered or (time.monotonic(), time.time()),
            warned=self.warned,
        )


class EndFile:
    """The place of an end: a file of its own, or (`slot`) that part of a file of many ends.

    Its blocks are allocated first, so that a full disk cannot lose an end.
    """

    def __init__(self, path: bytes, slot: int | None) -> None:
        """Create the file, or empty the slot. Raises OSError; nothing is open then."""
        self.path, self.slot = path, slot
        self.at = (slot or 0) * END_SIZE
        now = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        flags |= os.O_EXCL if slot is None else os.O_NOFOLLOW
        self.fd = os.open(path, flags, 0o600)
        try:
            self.allocate()
        except OSError:
            self.give_up()
            raise
        # Outputs are stamped by the file server's clock, which may be behind ours.
        self.since = min(now, os.fstat(self.fd).st_mtime_ns)

    def allocate(self) -> None:
        empty = b"\0"
        try:
            os.posix_fallocate(self.fd, self.at, END_SIZE)
        except OSError as problem:
            if problem.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            empty = bytes(END_SIZE)
        os.pwrite(self.fd, empty, self.at)  # an end that was there before is none any more

    def write(self, record: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the supervisor is told all the same
            os.pwrite(self.fd, end_line(record), self.at)
        os.close(self.fd)

    def give_up(self) -> None:
        """Close the file, which has no end; delete it where it is this end's own."""
        if self.slot is None:
            os.unlink(self.path)
        os.close(self.fd)


def kills_counted(file: bytes) -> int:
    """Return how many processes the kernel killed for memory, by a cgroup's file; else 0."""
    if file:
        with contextlib.suppress(OSError, ValueError), open(file, "rb") as counter:
            for line in counter:
                name, _, number = line.partition(b" ")
                if name == b"oom_kill":
                    return int(number)
    return 0


def clip(text: str, limit: int) -> str:
    """Return as much of `text` as JSON writes in `limit` characters."""
    while len(json.dumps(text)) > limit:
        text = text[: len(text) * 4 // 5] + "…"
    return text
