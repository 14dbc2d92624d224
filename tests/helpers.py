"""What several suites need: waiting no longer than needed, and children that go along."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

T = TypeVar("T")
PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


def wait_until(condition: Callable[[], T], deadline: float = 60.0, what: str = "") -> T:
    """The first true value of `condition`, asked every few ms; fails after `deadline` seconds.

    A condition that looks at a process which ends at that moment has no answer. It is asked again.
    """
    end = time.monotonic() + deadline
    pause = 0.001
    while True:
        vanished = None
        try:
            if value := condition():
                return value
        except (OSError, psutil.NoSuchProcess) as error:
            if not is_vanished(error):
                raise
            vanished = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {what or condition}") from vanished
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def is_vanished(error: Exception) -> bool:
    """Whether an error says that a process has ended while it was looked at."""
    if isinstance(error, FileNotFoundError):
        return str(error.filename).startswith("/proc/")
    return isinstance(error, ProcessLookupError | psutil.NoSuchProcess)


def held_by(pid: int | str) -> set[str]:
    """What a live process holds open: the targets of its descriptors, as /proc tells them.

    A descriptor that the process closes while it is looked at is left out.
    """
    held = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            held.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return held


def goes_along() -> Callable[[], None]:
    """For `preexec_fn`: the child is killed when the thread that started it is gone.

    Where the tests themselves are killed no `finally` runs. Only the child is bound, not what it
    starts: that is the child's to end, as it is for people. Signals that whoever started the tests
    has ignored (nohup, a script's `&`) mean to it what they mean at a terminal.
    """
    parent = os.getpid()

    def bind() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before the child was bound
            os._exit(1)

    return bind


def open_files() -> frozenset[tuple[str, str]]:
    """This process's descriptors, each with what it is: what is new since is this minus then.

    A count would fall meanwhile where an earlier test's executor closes what it had.
    """
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the look itself
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return frozenset(found)


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many more, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir("/proc/self/fd")) + count + 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


FREEZERS = {
    1: ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
    2: ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
}
"""Where control groups of either version are mounted, and what freezes one."""


class Freezer:
    """A control group of its own, whose processes `freeze` holds, and `thaw` lets go on."""

    def __init__(self, group: Path, file: str, frozen: str, thawed: str) -> None:
        self.procs = group / "cgroup.procs"
        self.file, self.frozen, self._thawed = group / file, frozen, thawed
        events = group / "cgroup.events"
        self._told = events if events.exists() else self.file

    def freeze(self, pid: int) -> None:
        self.procs.write_text(str(pid))
        self.file.write_text(self.frozen)
        wait_until(lambda: {"frozen 1", "FROZEN"} & set(self._told.read_text().splitlines()))

    def thaw(self) -> None:
        self.file.write_text(self._thawed)


@contextmanager
def freezer(version: int) -> Iterator[Freezer]:
    """A control group of this version, where one can be made; gone in the end, as what is in it."""
    mount, *words = FREEZERS[version]
    if version == 2 and not Path(mount).exists():
        mount = "/sys/fs/cgroup"  # where there is no group of the first version
    group = Path(mount) / f"gpulaunch-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    made = Freezer(group, *words)
    try:
        yield made
    finally:
        for pid in made.procs.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        made.thaw()
        wait_until(lambda: not made.procs.read_text())
        group.rmdir()


CLONE_NEWNET = 0x40000000


@contextmanager
def own_network() -> Iterator[None]:
    """This process has a network namespace of its own: abstract names there are nobody else's."""
    if os.geteuid():
        pytest.skip("a network namespace is root's to make")
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(CLONE_NEWNET):
            pytest.skip(f"no network namespace here: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        assert libc.setns(before, CLONE_NEWNET) == 0
        os.close(before)


def cannot_be_listed(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Have directories whose path ends so fail, as on a file server that has forgotten them."""
    real = os.scandir

    def stale(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith(end):
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path)

    monkeypatch.setattr(os, "scandir", stale)
