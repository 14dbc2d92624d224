"""Leases that a process of their own keeps: lent, handed over, closed for one who is stopped."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpulaunch.gpus.lease import Held, Lease, Waiter, take
from gpulaunch.gpus.purse import Purse, PurseGoneError, Word
from tests.helpers import goes_along, wait_until

# Keeps two leases in a purse, one of which a process of its own holds as well, as keepers do.
OWNER = """
import subprocess, sys, select
from gpulaunch.gpus.lease import take
from gpulaunch.gpus.purse import Purse
purse = Purse()
leases = [take(key) for key in sys.argv[1:]]
job = subprocess.Popen(["sleep", "600"], pass_fds=leases[1].filenos())
for lease in leases:
    purse.keep(lease)
held = []
while len(held) < 2:
    select.select([purse], [], [])
    held += purse.on_readable()
for lease in leases:
    lease.close()
print(job.pid, flush=True)
while True:
    select.select([purse], [], [])
    for word in purse.on_readable():
        if not word.held:
            print(word.deposit, flush=True)
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


def word_of(purse: Purse) -> list[Word]:
    assert select.select([purse], [], [], 60.0)[0]
    return purse.on_readable()


def waiter_for(key: str) -> Waiter:
    waiter = Waiter.connect(key, want=True)
    assert waiter
    return waiter


def news(waiter: Waiter) -> object:
    assert select.select([waiter], [], [], 60.0)[0]
    return waiter.on_readable()


def is_free(key: str) -> bool:
    try:
        take(key).close()
    except Held:
        return False
    return True


@pytest.fixture
def purse() -> Iterator[Purse]:
    made = Purse()
    yield made
    made.close()


def test_the_lease_of_one_who_is_stopped_is_let_go_but_where_keepers_hold_it(
    keys: tuple[str, str],
) -> None:
    with owner(keys) as process:
        idle, used = (waiter_for(key) for key in keys)
        process.send_signal(signal.SIGSTOP)
        assert news(idle) == "gone"
        wait_until(lambda: is_free(keys[0]), 60)
        assert news(used) == "gone", "never the lease itself: something runs there"
        with pytest.raises(Held) as held:
            take(keys[1])
        assert held.value.holder.pid == process.pid
        assert held.value.holder.stopped
        process.send_signal(signal.SIGCONT)
        assert process.stdout
        assert sorted(process.stdout.readline() for _ in keys) == ["1\n", "2\n"]
        idle.close()
        used.close()


def test_a_lease_in_the_purse_is_handed_to_one_who_wants_it(
    keys: tuple[str, str], purse: Purse
) -> None:
    lease = take(keys[0])
    number = purse.keep(lease)
    assert word_of(purse) == [Word(number, held=True, wanted=False)]
    lease.close()
    assert not is_free(keys[0])
    waiter = waiter_for(keys[0])
    assert word_of(purse) == [Word(number, held=True, wanted=True)]
    purse.release(number)
    handed = news(waiter)
    assert isinstance(handed, Lease)
    handed.close()
    waiter.close()
    wait_until(lambda: is_free(keys[0]), 60)


def test_what_is_lent_comes_through_the_link_all_or_none(
    keys: tuple[str, str], purse: Purse
) -> None:
    numbers = []
    for key in keys:
        with take(key) as lease:
            numbers.append(purse.keep(lease))
    with purse.lend(numbers) as link:
        said, fds = received(link)
        assert said == bytes([2])
        assert len(fds) == 2
    with purse.lend([numbers[0], 99]) as link:
        assert received(link) == (b"", [])
    purse.release(numbers[0])
    purse.release(numbers[1])
    with purse.lend(numbers) as link:
        assert received(link) == (b"", [])
    assert not is_free(keys[0])
    for fd in fds:
        os.close(fd)
    assert is_free(keys[0])
    assert is_free(keys[1])


def received(link: socket.socket) -> tuple[bytes, list[int]]:
    assert select.select([link], [], [], 60.0)[0]
    said, rights, _, _ = link.recvmsg(16, socket.CMSG_SPACE(64))
    fds = array("i")
    for _, _, data in rights:
        fds.frombytes(data)
    return said, list(fds)


def test_one_that_is_killed_is_told_of_and_holds_nothing(
    keys: tuple[str, str], purse: Purse
) -> None:
    with take(keys[0]) as lease:
        purse.keep(lease)
        word_of(purse)
    os.kill(purse.pid, signal.SIGKILL)
    with pytest.raises(PurseGoneError):
        word_of(purse)
    with pytest.raises(PurseGoneError):
        purse.lend([1])
    purse.close()
    assert is_free(keys[0])


def test_at_its_end_all_that_is_kept_is_let_go(keys: tuple[str, str]) -> None:
    purse = Purse()
    with take(keys[0]) as lease:
        purse.keep(lease)
    purse.close()
    assert is_free(keys[0])


def test_a_lease_is_handed_to_none_who_is_stopped(keys: tuple[str, str]) -> None:
    script = (
        "import sys; from gpulaunch.gpus.lease import Waiter; import time\n"
        "w = Waiter.connect(sys.argv[1], want=True); print(flush=True); time.sleep(600)"
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
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert not lease.hand_over()
        assert is_free(keys[0])
    finally:
        process.kill()
        process.communicate()
