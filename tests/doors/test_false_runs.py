"""A process that has the name of a run and is none: one line about it, and the others are shown."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpulaunch.base.errors import NothingChangedError
from gpulaunch.core.events import Retry
from gpulaunch.journal.liveness import control_name
from gpulaunch.run import control_client, control_protocol
from gpulaunch.run.control_client import call, live_runs, present, reasons
from gpulaunch.run.control_protocol import NoAnswerError, Reload
from tests.cli.launcher import COMMAND, Launcher
from tests.doors.spoilt import count, dumped, messages, values

PRESENT = {"pid": 1, "dir": "/tmp/x", "name": "x", "state": "running", "counts": {"running": 1}}
CHANGE: dict[str, Any] = {"new": ["a"], "changed": [], "gone": []}
REAL: list[dict[str, Any]] = [
    PRESENT,
    {"reasons": {"a": {"kind": "needs_others", "count": 3}, "b": {"kind": "no_gpu_free"}}},
    {"requeued": ["a"], "changed": [], "gone": ["b"]},
    {"names": ["a"]},
    {"change": CHANGE, "notes": ["x"]},
    {"error": "no", "found": [{"text": "a", "message": "b", "file": "f", "line": 1, "column": 2}]},
]
CRUEL = [b'{"found":5}', b'{"error":"x","found":5}', b'{"error":"\\ud800"}', b'{"name":"\\ud800"}']


class FalseRun:
    """Listens on a run's name; sends `answer` to whoever asks, and `endless` a piece for ever."""

    def __init__(self, run: str) -> None:
        self.answer, self.endless = b"", b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(control_name(run))
        self._socket.listen(64)
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                if self.answer:
                    link.recv(1 << 16)
                    link.sendall(self.answer + b"\n")
                elif self.endless:
                    threading.Thread(target=self._pour, args=(link,)).start()
                    continue
            self._held.append(link)
            if self.answer:
                link.close()

    def _pour(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError), link:
            while True:
                link.sendall(self.endless)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for link in (self._socket, *self._held):
            link.close()


@pytest.fixture
def false(network: None) -> Iterator[FalseRun]:
    made = FalseRun("evil1")
    yield made
    made.close()


def test_whatever_it_answers_it_is_a_run_of_which_little_is_known(false: FalseRun) -> None:
    rng = random.Random(1)
    spoilt = [dumped(value) for value in values(rng, REAL, count(200))]
    for answer in [*CRUEL, *messages(REAL, count(200)), *spoilt]:
        false.answer = answer or b" "
        (found,) = live_runs()
        assert (found.id, found.uid) == ("evil1", os.geteuid())
        for ask in (
            lambda: present("evil1"),
            lambda: reasons("evil1"),
            lambda: call("evil1", Retry(None), answer=control_protocol.Requeued),
            lambda: call("evil1", Reload(), answer=control_protocol.Changed),
        ):
            with contextlib.suppress(NoAnswerError, NothingChangedError):
                ask()


@pytest.mark.parametrize("answer", CRUEL)
def test_commands_say_one_line_about_it(false: FalseRun, launcher: Launcher, answer: bytes) -> None:
    false.answer = answer
    alone = Launcher(launcher.path, launcher.environ, [*COMMAND])  # in this network
    for words in (
        ["ps"],
        ["ps", "--json"],
        ["status", "-r", "evil1"],
        ["cancel", "-r", "evil1", "a"],
    ):
        result = alone(*words)
        assert "Traceback" not in result.err + result.out
        assert "evil1" in result.out + result.err


def test_one_that_never_answers_keeps_the_others_from_nobody(
    false: FalseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FalseRun("other")
    other.answer = dumped(PRESENT)
    try:
        silent, known = live_runs(timeout=0.2)
        assert (silent.id, silent.name) == ("evil1", None)
        assert (known.id, known.name) == ("other", "x")
    finally:
        other.close()


def test_one_that_sends_without_end_is_not_listened_to_for_long(false: FalseRun) -> None:
    false.endless = b"x" * 1000
    with pytest.raises(NoAnswerError, match="makes no sense"):
        present("evil1")


def test_one_that_sends_a_byte_now_and_then_is_not_waited_for(
    false: FalseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def passes() -> float:
        nonlocal now
        now += 1.0
        return now

    monkeypatch.setattr(control_client.time, "monotonic", passes)
    false.endless = b"x"
    with pytest.raises(NoAnswerError, match="has not answered within 3 s"):
        present("evil1", 3.0)
