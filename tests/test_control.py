from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from click.testing import CliRunner
from hypothesis import given

from gpulaunch.base.errors import UNFINISHED
from gpulaunch.base.loop import Loop
from gpulaunch.cli.machine import ps
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Cancel, DrainGpus, Finish, Pause, Retry, Stop
from gpulaunch.journal.codec import from_json, plain, to_json, value_of
from gpulaunch.journal.liveness import control_name, supervised
from gpulaunch.run import control_client
from gpulaunch.run.control_client import call, live_runs, present, reasons, watch
from gpulaunch.run.control_protocol import (
    REQUEST_BYTES,
    Add,
    AlreadySupervisedError,
    Asking,
    Hello,
    NoAnswerError,
    Present,
    Reasons,
    Reload,
    SetFields,
    SuspendedError,
)
from gpulaunch.run.control_server import CONNECTIONS, Conn, ControlServer
from tests.helpers import open_files, wait_until
from tests.journal.facts import values

ROOT = Path(__file__).parents[1]


def some_run() -> str:
    return f"20261120-074215-{secrets.token_hex(3)}"


class Served:
    """A server with a loop of its own, that answers as a supervisor would."""

    def __init__(self, answer: Callable[[Conn, Asking], None]) -> None:
        self.run = some_run()
        self.server = ControlServer(self.run)
        self.asked: list[Asking] = []
        self.turns = 0
        self._answer = answer
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def _turn(self) -> None:
        over: list[bool] = []
        with contextlib.closing(Loop()) as loop:
            loop.watch(self._ended, lambda: over.append(True))
            self.server.serve(loop, self._asked)
            while not over:
                loop.turn()
                self.turns += 1
            self.server.leave()

    def _asked(self, conn: Conn, asking: Asking) -> None:
        self.asked.append(asking)
        self._answer(conn, asking)

    @property
    def asked_more(self) -> list[Asking]:
        """Without hellos: whoever lists the machine's live runs says that to this one as well."""
        return [asked for asked in self.asked if not isinstance(asked, Hello)]

    def stop(self) -> None:
        os.close(self._end)
        self._thread.join()
        os.close(self._ended)

    def close(self) -> None:
        self.stop()
        self.server.close()


@contextlib.contextmanager
def by_hand(run: str) -> Iterator[tuple[ControlServer, Loop, list[tuple[Conn, Asking]]]]:
    """A server that is turned by the test, and what it was asked."""
    asked: list[tuple[Conn, Asking]] = []
    with contextlib.closing(Loop()) as loop, ControlServer(run) as server:
        server.serve(loop, lambda conn, asking: asked.append((conn, asking)))
        yield server, loop, asked


def hello(**other: object) -> dict[str, object]:
    """What a run answers to Hello, but for what is `other`."""
    usual = {"pid": os.getpid(), "dir": "/runs/a", "name": "a", "state": "running"}
    return usual | {"counts": {"running": 2}} | other


def well(conn: Conn, asking: Asking) -> None:
    match asking:
        case Hello():
            conn.send(hello())
        case Reasons():
            conn.send({"reasons": {f"job-{i}": "waits for a card " * 8 for i in range(100_000)}})
        case Stop(now=True):
            conn.fail("it stops already")
        case _:
            conn.send({"done": plain(asking)["kind"]})


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served(well)
    yield served
    served.close()


def connect(run: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(10)
    link.connect(control_name(run))
    return link


def read_all(link: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while data := link.recv(1 << 16):
            got += data
    return got


# ── Asking ──────────────────────────────────────────────────────────────────────────────────────

ASKINGS: list[Asking] = [
    Cancel(("a", "b c")),
    Cancel(None),
    Retry(None),
    DrainGpus(("GPU-0",), now=True),
    Pause(Quoted("disk full")),
    Stop(Quoted("asked")),
    Finish(),
    Reload(dry_run=True),
    Add("1", "{}", "add", "/tmp", {"HOME": "/", "ODD": "\udcff"}, "train"),
    SetFields(("a",), {"priority": "5"}),
]


@pytest.mark.parametrize("asking", ASKINGS)
def test_a_request_reaches_the_supervisor_as_it_was_asked(served: Served, asking: Asking) -> None:
    assert "done" in call(served.run, asking)
    assert served.asked_more == [asking]


@pytest.mark.parametrize("cls", get_args(Asking))
def test_every_request_survives_the_wire(cls: type) -> None:
    @given(values(cls))
    def check(asking: Asking) -> None:
        assert value_of(from_json(to_json(plain(asking))), cls) == asking

    check()


def test_hello_says_who_is_there(served: Served) -> None:
    assert call(served.run, Hello())["counts"] == {"running": 2}


def test_an_answer_far_larger_than_a_socket_s_buffer_arrives_whole(served: Served) -> None:
    assert len(call(served.run, Reasons())["reasons"]) == 100_000


def test_what_the_supervisor_refuses_is_said(served: Served) -> None:
    with pytest.raises(NoAnswerError, match="it stops already"):
        call(served.run, Stop(Quoted("again"), now=True))


def test_a_run_that_is_not_alive_is_a_clear_line() -> None:
    run = some_run()
    with pytest.raises(NoAnswerError, match=f"run {run} is not alive"):
        call(run, Hello())
    assert watch(run, os.geteuid()) is None
    assert not supervised(run, os.getuid())


def test_a_supervisor_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    with ControlServer(some_run()) as server:
        with pytest.raises(NoAnswerError, match=r"has not answered within 0\.2 s"):
            call(server.run, Hello(), timeout=0.2)
        assert supervised(server.run, os.getuid())


def test_a_supervisor_whose_queue_is_full_is_not_waited_for_for_ever() -> None:
    run = some_run()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf, contextlib.ExitStack() as links:
        deaf.bind(control_name(run))
        deaf.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                link = links.enter_context(socket.socket(socket.AF_UNIX))
                link.setblocking(False)
                link.connect(control_name(run))
        began = time.monotonic()
        with pytest.raises(NoAnswerError, match="does not answer"):
            call(run, Hello(), timeout=0.2)
        assert time.monotonic() - began > 0.15
        assert supervised(run, os.getuid())


def test_a_supervisor_that_ends_before_it_answers_is_said() -> None:
    served = Served(lambda conn, _: conn.close())
    with pytest.raises(NoAnswerError, match="ended before it answered"):
        call(served.run, Hello())
    served.close()


# ── The lock ────────────────────────────────────────────────────────────────────────────────────


def test_a_second_supervisor_is_refused_and_told_who_has_the_run() -> None:
    with ControlServer(some_run()) as server:
        with pytest.raises(AlreadySupervisedError, match=f"pid {os.getpid()}") as caught:
            ControlServer(server.run)
        assert caught.value.pid == os.getpid()
        assert caught.value.status == UNFINISHED
    ControlServer(server.run).close()


def test_a_killed_supervisor_leaves_no_lock_and_its_watchers_know() -> None:
    run = some_run()
    code = (
        "import sys; from gpulaunch.run.control_server import ControlServer;"
        "s = ControlServer(sys.argv[1]);"
        "print('bound', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, run]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "bound\n"
        with pytest.raises(AlreadySupervisedError, match=f"pid {other.pid}"):
            ControlServer(run)
        watching = watch(run, os.geteuid())
        assert watching is not None
        with watching:
            assert not select.select([watching], [], [], 0)[0]
            os.kill(other.pid, signal.SIGKILL)
            assert select.select([watching], [], [], 10)[0]
        other.wait()
    assert not supervised(run, os.getuid())
    ControlServer(run).close()


def test_closing_gives_every_descriptor_back() -> None:
    before = open_files()
    with by_hand(some_run()) as (server, loop, _), connect(server.run):
        loop.turn()
        assert len(server._conns) == 1
        assert not server._listener.get_inheritable()
    assert not open_files() - before


# ── Hostile clients ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"hello\n",
        b"\xff\xfe\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'{"kind":"format_disk"}\n',
        b'{"kind":"cancel","jobs":"a"}\n',
        b'{"kind":"cancel","jobs":null,"force":true}\n',
        b'{"kind":["cancel"]}\n',
        b"[" * 100_000 + b"\n",
        b'{"kind":"hello"}\n{"kind":"hello"}\n',
        b"x" * (REQUEST_BYTES + 1),
    ],
)
def test_garbage_is_answered_and_hung_up_on(served: Served, line: bytes) -> None:
    with connect(served.run) as link:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            link.sendall(line)
        assert "error" in json.loads(read_all(link))
    assert served.asked_more == []
    assert call(served.run, Hello())


def test_a_line_that_is_too_long_is_cut_short(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulaunch.run.control_server.REQUEST_BYTES", 1 << 20)
    with connect(served.run) as link:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            link.sendall(b"x" * 10_000_000 + b"\n")
        assert b"at most" in read_all(link)


def test_a_request_in_single_bytes_is_understood(served: Served) -> None:
    with connect(served.run) as link:
        for byte in b'{"kind":"hello"}\n':
            link.sendall(bytes([byte]))
        assert json.loads(link.recv(4096))["name"] == "a"


def test_several_requests_one_after_the_other_are_answered(served: Served) -> None:
    with connect(served.run) as link:
        for _ in range(3):
            link.sendall(b'{"kind":"hello"}\n')
            assert json.loads(link.recv(4096))["name"] == "a"


def test_half_a_line_and_a_disconnect_leave_no_trace(served: Served) -> None:
    with connect(served.run) as link:
        link.sendall(b'{"kind":"can')
    assert call(served.run, Hello())
    wait_until(lambda: len(served.server._conns) == 0)
    assert served.asked_more == []


def test_a_client_that_never_reads_holds_nobody_up(served: Served) -> None:
    with connect(served.run) as deaf:
        deaf.sendall(b'{"kind":"reasons"}\n')
        wait_until(lambda: Reasons() in served.asked)
        assert call(served.run, Hello())["name"] == "a"
        turns = served.turns
        call(served.run, Reasons())  # takes long enough for a loop that spins to be seen
        assert served.turns < turns + 1000  # other launchers here may look in as well
    assert call(served.run, Hello())["name"] == "a"
    wait_until(lambda: len(served.server._conns) == 0)


def test_an_answer_above_the_bound_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulaunch.run.control_server.REPLY_BYTES", 1 << 20)
    with by_hand(some_run()) as (server, loop, asked), connect(server.run) as deaf:
        deaf.sendall(b'{"kind":"hello"}\n')
        while not asked:
            loop.turn()
        [(conn, _)] = asked
        conn.send({"name": "x" * (1 << 21)})
        assert conn.closed
        assert conn.buffered == 0


def test_a_client_that_hangs_up_amid_the_answer_harms_nobody(served: Served) -> None:
    for _ in range(3):
        with connect(served.run) as link:
            link.sendall(b'{"kind":"reasons"}\n')
            link.recv(1)
    assert call(served.run, Hello())["name"] == "a"


def test_an_answer_to_a_client_that_has_gone_is_for_nothing() -> None:
    with by_hand(some_run()) as (server, loop, asked):
        with connect(server.run) as link:
            link.sendall(b'{"kind":"hello"}\n')
            while not asked:
                loop.turn()
            [(conn, _)] = asked
        conn.send({"pid": 1})
        conn.send({"pid": 1})
        assert conn.closed


def test_clients_that_say_half_a_line_make_room_for_others(served: Served) -> None:
    with contextlib.ExitStack() as links:

        def say_half() -> None:
            link = links.enter_context(connect(served.run))
            with contextlib.suppress(BrokenPipeError):
                link.sendall(b"{")

        def full() -> bool:
            """Whoever lists the machine's live runs meanwhile has driven one of them out."""
            busy = sum(conn.busy for conn in list(served.server._conns))
            if busy < CONNECTIONS:
                say_half()
            return busy >= CONNECTIONS

        for _ in range(CONNECTIONS + 20):
            say_half()
        wait_until(full)
        assert call(served.run, Hello())["name"] == "a"
        assert len(served.server._conns) <= CONNECTIONS


def test_waiting_clients_are_not_driven_out_by_more_of_them(served: Served) -> None:
    with contextlib.ExitStack() as links:
        first = links.enter_context(connect(served.run))
        for _ in range(CONNECTIONS - 1):
            links.enter_context(connect(served.run))
        wait_until(lambda: len(served.server._conns) == CONNECTIONS)
        with pytest.raises(NoAnswerError, match="too many ask this run at once"):
            call(served.run, Hello())
        assert not select.select([first], [], [], 0)[0]


def test_without_a_free_descriptor_clients_are_turned_away_and_the_loop_rests() -> None:
    with by_hand(some_run()) as (server, loop, asked), contextlib.ExitStack() as held:
        links = [held.enter_context(connect(server.run)) for _ in range(3)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
        try:
            taken = []
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            for _ in range(4):
                loop.turn(block=False)
            assert not select.select([server._listener], [], [], 0)[0]
        finally:
            for each in taken:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [link.recv(1) for link in links] == [b""] * 3
        with connect(server.run) as link:
            link.sendall(b'{"kind":"hello"}\n')
            while not asked:
                loop.turn()
            assert [asking for _, asking in asked] == [Hello()]


# ── A launcher that does nothing ────────────────────────────────────────────────────────────────


def test_a_request_whose_client_has_gone_is_not_carried_out() -> None:
    with by_hand(some_run()) as (server, loop, asked):
        with connect(server.run) as link:
            link.sendall(b'{"kind":"cancel","jobs":null}\n')
        with connect(server.run) as link:
            link.sendall(b'{"kind":"hello"}\n')
            while not asked:
                loop.turn()
    assert [asking for _, asking in asked] == [Hello()]


IDLE = """
with server.ControlServer(sys.argv[1]) as served:
    print("bound", flush=True)
    sys.stdin.readline()
    from gpulaunch.base.loop import Loop
    loop, asked = Loop(), []
    def answer(conn, asking):
        if not isinstance(asking, protocol.Hello):  # as whoever lists live runs says
            asked.append(type(asking).__name__)
        conn.send({"asked": asked})
    served.serve(loop, answer)
    while not sys.stdin.closed:
        loop.turn()
"""


def test_what_a_stopped_launcher_is_asked_is_said_and_never_carried_out() -> None:
    run = some_run()
    code = AS_NOBODY.replace("os.setgroups([]); os.setgid(65534); os.setuid(65534)", "") + IDLE
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, run]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "bound\n"
        with ThreadPoolExecutor() as threads:
            early = threads.submit(call, run, Cancel(None), 600.0)  # before or after the stop
            launcher.send_signal(signal.SIGSTOP)
            for asking in (early, threads.submit(call, run, Cancel(None), 600.0)):
                error = asking.exception(60)
                assert isinstance(error, SuspendedError)
                how = f"kill -CONT {launcher.pid} continues it"
                assert f"(pid {launcher.pid}) is stopped: fg in its terminal or {how}" in str(error)
        [info] = [info for info in live_runs() if info.id == run]
        assert info.suspended == "stopped"
        launcher.send_signal(signal.SIGCONT)
        launcher.stdin.write("\n")
        launcher.stdin.flush()
        assert call(run, Finish()) == {"asked": ["Finish"]}
        launcher.kill()


# ── Other users ─────────────────────────────────────────────────────────────────────────────────

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")

# What is imported later lies where nobody else may read, in some installations.
AS_NOBODY = """
import concurrent.futures.thread, os, sys
sys.path.insert(0, ".")
from gpulaunch.run import control_client as client
from gpulaunch.run import control_protocol as protocol
from gpulaunch.run import control_server as server
from gpulaunch.core.events import Cancel
os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""


def as_nobody(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_NOBODY + code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)


@root_only
def test_another_user_s_client_refuses_by_itself(served: Served) -> None:
    code = """
try: client.call(sys.argv[1], Cancel(None))
except protocol.NoAnswerError as error: print(error)
[info] = [info for info in client.live_runs() if info.id == sys.argv[1]]
print(info.user, info.dir, info.name)
"""
    said = as_nobody(code, served.run).stdout.splitlines()
    assert said[0].startswith(f"run {served.run} belongs to root")
    assert said[1:] == ["root None None"]
    assert served.asked_more == []


@root_only
def test_nothing_is_told_to_another_user_s_process_that_took_the_name() -> None:
    run = some_run()
    code = """
try: client.call(sys.argv[1], Cancel(("secret-name",)), timeout=5)
except protocol.NoAnswerError as error: print(error)
"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        taken.bind(control_name(run))
        taken.listen()
        assert "belongs to root" in as_nobody(code, run).stdout
        taken.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:  # whoever lists the machine's live runs comes here as well
                link, _ = taken.accept()
                with link:
                    assert b"secret-name" not in link.recv(4096)


@root_only
def test_another_user_s_request_is_refused_by_the_server(served: Served) -> None:
    code = """
import contextlib
link = client._connect(sys.argv[1], 5)
with contextlib.suppress(BrokenPipeError):
    link.sendall(b'{"kind":"cancel","jobs":null}\\n')
print(link.recv(4096).decode())
link.close()
"""
    answer = json.loads(as_nobody(code, served.run).stdout)
    assert "belongs to root" in answer["error"]
    assert served.asked_more == []
    assert call(served.run, Hello())


@root_only
def test_root_may_ask_another_user_s_run() -> None:
    run = some_run()
    code = """
from gpulaunch.base.loop import Loop
with server.ControlServer(sys.argv[1]) as served:
    print("bound", flush=True)
    asked, loop = [], Loop()
    served.serve(loop, lambda conn, asking: asked.append(conn))
    while not asked:
        loop.turn()
    asked[0].send({"uid": os.getuid()})
"""
    command = [sys.executable, "-c", AS_NOBODY + code, run]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "bound\n"
        assert call(run, Hello()) == {"uid": NOBODY}


# ── Whoever answers is no run ───────────────────────────────────────────────────────────────────

HOSTILE: list[object] = [
    [],
    ["error"],
    {},
    hello(counts="many"),
    hello(counts=[1, 2]),
    hello(counts={"running": "two"}),
    hello(counts={"running": -1}),
    hello(counts={"running": True}),
    hello(counts={"running": 1.5}),
    hello(counts={"running": {}}),
    hello(dir="/runs/a\0b"),
    hello(dir="runs/a"),
    hello(dir="/" + "a" * 5000),
    hello(dir=None),
    hello(dir=["/runs/a"]),
    hello(name=7),
    hello(name=""),
    hello(name="n" * 300),
    hello(state="well"),
    hello(pid="1"),
    hello(more=1),
    {"error": ["\x1b[2J"]},
]


@contextlib.contextmanager
def answering(answer: object) -> Iterator[str]:
    """A run that gives the same answer to whatever it is asked; yields its id."""
    served = Served(lambda conn, asking: conn.send(cast("Any", answer)))
    try:
        yield served.run
    finally:
        served.close()


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_an_answer_that_no_run_gives_is_not_believed(answer: object) -> None:
    with answering(answer) as run:
        assert CliRunner().invoke(ps).exit_code == 0
        with pytest.raises(NoAnswerError):
            present(run)
        [info] = mine(run)
        assert (info.pid, info.dir, info.name, info.counts) == (os.getpid(), None, None, {})


@pytest.mark.parametrize(
    "answer", [{}, {"reasons": ["a"]}, {"reasons": {"a": 1}}, {"reasons": None}], ids=repr
)
def test_reasons_that_no_run_gives_are_not_believed(answer: object) -> None:
    with answering(answer) as run, pytest.raises(NoAnswerError, match="makes no sense"):
        reasons(run)


def test_what_a_terminal_would_obey_in_a_run_s_name_is_written_out() -> None:
    with answering(hello(name="a\x1b[2J\nb", dir="/runs/\x1b]0;x\x07")) as run:
        [info] = mine(run)
        assert info.name == "a\x1b[2J\nb"
        shown = CliRunner().invoke(ps).stdout
        assert r"a\x1b[2J\nb" in shown
        assert "\x1b[2J" not in shown
        assert "\x07" not in shown


TAKE = """
with server.ControlServer(sys.argv[1]) as served:
    print("bound", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def taken_by_nobody(run: str) -> Iterator[None]:
    """The run's name is another user's process's."""
    command = [sys.executable, "-c", AS_NOBODY + TAKE, run]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "bound\n"
        yield


@root_only
def test_a_name_that_another_user_took_makes_no_run_alive() -> None:
    run, owner = some_run(), 12345
    with taken_by_nobody(run):
        assert not supervised(run, owner)
        assert supervised(run, NOBODY)


@root_only
def test_nobody_waits_for_the_end_of_another_user_s_process_that_took_the_name() -> None:
    run = some_run()
    with taken_by_nobody(run):
        assert watch(run, os.geteuid()) is None
        with pytest.raises(AlreadySupervisedError) as refused:
            ControlServer(run)
    assert not refused.value.admits
    assert "is taken by a process of nobody" in str(refused.value)


@root_only
def test_root_gives_its_environment_to_no_run_of_another_user() -> None:
    run = some_run()
    add = Add("1", "jobs: [{name: a, run: 'true'}]", "add", "/", {"SECRET": "1"})
    with taken_by_nobody(run), pytest.raises(NoAnswerError, match="belongs to nobody"):
        call(run, add)


@root_only
def test_whose_process_took_a_run_s_name_is_said() -> None:
    run = some_run()
    code = """
os.setgid(65533)
os.setuid(65533)
try: server.ControlServer(sys.argv[1])
except protocol.AlreadySupervisedError as error: print(error)
"""
    become = AS_NOBODY.replace("os.setgid(65534); os.setuid(65534)", "")
    command = [sys.executable, "-c", become + code, run]
    with taken_by_nobody(run):
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"the name of run {run} is taken by a process of nobody (pid ")
    assert said.stdout.endswith("nothing goes on with the run before that process ends\n")


def test_where_descriptors_are_few_few_clients_are_heard_at_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with by_hand(some_run()) as (server, loop, _), contextlib.ExitStack() as links:
            for _ in range(20):
                links.enter_context(connect(server.run))
            before = open_files()
            loop.turn()
            assert len(open_files() - before) == 64 // 8
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ── Who is alive ────────────────────────────────────────────────────────────────────────────────


def mine(run: str, patience: float = 10.0) -> list[Any]:
    return [info for info in live_runs(patience) if info.id == run]


def test_live_runs_are_listed_with_what_they_say(served: Served) -> None:
    [info] = mine(served.run)
    assert (info.pid, info.uid, info.name) == (os.getpid(), os.geteuid(), "a")
    assert (info.dir, info.counts) == (Path("/runs/a"), {"running": 2})


def test_no_run_waits_for_the_answers_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some may be stopped: whoever is asked after them would be taken for silent as well."""
    all_are_asked = threading.Barrier(3)

    def asked(run: str, timeout: float) -> Present:
        all_are_asked.wait(30)
        return Present(1, f"/runs/{run}", "a", "running", {})

    monkeypatch.setattr(control_client, "present", asked)
    with ExitStack() as stack:
        runs = sorted(stack.enter_context(ControlServer(some_run())).run for _ in range(3))
        monkeypatch.setattr(
            control_client, "listening", lambda prefix: [prefix + run for run in runs]
        )
        assert [(info.id, info.dir) for info in live_runs()] == [
            (run, Path(f"/runs/{run}")) for run in runs
        ]


def test_a_run_that_does_not_answer_is_listed_all_the_same() -> None:
    with ControlServer(some_run()) as server:
        [info] = mine(server.run, 0.2)
        assert (info.pid, info.dir, info.name) == (os.getpid(), None, None)
    assert mine(server.run) == []


def test_names_that_are_no_run_ids_are_not_listed() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as odd:
        name = f"\x1b[31m{secrets.token_hex(4)}"
        odd.bind(control_name(name))
        odd.listen()
        assert mine(name) == []
