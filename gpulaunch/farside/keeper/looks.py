"""Looks at the file system, in helper processes: a look may hang, the keeper may not."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
from collections.abc import Callable

from ..launch import LaunchOrder
from ..wire import Any, shown
from . import host
from .kernel import send_signal
from .start import settle_in


class ForkedHelper:
    """A forked child that computes one JSON value, while the keeper goes on."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.fd = fd
        self.data = b""
        self.answer: dict[str, Any] | None = None

    @classmethod
    def start(cls, function: Callable[..., object], *arguments: object) -> ForkedHelper | None:
        """Fork a helper that computes the function; None if processes or descriptors are scarce."""
        me = os.getpid()
        pipe: tuple[int, ...] = ()
        try:
            pipe = os.pipe()
            pid = host.fork()
        except OSError:
            for fd in pipe:
                os.close(fd)
            return None
        if pid == 0:
            try:
                settle_in(me)
                os.write(pipe[1], json.dumps(function(*arguments)).encode())
            finally:
                os._exit(0)
        os.close(pipe[1])
        os.set_blocking(pipe[0], False)
        return cls(pid, pipe[0])

    def read(self) -> bool:
        """Read what has come; return True once the answer is complete."""
        try:
            while True:
                data = os.read(self.fd, 65536)
                if not data:
                    break
                self.data += data
        except BlockingIOError:
            return False
        self.answer = json.loads(self.data) if self.data else None
        os.close(self.fd)
        return True


class Looks:
    """An attempt's helpers: one at a time, and those that were given up and are not reaped yet.

    INVARIANT: a helper in `pids` is not reaped yet, so its process id is its own.
    """

    def __init__(self) -> None:
        self.helper: ForkedHelper | None = None
        self.pids: set[int] = set()

    def ask(self, function: Callable[..., object], *arguments: object) -> bool:
        """Start a helper that computes the function; False if processes are scarce: try later."""
        self.helper = ForkedHelper.start(function, *arguments)
        if self.helper:
            self.pids.add(self.helper.pid)
        return self.helper is not None

    def answers(self, ready: dict[int, int]) -> list[dict[str, Any] | None]:
        """Return the helper's answer if it has come: None if the helper failed."""
        helper = self.helper
        if helper is None or helper.fd not in ready or not helper.read():
            return []
        self.helper = None
        return [helper.answer]

    def drop(self) -> None:
        """Kill the helper and forget it."""
        if self.helper:
            os.close(self.helper.fd)
            if self.helper.pid in self.pids:
                send_signal(self.helper.pid, signal.SIGKILL)
            self.helper = None

    def reaped(self, pid: int) -> bool:
        """Tell whether the process that was just reaped was a helper."""
        ours = pid in self.pids
        self.pids.discard(pid)
        return ours


def look_at_log(launch: LaunchOrder) -> dict[str, list[int]]:
    seen = os.stat(launch.log)
    return {"log": [seen.st_size, seen.st_mtime_ns]}


def look_for_outputs(launch: LaunchOrder, since: int) -> dict[str, list[str]]:
    """Return the outputs that are missing, each with what is wrong with it."""
    missing = []
    for paths, oldest in ((launch.outputs, since), (launch.kept_outputs, 0)):
        for path in paths:
            fault = fault_of_pattern(path, oldest)
            if fault is not None:
                missing.append(shown(path) + fault)
    return {"missing": missing}


def fault_of_pattern(pattern: bytes, since: int) -> str | None:
    """Return what is wrong with an output; None if it, or one match of its pattern, is good."""
    import glob  # in the helper alone

    fault = " (absent)"
    paths = [pattern] if os.path.lexists(pattern) else glob.iglob(pattern, recursive=True)
    for path in paths:
        found = fault_of_file(path, since)
        if found is None:
            return None
        fault = found
    return fault


def fault_of_file(path: bytes, since: int) -> str | None:
    """Return what is wrong with a file or a directory; None for nothing.

    `cp -p`, `tar` and `mv` keep the time of the contents: the change of the file counts as well,
    or that of a link which leads to it.
    """
    try:
        seen, itself = os.stat(path), os.lstat(path)
        if stat.S_ISDIR(seen.st_mode):
            with os.scandir(path) as entries:
                return None if any(True for _ in entries) else " (an empty directory)"
    except OSError as problem:
        return " (absent)" if problem.errno == errno.ENOENT else f" ({problem.strerror})"
    if seen.st_size == 0:
        return " (empty)"
    times = (seen.st_mtime_ns, seen.st_ctime_ns, itself.st_mtime_ns, itself.st_ctime_ns)
    return None if max(times) >= since else " (older than the attempt)"
