"""Leases that a process of their own keeps: lent, handed over, closed for one who is stopped."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from gpulaunch.farside.wire import send
from gpulaunch.gpus import lease_client
from gpulaunch.gpus.lease import Lease, take
from gpulaunch.gpus.lease_client import EntrustedLeases
from gpulaunch.gpus.lease_server import LeaseServer
from gpulaunch.gpus.names import NameHeldError
from gpulaunch.gpus.waiter import Waiter
from gpulaunch.loop import Loop
from tests.helpers import freezer, goes_along, wait_until

# Has two leases kept, one of which a process of its own holds as well, as keepers do.
OWNER = """
import subprocess, sys
from gpulaunch.gpus.lease import take
from gpulaunch.gpus.lease_client import EntrustedLeases
from gpulaunch.loop import Loop
loop = Loop()
entrusted = EntrustedLeases(loop, after=0.0)
leases = [take(key) for key in sys.argv[1:]]
job = subprocess.Popen(["sleep", "600"], pass_fds=leases[1].filenos())
for lease in leases:
    gone = lambda key=lease.name[4:]: print(key, flush=True)
    entrusted.give(lease, lambda wanted: None, gone)
while not all(lease.closed for lease in leases):
    loop.turn()
print(job.pid, flush=True)
while True:
    loop.turn()
"""


@pytest.fixture
def keys() -> tuple[str, str]:
    return uuid.uuid4().hex, uuid.uuid4().hex


@contextmanager
def owner(keys: tuple[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, *keys],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )
    assert process.stdout
    job = int(process.stdout.readline())
    try:
        yield process
    finally:
        process.kill()
        os.kill(job, signal.SIGKILL)
        process.communicate()


class Launcher:
    """A launcher with a server; `news` is what it has heard of its leases."""

    def __init__(self, after: float = 0.0) -> None:
        self.loop = Loop()
        self.entrusted = EntrustedLeases(self.loop, after=after)
        self.news: list[object] = []

    def give(self, key: str) -> Lease:
        """Take the lease, and have the server keep it."""
        lease = take(key)
        self.entrusted.give(lease, self.news.append, lambda: self.news.append("given back"))
        self.until(lambda: lease.closed)
        return lease

    def until(self, condition: Callable[[], object]) -> None:
        self.loop.call_after("late", 60.0, lambda: self.news.append("late"))
        while not condition():
            assert "late" not in self.news
            self.loop.turn()

    def close(self) -> None:
        self.entrusted.close()
        self.loop.close()


def waiter_for(key: str) -> Waiter:
    waiter = Waiter.connect(f"gpu/{key}", want=True)
    assert waiter
    return waiter


def news(waiter: Waiter) -> object:
    assert select.select([waiter], [], [], 60.0)[0]
    return waiter.on_readable()


def is_free(key: str) -> bool:
    try:
        take(key).close()
    except NameHeldError:
        return False
    return True


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with closing(Launcher()) as made:
        yield made


def test_the_lease_of_one_who_is_stopped_is_let_go_but_where_keepers_hold_it(
    keys: tuple[str, str],
) -> None:
    with owner(keys) as process:
        idle, used = (waiter_for(key) for key in keys)
        process.send_signal(signal.SIGSTOP)
        assert news(idle) == "gone"
        wait_until(lambda: is_free(keys[0]), 60)
        assert news(used) == "gone", "never the lease itself: something runs there"
        with pytest.raises(NameHeldError) as held:
            take(keys[1])
        assert held.value.holder.pid == process.pid
        assert held.value.holder.stopped
        process.send_signal(signal.SIGCONT)
        assert process.stdout
        assert sorted(process.stdout.readline().strip() for _ in keys) == sorted(keys)
        idle.close()
        used.close()


def test_a_lease_that_is_kept_is_handed_to_one_who_wants_it(
    keys: tuple[str, str], launcher: Launcher
) -> None:
    lease = launcher.give(keys[0])
    assert not is_free(keys[0])
    waiter = waiter_for(keys[0])
    launcher.until(lambda: launcher.entrusted.is_wanted(lease))
    assert launcher.news == [True]
    launcher.entrusted.release(lease)
    handed = news(waiter)
    assert isinstance(handed, Lease)
    handed.close()
    waiter.close()
    wait_until(lambda: is_free(keys[0]), 60)


def test_what_is_lent_comes_through_the_link_all_or_none(
    keys: tuple[str, str], launcher: Launcher
) -> None:
    leases = [launcher.give(key) for key in keys]
    with lent(launcher, leases) as link:
        said, fds = received(link)
        assert said == bytes([2])
        assert len(fds) == 2
    for lease in leases:
        launcher.entrusted.release(lease)
    assert not is_free(keys[0])
    for fd in fds:
        os.close(fd)
    wait_until(lambda: is_free(keys[0]) and is_free(keys[1]), 60)


def test_a_server_that_lacks_one_of_the_leases_lends_none() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link, passed = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, link:
        server = LeaseServer(theirs, os.getpid())
        with passed:
            send(ours, {"do": "lend", "ids": [99]}, [passed.fileno()], 0)
        ours.shutdown(socket.SHUT_WR)
        server.serve()
        assert received(link) == (b"", [])


def lent(launcher: Launcher, leases: list[Lease]) -> socket.socket:
    link = launcher.entrusted.lend(leases)
    assert link
    return link


def received(link: socket.socket) -> tuple[bytes, list[int]]:
    assert select.select([link], [], [], 60.0)[0]
    said, rights, _, _ = link.recvmsg(16, socket.CMSG_SPACE(64))
    fds = array("i")
    for _, _, data in rights:
        fds.frombytes(data)
    return said, list(fds)


def test_one_that_is_killed_is_told_of_and_holds_nothing(
    keys: tuple[str, str], launcher: Launcher
) -> None:
    launcher.give(keys[0])
    assert launcher.entrusted.pid
    os.kill(launcher.entrusted.pid, signal.SIGKILL)
    launcher.until(lambda: launcher.news)
    assert launcher.news == ["given back"]
    assert is_free(keys[0])


def test_a_server_that_is_found_killed_lends_nothing_and_another_is_started(
    keys: tuple[str, str], launcher: Launcher
) -> None:
    lease, pid = launcher.give(keys[0]), launcher.entrusted.pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert launcher.entrusted.lend([lease]) is None
    assert launcher.news == ["given back"]
    launcher.give(keys[1])
    assert launcher.entrusted.pid not in (None, pid)


def test_at_its_end_all_that_is_kept_is_let_go(keys: tuple[str, str]) -> None:
    with closing(Launcher()) as launcher:
        launcher.give(keys[0])
    assert is_free(keys[0])


def test_a_server_that_has_not_begun_to_serve_is_not_waited_for(
    keys: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_client, "END_TIMEOUT", math.inf)  # which no wait can take
    lease = take(keys[0])
    with closing(waiter_for(keys[0])) as waiter:
        with closing(Launcher()) as launcher:
            launcher.entrusted.give(lease, launcher.news.append, lambda: None)
            launcher.until(lambda: launcher.entrusted.pid)
            assert launcher.entrusted.pid
            os.kill(launcher.entrusted.pid, signal.SIGSTOP)
            launcher.entrusted.release(lease)
        assert news(waiter) == "gone"
    assert is_free(keys[0])


def test_a_lease_that_is_soon_given_back_needs_no_server(keys: tuple[str, str]) -> None:
    lease = take(keys[0])
    with closing(waiter_for(keys[0])) as waiter, closing(Launcher(after=3600.0)) as launcher:
        launcher.entrusted.give(lease, launcher.news.append, lambda: None)
        launcher.loop.turn(block=False)
        launcher.entrusted.release(lease)
        assert launcher.entrusted.pid is None
        handed = news(waiter)
        assert isinstance(handed, Lease)
        handed.close()


def test_who_waited_before_there_was_a_server_comes_to_it(
    keys: tuple[str, str], launcher: Launcher
) -> None:
    lease = take(keys[0])
    with closing(waiter_for(keys[0])) as waiter:
        assert lease.on_readable()
        launcher.entrusted.give(lease, launcher.news.append, lambda: None)
        launcher.until(lambda: lease.closed)
        assert launcher.news == [False]
        assert news(waiter) == "gone"
    with closing(waiter_for(keys[0])):
        launcher.until(lambda: launcher.news == [False, True])


def stop(pid: int, stack: ExitStack) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def freeze(pid: int, stack: ExitStack) -> None:
    stack.enter_context(freezer(2)).freeze(pid)


@pytest.mark.parametrize("suspend", [stop, freeze])
def test_a_lease_is_handed_to_none_who_is_suspended(
    keys: tuple[str, str], suspend: Callable[[int, ExitStack], None]
) -> None:
    script = (
        "import sys; from gpulaunch.gpus.waiter import Waiter; import time\n"
        "w = Waiter.connect('gpu/' + sys.argv[1], want=2); print(flush=True); time.sleep(600)"
    )
    lease = take(keys[0])
    process = subprocess.Popen(
        [sys.executable, "-c", script, keys[0]],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )
    try:
        assert process.stdout
        process.stdout.readline()
        with ExitStack() as stack:
            suspend(process.pid, stack)
            assert not lease.hand_over()
            assert is_free(keys[0])
    finally:
        process.kill()
        process.communicate()
