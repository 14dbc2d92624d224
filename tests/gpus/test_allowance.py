"""A user's launchers hold no more cards than they may: counted from the leases, at every moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socket

import pytest

from gpulaunch.gpus import lease as allowance
from gpulaunch.gpus.lease import (
    AllowanceSpentError,
    AllowedLeases,
    Lease,
    UncountedError,
    Waiter,
    leases_of,
    take,
)
from gpulaunch.gpus.socket_locks import NameHeldError, bind_name, connect_name, listening_socket
from gpulaunch.jobfile.config_model import Allowance
from tests.helpers import goes_along, own_network, wait_until

ROOT = Path(__file__).parents[2]
SOURCE = "/etc/gpulaunch/config.yaml:3"
OTHER = 65533


@pytest.fixture(autouse=True)
def nobody_else_s_leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("GPULAUNCH_LEASE_DIR", raising=False)
    with own_network():
        yield


def allowed(limit: int) -> AllowedLeases:
    return AllowedLeases(Allowance(limit, SOURCE))


def in_child(act: Callable[[], None]) -> int:
    """Start a process that acts and then lives until it is killed; return once it has acted."""
    ready, said = os.pipe()
    bind = goes_along()
    if not (pid := os.fork()):
        try:
            bind()
            act()
            os.write(said, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(said)
    assert os.read(ready, 1), "the child failed"
    os.close(ready)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_one_more_than_allowed_is_refused_with_the_place_that_says_so() -> None:
    with allowed(2).take("a", ""), allowed(2).take("b", ""):
        with pytest.raises(AllowanceSpentError, match=SOURCE):
            allowed(2).take("c", "")
        assert sorted(leases_of(os.geteuid())) == ["gpu/a", "gpu/b"]
    allowed(2).take("c", "").close()


def test_a_limit_of_none_at_all_allows_none() -> None:
    with pytest.raises(AllowanceSpentError):
        allowed(0).take("a", "")


def test_a_card_that_another_launcher_has_is_named_as_without_a_limit() -> None:
    for limit in (2, 1):  # it is one of those that count already
        with take("a"), pytest.raises(NameHeldError):
            allowed(limit).take("a", "")


def test_cards_of_other_users_pretend_ones_and_those_below_a_job_do_not_count() -> None:
    def others() -> None:
        os.setresuid(OTHER, OTHER, OTHER)
        kept.append(take("other"))

    kept: list[Lease] = []
    other = in_child(others)
    try:
        with take("sim/0/pool/1"), take("a", scope="exec/7"):
            assert leases_of(os.geteuid()) == []
            assert leases_of(OTHER) == ["gpu/other"]
            allowed(1).take("b", "").close()
    finally:
        end(other)


def test_a_lease_counts_to_which_nobody_can_connect_any_more() -> None:
    """A command that holds a lease accepts no connection, and each count leaves one there."""

    def take_full(key: str) -> Lease:
        lease = take(key)
        with socket(fileno=os.dup(lease.filenos()[0])) as same:
            same.listen(0)
        link = connect_name(lease.name)
        assert link is not None
        link.close()
        with pytest.raises(BlockingIOError):
            connect_name(lease.name)
        return lease

    def others() -> None:
        os.setresuid(OTHER, OTHER, OTHER)
        kept.append(take_full("other"))

    kept: list[Lease] = []
    other = in_child(others)
    try:
        with take_full("a"):
            assert leases_of(os.geteuid()) == ["gpu/a"]
            assert leases_of(OTHER) == ["gpu/other"]
            with pytest.raises(AllowanceSpentError):
                allowed(1).take("b", "")
    finally:
        end(other)


def test_another_user_who_takes_the_name_by_which_launchers_count_stops_nobody() -> None:
    name = f"count/{os.geteuid()}"

    def squat() -> None:
        os.setresuid(OTHER, OTHER, OTHER)
        kept.append(bind_name(name))

    kept: list[object] = []
    other = in_child(squat)
    try:
        with allowed(1).take("a", ""), pytest.raises(AllowanceSpentError):
            allowed(1).take("b", "")
    finally:
        end(other)


def test_a_killed_launcher_frees_its_share() -> None:
    kept: list[Lease] = []
    other = in_child(lambda: kept.append(take("a")))
    with pytest.raises(AllowanceSpentError):
        allowed(1).take("b", "")
    end(other)
    allowed(1).take("b", "").close()


RUSH = """
    import ctypes, os, sys
    from gpulaunch.jobfile.config_model import Allowance
    from gpulaunch.gpus.lease import AllowanceSpentError, AllowedLeases, leases_of
    mine, rounds = AllowedLeases(Allowance(2, "")), int(sys.argv[2])
    sys.stdin.read()
    took = most = 0
    for n in range(rounds):
        try:
            with mine.take(f"{sys.argv[1]}-{n}", ""):
                took += 1
                most = max(most, *(len(leases_of(os.geteuid())) for _ in range(3)))
        except AllowanceSpentError:
            pass
    print(took, most)
"""


def test_launchers_that_come_at_the_same_moment_never_take_more_together() -> None:
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RUSH), str(n), "60"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=goes_along(),
        )
        for n in range(6)
    ]
    try:
        for rival in rivals:
            assert rival.stdin
            rival.stdin.close()
        told = [rival.stdout.read().split() for rival in rivals if rival.stdout]
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
            assert rival.stdout
            rival.stdout.close()
    took, most = ([int(words[n]) for words in told] for n in (0, 1))
    assert max(most) == 2, f"at once, as each saw it: {most}"
    assert all(took), f"one of them never had any: {took}"


def test_a_launcher_that_is_stopped_while_it_counts_keeps_nobody_waiting_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allowance, "COUNT_TIMEOUT", 0.05)
    uncounted = pytest.raises(UncountedError, match=f"pid {os.getpid()}")
    with bind_name(f"count/{os.geteuid()}"), uncounted:
        allowed(1).take("a", "")
    allowed(1).take("a", "").close()


def test_who_waits_to_count_goes_on_as_soon_as_the_other_is_done() -> None:
    kept: list[object] = []
    other = in_child(lambda: kept.append(bind_name(f"count/{os.geteuid()}")))
    waiting = taking_in_a_child()
    try:
        wait_until(lambda: _state(waiting) != "R")
        assert _state(waiting) == "S", "it did not wait"
    finally:
        end(other)
    _, status = os.waitpid(waiting, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_who_counts_again_and_again_keeps_nobody_from_counting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the right again each time before one that sleeps is awake."""
    name = f"count/{os.geteuid()}"
    right = [bind_name(name)]

    class Sleep:
        """Stands for select.poll, in which one sleeps until the right is given back."""

        def register(self, link: socket, events: int) -> None:
            pass

        def poll(self, milliseconds: float) -> None:
            right.pop().close()
            right.append(bind_name(name))

    def between_two_tries() -> None:
        if right:
            right.pop().close()

    monkeypatch.setattr(allowance, "COUNT_TIMEOUT", allowance.COUNT_HASTE + 0.05)
    monkeypatch.setattr("select.poll", Sleep)
    monkeypatch.setattr("os.sched_yield", between_two_tries)
    try:
        allowed(1).take("a", "").close()
    finally:
        between_two_tries()


def taking_in_a_child() -> int:
    """Start a process that takes a card and exits with 0."""
    bind = goes_along()
    if not (pid := os.fork()):
        status = 1
        try:
            bind()
            allowance.COUNT_TIMEOUT = 60.0
            allowed(1).take("a", "").close()
            status = 0
        finally:
            os._exit(status)
    return pid


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# ── Handed over ─────────────────────────────────────────────────────────────────────────────────


def handed(lease: Lease, waiter: Waiter) -> object:
    """What the waiter makes of the lease that is handed over."""
    wait_until(lease.on_readable)
    assert lease.hand_over()
    return waiter.on_readable()


def of_another_user(key: str) -> Lease:
    """A lease that this process has, and that another user took: as after a setuid."""
    os.seteuid(OTHER)
    try:
        return take(key)
    finally:
        os.seteuid(0)


def test_another_user_s_lease_is_kept_where_one_more_is_allowed() -> None:
    lease = of_another_user("a")
    waiter = Waiter.connect("gpu/a", True, claim=allowed(1).claiming)
    assert waiter is not None
    got = handed(lease, waiter)
    assert isinstance(got, Lease)
    assert leases_of(0) == ["gpu/a"]
    got.close()
    waiter.close()


def test_another_user_s_lease_is_given_back_where_it_would_be_one_too_many() -> None:
    with take("mine"):
        lease = of_another_user("a")
        waiter = Waiter.connect("gpu/a", True, claim=allowed(1).claiming)
        assert waiter is not None
        assert handed(lease, waiter) == "gone"
        assert leases_of(0) == ["gpu/mine"]
        take("a").close()
        waiter.close()


def test_a_lease_that_was_this_user_s_when_the_waiter_came_counts_if_another_gives_it() -> None:
    lease = take("a")
    waiter = Waiter.connect("gpu/a", True, claim=allowed(1).claiming)  # nobody accepts it yet
    assert waiter is not None
    os.seteuid(OTHER)
    try:
        theirs = Lease("gpu/a", listening_socket(os.dup(lease.filenos()[0]), "gpu/a"), None)
    finally:
        os.seteuid(0)
    lease.close()
    with take("mine"):
        assert handed(theirs, waiter) == "gone"
        assert leases_of(0) == ["gpu/mine"]
    waiter.close()


def test_a_lease_of_the_same_user_may_always_be_handed_over() -> None:
    lease = take("a")
    waiter = Waiter.connect("gpu/a", True, claim=allowed(1).claiming)
    assert waiter is not None
    got = handed(lease, waiter)
    assert isinstance(got, Lease)
    got.close()
    waiter.close()
