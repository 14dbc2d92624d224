"""What processes beside the run may say: each is understood, or is not listened to any more."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from gpulaunch.base.helper_process import SenselessError, understood
from gpulaunch.engines.client import Gone, Pair, Report
from gpulaunch.engines.command import Command
from gpulaunch.engines.local.preload_client import (
    PreloadReady,
    PreloadUnavailable,
    Vanished,
    news_of,
)
from gpulaunch.engines.local.readiness import answers
from gpulaunch.engines.programs import program_line
from gpulaunch.executor.channel import RESULT, ChannelMessage, WorkerChannel
from gpulaunch.gpus.lease import Lease, Waiter
from gpulaunch.gpus.socket_locks import bind_name
from gpulaunch.gpus.xid import HelperLine
from gpulaunch.journal.ends import read_end
from gpulaunch.run.wait_queue import DIGITS, OtherLines, name_of, take_place
from tests.doors.spoilt import SEED, count, messages

END = {
    "attempt": "a.1", "pid": 4, "started": [1.0, 2.0], "ended": [1.5, 2.5], "status": 0,
    "error": None, "cause": None, "by": "", "seconds": 0, "missing": [], "leftovers": 0,
    "oom_kills": 0, "kind": None, "warned": [1.0, 2.0, 12, 1, "timeout"],
}  # fmt: skip
KEEPER: list[dict[str, Any]] = [
    {"is": "started", "attempt": "a.1", "pid": 4, "keeper": 3, "keeper_start": 7, "spent": 0.5},
    {"is": "warned", "attempt": "a.1", "warned": [1.0, 2.0, 12, 1, "stop"]},
    {"is": "unkillable", "attempt": "a.1", "pids": [4, 5]},
    {"is": "worker_gone"},
    {"is": "unbegun", "attempt": "a.2"},
    {"is": "cold", "attempt": "a.1", "why": "x", "for_good": True},
    {"is": "ended", "end": END, "kept": False, "note": "x", "cpu": 0.5},
]


def pair_that_says(message: bytes, run: Path) -> list[Report]:
    """What a pair reports of a message, and of its end after that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with closing(Pair(ours)) as pair, theirs:
        pair.launch(Command("a.1", ("true",), str(run / "log"), str(run / "end")))
        theirs.send(message)
        reports = pair.on_readable()
        theirs.send(b'{"is":"worker_gone"}')
        theirs.close()
        while not any(isinstance(report, Gone) for report in reports):
            reports += pair.on_readable()
        return reports


def test_keepers_that_say_what_has_no_meaning_are_left_alone_until_they_are_gone(
    tmp_path: Path,
) -> None:
    for message in messages(KEEPER, count(400)):
        reports = pair_that_says(message[:60_000] or b" ", tmp_path)
        assert sum(isinstance(report, Gone) for report in reports) == 1


def test_the_keepers_of_a_pair_that_is_not_understood_see_the_end(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with closing(Pair(ours)) as pair, theirs:
        theirs.send(b'{"is":"started","attempt":5}')
        assert pair.on_readable() == []
        assert theirs.recv(100) == b""


def test_the_record_of_an_end_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "a.1"
    for message in messages([END], count(300)):
        path.write_bytes(b"%08x %s\n" % (crc32(message), message))
        found = read_end(path)
        assert found is None or found.end.ended is not None


PRELOAD: list[dict[str, Any]] = [
    {"is": "refused", "why": "x"},
    {"is": "ready", "modules": ["a"], "left_out": {"b": "x"}, "reads": ["A"], "seconds": 1.5},
]


def test_a_preload_server_may_say_anything() -> None:
    for message in messages(PRELOAD, count(300)):
        assert isinstance(news_of(message), PreloadReady | PreloadUnavailable | Vanished)


HEARD: list[dict[str, Any]] = [
    {"said": "asking", "gpus": ["GPU-0"]},
    {"said": "hears", "gpus": ["GPU-0"], "types": ["xid"]},
    {"said": "deaf", "gpus": ["GPU-0"], "error": {"code": 3, "kind": "NVMLError", "text": "x"}},
    {"said": "event", "gpus": ["GPU-0"], "kind": "xid", "code": 79, "recovery": None},
    {"said": "end"},
]


def test_what_a_helper_says_has_a_meaning_or_ends_it() -> None:
    for message in messages(HEARD, count(400)):
        with suppress(SenselessError):
            assert isinstance(understood(message, HelperLine), HelperLine)


class Web:
    """A service that answers each connection with some bytes."""

    def __init__(self) -> None:
        self.answer = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with suppress(OSError), link:
                link.sendall(self.answer)
                link.shutdown(socket.SHUT_WR)
                link.recv(1 << 16)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    yield made
    made.close()


def test_a_service_may_answer_anything_when_it_is_asked_whether_it_is_ready(web: Web) -> None:
    rng = random.Random(SEED)
    head = b"HTTP/1.1 302 Found\r\nLocation: %s\r\n\r\n"
    odd = [
        head % place for place in (b"http://[", b"file:///etc", b"//\xff", b"http://a b/\x00", b"")
    ]
    odd += [b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", b"HTTP/9.9 2 x", b"\r\n" * 100]
    odd += [b"HTTP/1.1 " + rng.randbytes(40) + b"\r\n\r\n" for _ in range(count(40))]
    for answer in odd:
        web.answer = answer
        assert answers(f"http://127.0.0.1:{web.port}/", "") in (True, False)


def test_a_visitor_of_a_lease_may_say_anything(network: None) -> None:
    rng = random.Random(SEED)
    with Lease("gpu/x", bind_name("gpu/x"), None) as lease:
        visitors = []
        for at in range(count(60)):
            visitor = socket.socket(socket.AF_UNIX)
            visitor.connect("\0gpulaunch/1/gpu/x")
            visitor.send(rng.randbytes(rng.choice([1, 4, 300])))
            visitors.append(visitor)
            assert lease.on_readable() in (True, False)
            if at % 5 == 0:
                visitors.pop(rng.randrange(len(visitors))).close()
        for visitor in visitors:
            visitor.close()


def test_a_holder_of_a_lease_may_say_anything_to_who_waits(network: None) -> None:
    rng = random.Random(SEED)
    with bind_name("gpu/x") as holder:
        holder.setblocking(True)
        for at in range(count(60)):
            waiter = Waiter.connect("gpu/x", True)
            assert waiter is not None
            with closing(waiter):
                link, _ = holder.accept()
                with link:
                    data = rng.randbytes(rng.choice([1, 300]))
                    fds = [0] * rng.randrange(4)
                    socket.send_fds(link, [data], fds) if at % 2 else link.send(data)
                    assert waiter.on_readable() in ("gone", "odd", "perhaps", "still")


def test_places_in_line_may_have_any_name(network: None) -> None:
    rng = random.Random(SEED)
    held = []
    prefix = b"\0gpulaunch/1/line/"
    for _ in range(count(60)):
        name = prefix + rng.randbytes(rng.randrange(80)).replace(b"\0", b"")
        if rng.random() < 0.5:
            name = prefix + rng.choice([b"%016x" % 1, b"x" * 16]) + b"/" + rng.randbytes(20)
        link = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            link.bind(name)
            link.listen(1)
        held.append(link)
    with take_place("1".zfill(DIGITS)) as place:
        others = OtherLines(name_of(place.fileno()))
        others.wait_for(1)
        others.close()
        words = ["wait", str(place.fileno()), "0", "waits", "/bin/true"]
        assert subprocess.call(program_line(*words), pass_fds=[place.fileno()]) == 0
    for link in held:
        link.close()


def test_a_worker_may_send_anything() -> None:
    rng = random.Random(SEED)
    for _ in range(count(200)):
        ours, theirs = socket.socketpair()
        with closing(WorkerChannel(ours)) as channel, theirs:
            WorkerChannel(theirs).send(ChannelMessage(RESULT, b"x" * 50, [bytearray(9)], 3))
            real = bytearray(ours.recv(1 << 16, socket.MSG_PEEK))
            ours.recv(1 << 16)
            for _ in range(rng.choice([1, 4])):
                real[rng.randrange(len(real))] = rng.choice([0, 0xFF, rng.randrange(256)])
            theirs.sendall(real)
            theirs.shutdown(socket.SHUT_WR)
            with suppress(OSError, MemoryError, OverflowError, ValueError):
                channel.receive()
