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

from gpulaunch.gpus.lease import Lease, NameHeldError, Waiter, take
from gpulaunch.gpus.lease_client import LeaseClient, LeaseServerGoneError, LeaseState
from tests.helpers import goes_along, wait_until

# Has two leases kept, one of which a process of its own holds as well, as keepers do.
OWNER = """
import subprocess, sys, select
from gpulaunch.gpus.lease import take
from gpulaunch.gpus.lease_client import LeaseClient
client = LeaseClient()
leases = [take(key) for key in sys.argv[1:]]
job = subprocess.Popen(["sleep", "600"], pass_fds=leases[1].filenos())
for lease in leases:
    client.keep(lease)
held = []
while len(held) < 2:
    select.select([client], [], [])
    held += client.on_readable()
for lease in leases:
    lease.close()
print(job.pid, flush=True)
while True:
    select.select([client], [], [])
    for state in client.on_readable():
        if not state.held:
            print(state.number, flush=True)
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


def states_of(client: LeaseClient) -> list[LeaseState]:
    assert select.select([client], [], [], 60.0)[0]
    return client.on_readable()


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
    except NameHeldError:
        return False
    return True


@pytest.fixture
def client() -> Iterator[LeaseClient]:
    made = LeaseClient()
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
        with pytest.raises(NameHeldError) as held:
            take(keys[1])
        assert held.value.holder.pid == process.pid
        assert held.value.holder.stopped
        process.send_signal(signal.SIGCONT)
        assert process.stdout
        assert sorted(process.stdout.readline() for _ in keys) == ["1\n", "2\n"]
        idle.close()
        used.close()


def test_a_lease_that_is_kept_is_handed_to_one_who_wants_it(
    keys: tuple[str, str], client: LeaseClient
) -> None:
    lease = take(keys[0])
    number = client.keep(lease)
    assert states_of(client) == [LeaseState(number, held=True, wanted=False)]
    lease.close()
    assert not is_free(keys[0])
    waiter = waiter_for(keys[0])
    assert states_of(client) == [LeaseState(number, held=True, wanted=True)]
    client.release(number)
    handed = news(waiter)
    assert isinstance(handed, Lease)
    handed.close()
    waiter.close()
    wait_until(lambda: is_free(keys[0]), 60)


def test_what_is_lent_comes_through_the_link_all_or_none(
    keys: tuple[str, str], client: LeaseClient
) -> None:
    numbers = []
    for key in keys:
        with take(key) as lease:
            numbers.append(client.keep(lease))
    with client.lend(numbers) as link:
        said, fds = received(link)
        assert said == bytes([2])
        assert len(fds) == 2
    with client.lend([numbers[0], 99]) as link:
        assert received(link) == (b"", [])
    client.release(numbers[0])
    client.release(numbers[1])
    with client.lend(numbers) as link:
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
    keys: tuple[str, str], client: LeaseClient
) -> None:
    with take(keys[0]) as lease:
        client.keep(lease)
        states_of(client)
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(LeaseServerGoneError):
        states_of(client)
    with pytest.raises(LeaseServerGoneError):
        client.lend([1])
    client.close()
    assert is_free(keys[0])


def test_at_its_end_all_that_is_kept_is_let_go(keys: tuple[str, str]) -> None:
    client = LeaseClient()
    with take(keys[0]) as lease:
        client.keep(lease)
    client.close()
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
