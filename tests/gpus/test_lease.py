from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulaunch.gpus import lease as leases
from gpulaunch.gpus import socket_locks
from gpulaunch.gpus.lease import (
    Lease,
    Waiter,
    gather_name,
    holders,
    lease_name,
    take,
    take_gather,
)
from gpulaunch.gpus.socket_locks import (
    NameHeldError,
    UnfitLockError,
    bind_name,
    command_of,
    connect_name,
    holder_of,
    is_bound,
    known_as,
    listening,
)
from tests.helpers import freezer, open_files, wait_until

NOBODY = 65534
ROOT = Path(__file__).parents[2]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def key() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
def no_lease_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPULAUNCH_LEASE_DIR", raising=False)


@pytest.fixture
def no_leaked_descriptors() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


def readable(*files: int | Waiter, within: float = 5.0) -> bool:
    return bool(select.select(files, [], [], within)[0])


def waiter_for(key: str, want: bool = False) -> Waiter:
    waiter = Waiter.connect(lease_name(key), want)
    assert waiter is not None
    return waiter


def received(waiter: Waiter) -> Lease:
    assert readable(waiter)
    lease = waiter.on_readable()
    assert isinstance(lease, Lease)
    return lease


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


BECOME = """
import os, select, sys
from gpulaunch.gpus.lease import take
from gpulaunch.gpus.socket_locks import NameHeldError
from gpulaunch.gpus.lease import Waiter
os.setgroups([]), os.setgid(65534), os.setuid(65534)
"""

HOLD = """
import sys
from gpulaunch.gpus.lease import take
lease = take(sys.argv[1])
print("taken", flush=True)
sys.stdin.read()
"""


def holding(key: str, become: str = "") -> subprocess.Popen[str]:
    process = python(become + HOLD, key)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


# ── One holder ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_a_lease_is_taken_once_and_free_again_when_closed(key: str) -> None:
    with take(key), pytest.raises(NameHeldError):
        take(key)
    with take(key) as again:
        assert again.name == lease_name(key)
        assert not os.get_inheritable(again.fileno())


def test_the_refusal_names_who_holds_it(key: str) -> None:
    with take(key), pytest.raises(NameHeldError) as refused:
        take(key)
    holder = refused.value.holder
    assert (holder.pid, holder.uid) == (os.getpid(), os.getuid())
    assert holder.command == command_of(os.getpid())
    assert f"pid {os.getpid()}" in str(refused.value)


def test_the_refusal_names_the_holders_run(key: str) -> None:
    run = f"20260101-000000-{uuid.uuid4().hex[:6]}"
    with bind_name(f"run/{run}"), take(key), pytest.raises(NameHeldError) as refused:
        take(key)
    assert refused.value.holder.run == run


def test_nested_launchers_lease_below_their_parent(key: str) -> None:
    with take(key), take(key, scope="outer.1") as nested:
        assert nested.name == f"sub/outer.1/gpu/{key}"
        with pytest.raises(NameHeldError):
            take(key, scope="outer.1")
    assert len(lease_name("MIG-" + "0" * 36, "x" * 300)) + len("gpulaunch/1/") <= 107


def test_holders_lists_every_lease_of_the_scope(key: str) -> None:
    with take(key), take(key, scope="outer.1"):
        with Waiter_closing(waiter_for(key)):
            assert holders()[key].pid == os.getpid()
        assert holders("outer.1")[key].pid == os.getpid()
    assert key not in holders()


def test_a_connection_to_a_name_does_not_hold_it() -> None:
    name = f"run/test-{uuid.uuid4().hex[:12]}"
    with bind_name(name) as listener, connect_name(name) or pytest.fail("refused"):
        accepted, _ = listener.accept()
        assert name in listening("run/")
        listener.close()
        with accepted:
            assert not is_bound(name)
            bind_name(name).close()


def test_a_name_that_one_reading_of_the_kernel_s_table_leaves_out_is_listed(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [[], [(f"run/{key}", True, 1), (f"run/{key}-bound", False, 2)]]
    for first, second in (readings, readings[::-1]):
        read = iter((first, second))
        monkeypatch.setattr(socket_locks, "_bound", lambda read=read: next(read))
        assert listening("run/") == (f"run/{key}",)


def test_the_right_to_gather_is_one_for_all(key: str) -> None:
    with take_gather(scope=key):
        with pytest.raises(NameHeldError):
            take_gather(scope=key)
        waiter = Waiter.connect(gather_name(key))
        assert waiter is not None
    assert readable(waiter)
    assert waiter.on_readable() == "gone"
    waiter.close()
    assert Waiter.connect(gather_name(key)) is None
    assert gather_name() == "gather"


def test_a_holder_that_is_stopped_is_said_with_what_goes_on_with_it(key: str) -> None:
    process = holding(key)
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(NameHeldError) as refused:
            take(key)
        assert f"terminal or kill -CONT {process.pid} continues it)" in str(refused.value)
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOWAIT)
        assert not holders()[key].stopped
    finally:
        process.kill()
        process.communicate()


# ── Waiting ─────────────────────────────────────────────────────────────────────────────────────


class Waiter_closing:
    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter

    def __enter__(self) -> Waiter:
        return self.waiter

    def __exit__(self, *_: object) -> None:
        self.waiter.close()


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_a_waiter_wakes_when_the_lease_is_closed_and_then_finds_it_free(key: str) -> None:
    lease = take(key)
    with Waiter_closing(waiter_for(key)) as waiter:
        assert not readable(waiter, within=0.05)
        assert waiter.on_readable() == "still"
        lease.close()
        assert readable(waiter)
        assert waiter.on_readable() == "gone"
        take(key).close()


def test_there_is_nothing_to_wait_for_when_nobody_holds_it(key: str) -> None:
    assert Waiter.connect(lease_name(key)) is None


def test_the_holder_learns_who_wants_the_card_and_who_gave_up(key: str) -> None:
    with take(key) as lease:
        watched = lease.fileno()
        idle, wants = waiter_for(key), waiter_for(key, want=True)
        assert readable(watched)
        assert lease.on_readable()
        wants.want(False)
        assert readable(watched)
        assert not lease.on_readable()
        idle.want(True)
        assert lease.on_readable()
        idle.close()
        assert readable(watched)
        assert not lease.on_readable()
        assert not readable(watched, within=0)
        wants.close()


def stop(pid: int, stack: contextlib.ExitStack) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def freeze(pid: int, stack: contextlib.ExitStack) -> None:
    stack.enter_context(freezer(2)).freeze(pid)


WANT = """
import sys
from gpulaunch.gpus.lease import Waiter
waiter = Waiter.connect("gpu/" + sys.argv[1], want=2)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("suspend", [stop, freeze])
def test_a_lease_is_handed_to_no_launcher_that_is_stopped_or_frozen(
    key: str, suspend: Callable[[int, contextlib.ExitStack], None]
) -> None:
    lease = take(key)
    with python(WANT, key) as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout
        process.stdout.readline()
        suspend(process.pid, stack)
        assert not lease.hand_over()
        take(key).close()


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_a_lease_is_handed_to_who_wanted_it_first_and_never_free_in_between(key: str) -> None:
    lease = take(key)
    idle, first, second = waiter_for(key), waiter_for(key, want=True), waiter_for(key, want=True)
    assert lease.hand_over()
    assert lease.closed
    with pytest.raises(NameHeldError):
        take(key)
    with received(first) as handed:
        assert handed.name == lease_name(key)
        assert not os.get_inheritable(handed.fileno())
        assert [idle.on_readable(), second.on_readable()] == ["gone", "gone"]
        again = waiter_for(key, want=True)
        assert handed.on_readable()
    assert again.on_readable() == "gone"
    for waiter in (idle, first, second, again):
        waiter.close()


def test_a_lease_that_nobody_wants_is_just_closed(key: str) -> None:
    lease = take(key)
    waiter = waiter_for(key)
    gave_up = waiter_for(key, want=True)
    gave_up.close()
    assert not lease.hand_over()
    take(key).close()
    waiter.close()


def test_a_lease_handed_to_a_launcher_that_is_gone_goes_to_the_next(key: str) -> None:
    lease = take(key)
    gone, alive = waiter_for(key, want=True), waiter_for(key, want=True)
    lease.on_readable()
    gone.close()
    assert lease.hand_over()
    received(alive).close()
    alive.close()


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_a_lease_in_flight_to_a_launcher_that_closes_is_free_again(key: str) -> None:
    lease = take(key)
    waiter = waiter_for(key, want=True)
    assert lease.hand_over()
    waiter.close()
    take(key).close()


# ── Whoever answers is no launcher ──────────────────────────────────────────────────────────────


def of_the_same_name(key: str, kind: socket.SocketKind) -> socket.socket:
    """A socket whose name reads as the lease's, and excludes nobody from it."""
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(f"\0gpulaunch/1/gpu/{key}")
    return sock


def answered(impostor: socket.socket, key: str, *descriptors: int) -> object:
    """What a waiter makes of these descriptors."""
    with Waiter_closing(waiter_for(key, want=True)) as waiter:
        link, _ = impostor.accept()
        with link:
            socket.send_fds(link, [b"L"], descriptors)
        return waiter.on_readable()


@pytest.mark.usefixtures("no_leaked_descriptors")
@pytest.mark.parametrize("count", [1, 3, 4, 250])
def test_descriptors_that_are_not_the_lease_are_closed(key: str, count: int) -> None:
    with bind_name(f"gpu/{key}") as impostor, bind_name(f"gpu/{key}-other") as other:
        read, write = os.pipe()
        internet = socket.socket(socket.AF_INET6)
        with internet, os.fdopen(read), os.fdopen(write, "w"):
            for given in (other.fileno(), 0, read, internet.fileno()):
                assert answered(impostor, key, *[given] * count) == "odd"


@pytest.mark.usefixtures("no_leaked_descriptors")
@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
def test_a_socket_of_another_kind_is_not_the_lease(key: str, kind: socket.SocketKind) -> None:
    with bind_name(f"gpu/{key}") as impostor, of_the_same_name(key, kind) as other:
        assert answered(impostor, key, other.fileno()) == "odd"


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_an_accepted_connection_goes_by_the_name_of_the_lease_and_is_not_it(key: str) -> None:
    with bind_name(f"gpu/{key}") as impostor, Waiter_closing(waiter_for(key)) as waiter:
        link, _ = impostor.accept()
        with link:
            socket.send_fds(link, [b"L"], [link.fileno()])
        assert waiter.on_readable() == "odd"


BOUND_ELSEWHERE = """
import ctypes, os, socket, sys
from gpulaunch.gpus.socket_locks import bind_name
impostor = bind_name("gpu/" + sys.argv[1])
impostor.setblocking(True)
if ctypes.CDLL(None).unshare(0x40000000):  # CLONE_NEWNET
    print("refused", flush=True)
    raise SystemExit
print("taken", flush=True)
link, _ = impostor.accept()
lease = bind_name("gpu/" + sys.argv[1])
socket.send_fds(link, [b"L"], [lease.fileno()])
sys.stdin.read()
"""


@as_root
@pytest.mark.usefixtures("no_leaked_descriptors")
def test_a_name_of_another_network_namespace_is_not_the_lease(key: str) -> None:
    with python(BOUND_ELSEWHERE, key) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "taken\n":
            pytest.skip("no network namespace can be made here")
        with Waiter_closing(waiter_for(key, want=True)) as waiter:
            assert readable(waiter)
            assert waiter.on_readable() == "odd"


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_a_holder_that_talks_is_no_launcher(key: str) -> None:
    with bind_name(f"gpu/{key}") as impostor, Waiter_closing(waiter_for(key)) as waiter:
        link, _ = impostor.accept()
        with link:
            link.sendall(b"spam" * 100)
            assert waiter.on_readable() == "odd"


def test_sockets_of_other_kinds_neither_hold_a_name_nor_are_listed(key: str) -> None:
    with of_the_same_name(key, socket.SOCK_DGRAM), of_the_same_name(key, socket.SOCK_SEQPACKET):
        assert not is_bound(f"gpu/{key}")
        assert Waiter.connect(lease_name(key)) is None
        take(key).close()


def test_a_name_with_line_breaks_forges_no_row_of_the_table(key: str) -> None:
    forged = f"gpu/{key}\nodd row @gpulaunch/1/gpu/{key}-forged"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0gpulaunch/1/{forged}")
        other.listen()
        assert not is_bound(f"gpu/{key}-forged")
        assert holders().get(f"{key}-forged") is None
        assert take(key).close() is None


def test_the_name_of_a_holder_s_run_is_a_run_s_name(key: str) -> None:
    with bind_name(f"run/{key}\x1b[2J"), take(key), pytest.raises(NameHeldError) as refused:
        take(key)
    assert refused.value.holder.run is None


def test_the_new_holder_is_the_one_the_kernel_names(key: str) -> None:
    lease = take(key)
    receive = python(
        """
import select, sys
from gpulaunch.gpus.lease import Waiter
waiter = Waiter.connect("gpu/" + sys.argv[1], want=True)
select.select([waiter], [], [])
lease = waiter.on_readable()
print(lease.name, flush=True)
sys.stdin.read()
""",
        key,
    )
    with receive:
        assert receive.stdout is not None
        wait_until(lease.on_readable)
        assert lease.hand_over()
        assert receive.stdout.readline() == f"gpu/{key}\n"
        with pytest.raises(NameHeldError) as refused:
            take(key)
        assert refused.value.holder.pid == receive.pid


def test_a_crowd_of_waiters_does_not_take_the_holders_descriptors(key: str) -> None:
    with take(key) as lease:
        crowd = [waiter_for(key) for _ in range(leases.VISITORS + 20)]
        before = open_files()
        lease.on_readable()
        assert len(open_files() - before) == leases.VISITORS
        watched = lease.fileno()
        # Strangers on this machine may look as well; those that are kept out wake nobody for ever.
        wait_until(lambda: lease.on_readable() or not readable(watched, within=0))
        assert [waiter.on_readable() for waiter in crowd[leases.VISITORS :]] == ["gone"] * 20
        for waiter in crowd[:30]:
            waiter.close()
        late = waiter_for(key, want=True)
        wait_until(lease.on_readable)
    for waiter in (*crowd[30 : leases.VISITORS], late):
        assert waiter.on_readable() == "gone"
    for waiter in (*crowd, late):
        waiter.close()


CROWD = """
waiters = [Waiter.connect("gpu/" + sys.argv[1], want=True) for _ in range(int(sys.argv[2]))]
print("there", flush=True)
sys.stdin.read()
"""


@as_root
def test_one_user_s_crowd_keeps_no_other_user_s_launcher_out(key: str) -> None:
    with take(key) as lease, python(BECOME + CROWD, key, str(leases.VISITORS + 5)) as crowd:
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "there\n"
        assert lease.on_readable()
        with Waiter_closing(waiter_for(key, want=True)) as ours:
            lease.on_readable()
            assert ours.on_readable() == "still"


@as_root
def test_one_more_of_a_user_s_launchers_takes_no_place_of_another_user_s_that_has_no_more(
    key: str,
) -> None:
    """Of three places one user has two and the other one: with a second it would be the other way
    round, and the next launcher of the first would turn it round again, without end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (127, hard))  # room for three
    try:
        with take(key) as lease, python(BECOME + CROWD, key, "2") as theirs:
            assert theirs.stdout is not None
            assert theirs.stdout.readline() == "there\n"
            lease.on_readable()
            with Waiter_closing(waiter_for(key)) as first, Waiter_closing(waiter_for(key)) as more:
                lease.on_readable()
                assert (first.on_readable(), more.on_readable()) == ("still", "gone")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_where_descriptors_are_few_a_lease_keeps_few_connections(key: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        with take(key) as lease:
            crowd = [waiter_for(key) for _ in range(10)]
            lease.on_readable()
            assert [waiter.on_readable() for waiter in crowd] == ["still"] * 4 + ["gone"] * 6
            for waiter in crowd:
                waiter.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_holder_without_a_descriptor_left_goes_on_and_hands_over_later(key: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lease, waiter = take(key), waiter_for(key, want=True)
    watched = lease.fileno()
    fill: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (waiter.fileno() + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                fill.append(os.dup(0))
        assert not lease.on_readable()
        assert not readable(watched, within=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fill:
            os.close(fd)
    assert lease.hand_over()
    received(waiter).close()
    waiter.close()


def test_where_the_kernels_queue_is_full_a_waiter_asks_again_in_a_while(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "POLL", 0.01)
    with bind_name(f"gpu/{key}") as deaf:
        deaf.listen(0)
        queued = connect_name(f"gpu/{key}")
        assert queued is not None
        with queued, Waiter_closing(waiter_for(key, want=True)) as waiter:
            with pytest.raises(NameHeldError):
                take(key)
            assert readable(waiter)
            assert waiter.on_readable() == "perhaps"


def test_a_name_bound_by_a_process_that_does_not_get_to_listen_is_waited_for_by_the_clock(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "POLL", 0.01)
    with socket.socket(socket.AF_UNIX) as half:
        half.bind(f"\0gpulaunch/1/gpu/{key}")
        with pytest.raises(NameHeldError):
            take(key)
        with Waiter_closing(waiter_for(key)) as waiter:
            assert readable(waiter)


# ── Processes that die ──────────────────────────────────────────────────────────────────────────


def test_a_killed_holder_leaves_no_lease_behind(key: str) -> None:
    with holding(key) as process:
        waiter = waiter_for(key)
        process.kill()
        assert readable(waiter)
        assert waiter.on_readable() == "gone"
        take(key).close()
        waiter.close()


def test_a_killed_holders_child_still_holds_the_card(key: str) -> None:
    code = """
import subprocess, sys
from gpulaunch.gpus.lease import take
lease = take(sys.argv[1])
child = subprocess.Popen(["sleep", "60"], pass_fds=lease.filenos())
print(child.pid, flush=True)
sys.stdin.read()
"""
    with python(code, key) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        waiter = waiter_for(key)
        try:
            with pytest.raises(NameHeldError):
                take(key)
            assert not readable(waiter, within=0.05)
        finally:
            os.kill(child, signal.SIGKILL)
        assert readable(waiter)
        assert waiter.on_readable() == "gone"
        take(key).close()
        waiter.close()


@as_root
def test_a_lease_excludes_other_users_and_is_handed_over_to_them(key: str) -> None:
    with holding(key, BECOME) as process:
        with pytest.raises(NameHeldError) as refused:
            take(key)
        assert refused.value.holder.uid == NOBODY
        assert holders()[key].pid == process.pid
    code = """
try:
    take(sys.argv[1])
except NameHeldError as held:
    print(held.holder.uid, flush=True)
waiter = Waiter.connect("gpu/" + sys.argv[1], want=True)
select.select([waiter], [], [])
lease = waiter.on_readable()
print(lease.name, flush=True)
sys.stdin.read()
"""
    lease = take(key)
    with python(BECOME + code, key) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "0\n"
        wait_until(lease.on_readable)
        assert lease.hand_over()
        assert other.stdout.readline() == f"gpu/{key}\n"
        holder = holder_of(f"gpu/{key}")
        assert holder is not None
        assert (holder.pid, holder.uid) == (other.pid, NOBODY)


def race(directory: Path, holds: str, users: list[int]) -> tuple[int, int]:
    """Six launchers on four cards, started in one instant: (jobs done, double bookings)."""
    rounds = int(os.environ.get("GPULAUNCH_TEST_ROUNDS", "12"))
    directory.chmod(0o777)
    for file in ("doubles", "done", *(f"canary-{n}" for n in range(4))):
        (directory / file).touch()
        (directory / file).chmod(0o666)
    pool = f"test-{uuid.uuid4().hex[:12]}"
    arguments = [str(directory), pool, "4", str(rounds), holds]
    rivals = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpus.rival", *arguments, str(user)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
        )
        for user in users
    ]
    for rival in rivals:
        assert rival.stdin is not None
        rival.stdin.close()
    assert [rival.wait(timeout=120) for rival in rivals] == [0] * 6
    wanted = 6 * rounds
    done = wait_until(lambda: (n := lines(directory / "done")) == wanted and n, what="all work")
    return done, lines(directory / "doubles")


def lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_six_launchers_on_four_cards_never_share_one_though_they_are_killed(tmp_path: Path) -> None:
    assert race(tmp_path, "holds", [os.getuid()] * 6)[1] == 0


def test_control_where_the_job_does_not_hold_the_lease_cards_are_double_booked(
    tmp_path: Path,
) -> None:
    assert race(tmp_path, "lets-go", [os.getuid()] * 6)[1] > 0


@as_root
def test_six_launchers_of_two_users_never_share_a_card() -> None:
    # Not in tmp_path: pytest closes the directories above it to other users.
    with tempfile.TemporaryDirectory() as directory:
        assert race(Path(directory), "holds", [0, NOBODY] * 3)[1] == 0


# ── The layer of files ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "leases"
    directory.mkdir(mode=0o777)
    directory.chmod(0o1777)
    monkeypatch.setenv("GPULAUNCH_LEASE_DIR", str(directory))
    monkeypatch.setattr(leases, "POLL", 0.01)
    return directory


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_a_locked_file_is_held_beside_the_socket(key: str, shared: Path) -> None:
    from gpulaunch.gpus.socket_locks import lock

    with take(key) as lease:
        assert len(lease.filenos()) == 2
        assert not any(os.get_inheritable(fd) for fd in lease.filenos())
        assert (shared / f"{key}.lock").stat().st_mode & 0o777 == 0o644
        assert lock(str(shared), key) is None
    fd = lock(str(shared), key)
    assert fd is not None
    # As from another container: the file is locked, and the name is free.
    with pytest.raises(NameHeldError):
        take(key)
    assert f"gpu/{key}" not in listening()
    with Waiter_closing(waiter_for(key)) as waiter:
        assert readable(waiter)
        assert waiter.on_readable() == "perhaps"
    os.close(fd)
    take(key).close()


@pytest.mark.usefixtures("no_leaked_descriptors", "shared")
def test_the_locked_file_is_handed_over_with_the_socket(key: str) -> None:
    lease = take(key)
    waiter = waiter_for(key, want=True)
    assert lease.hand_over()
    with received(waiter) as handed:
        assert len(handed.filenos()) == 2
        assert not any(os.get_inheritable(fd) for fd in handed.filenos())
    waiter.close()


def test_a_removed_lock_file_is_not_mistaken_for_the_lock(
    key: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    from gpulaunch.gpus.socket_locks import lock

    real, path = fcntl.flock, shared / f"{key}.lock"

    def flock(fd: int, how: int) -> None:
        real(fd, how)
        if not path.with_suffix(".once").exists():
            path.with_suffix(".once").touch()
            path.unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    fd = lock(str(shared), key)
    assert fd is not None
    assert os.path.samestat(os.fstat(fd), path.stat())
    os.close(fd)


def test_a_lease_directory_that_is_gone_is_said_in_one_line(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAUNCH_LEASE_DIR", "/nonexistent/leases")
    with pytest.raises(UnfitLockError, match=r"^/nonexistent/leases/.*No such file[^\n]*$"):
        take(key)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"/proc/self/cwd/{path.name}")


@pytest.mark.usefixtures("no_leaked_descriptors")
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "is a FIFO"),
        (os.mkdir, "is a directory"),
        (a_socket, "is a socket"),
        (lambda path: path.symlink_to(path.with_name("elsewhere")), "is a symbolic link"),
        (lambda path: path.symlink_to("/dev/zero"), "is a symbolic link"),
    ],
    ids=["fifo", "directory", "socket", "dangling link", "link"],
)
def test_what_stands_in_the_place_of_a_lock_is_named_and_nothing_waits_for_it(
    make: Callable[[Path], None],
    what: str,
    key: str,
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(shared)
    make(shared / f"{key}.lock")
    with pytest.raises(UnfitLockError, match=f"{key}.lock {what}"):
        take(key)
    assert not (shared / "elsewhere").exists()
    take(f"{key}-other").close()


@as_root
def test_a_lock_that_its_owner_forbids_is_named(key: str, shared: Path) -> None:
    (shared / f"{key}.lock").touch(mode=0)
    code = BECOME + "take(sys.argv[1])"
    process = subprocess.run(
        [sys.executable, "-c", code, key], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "cannot be locked (Permission denied)" in process.stderr


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_a_descriptor_that_is_not_the_lock_is_not_taken_for_it(key: str, shared: Path) -> None:
    lease = bind_name(f"gpu/{key}")
    with Waiter_closing(waiter_for(key, want=True)) as waiter, open("/dev/null") as null:
        link, _ = lease.accept()
        with link:
            socket.send_fds(link, [b"L"], [lease.fileno(), null.fileno()])
        lease.close()
        with received(waiter) as handed:
            locked = handed.filenos()[1]
            assert os.path.samestat(os.fstat(locked), (shared / f"{key}.lock").stat())


@pytest.mark.parametrize(
    ("argv", "known"),
    [
        (["/opt/env/bin/python3.11", "-u", "/home/ann/train.py", "--lr", "3"], "train.py --lr 3"),
        (["python", "-W", "ignore", "train.py"], "train.py"),
        (["python", "-m", "torch.distributed.run", "x.py"], "torch.distributed.run x.py"),
        (["/usr/bin/python3", "-c", "pass"], "python3 -c pass"),
        (["python"], "python"),
        (["bash", "/data/run all.sh"], "run all.sh"),
        (["/usr/local/bin/colabfold_batch", "in", "out"], "colabfold_batch in out"),
        (["gpulaunch-keeper"], "gpulaunch-keeper"),
        (["/"], "/"),
        ([""], ""),
    ],
)
def test_a_process_is_known_by_its_script(argv: list[str], known: str) -> None:
    assert " ".join(known_as(argv)) == known
