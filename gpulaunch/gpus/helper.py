"""The client's end of the helper process (`probe`): asks one question at a time, within a limit.

Starts the process at the first question, kills it when a call into the driver hangs, and starts
another for the questions that are left. Knows nothing of cards.
"""

from __future__ import annotations

import json
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from gpulaunch.farside.proc import suspension
from gpulaunch.helper_process import Helper, command, understood
from gpulaunch.loop import Loop

Request: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = dict[str, Any]
Then: TypeAlias = Callable[[Answer], object]
H = TypeVar("H", bound="DriverHelper")

START_LIMIT = 60.0
"""Seconds that the start of the process may take."""


class _Question(Struct, frozen=True):
    request: Request
    then: Then


class DriverHelper:
    """A helper process. An answer is the request with more fields, or with an "error".

    `limit` in seconds, per question; the start of the process is not counted in it. Without a loop
    to turn in, it has one of its own, for `run`.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        limit: float = 10.0,
        loop: Loop | None = None,
    ) -> None:
        self.limit = limit
        self._environ = None if environ is None else dict(environ)
        self._loop = Loop() if loop is None else loop
        self._owns_loop = loop is None
        self._helper = Helper(self._loop, self._said, self._died)
        self._queue: deque[_Question] = deque()
        self._current: _Question | None = None
        self._scarce = ""
        self._ready = False

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._helper.pid

    def ask(self, request: Request, then: Then) -> None:
        """Ask; the loop calls `then` with the answer."""
        self._queue.append(_Question(request, then))
        self._go_on()

    def run(self, requests: Iterable[Request]) -> list[Answer]:
        """Ask all of these and return the answers in order. Blocks up to the limit for each."""
        answers: list[Answer] = []
        wanted = 0
        for request in requests:
            self.ask(request, answers.append)
            wanted += 1
        while len(answers) < wanted:
            self._loop.turn()
        return answers

    def close(self) -> None:
        """End the helper. Idempotent."""
        self._current = None
        self._queue.clear()
        self._loop.forget(self)
        self._helper.close()
        if self._owns_loop:
            self._loop.close()

    def _go_on(self) -> None:
        while self._current is None and self._queue:
            self._current = self._queue.popleft()
            self._scarce = ""
            try:
                if self._helper.link is None:
                    self._start()
            except OSError as error:
                self._scarce = error.strerror or str(error)
                self._expect_within(0.0)
                return
            self._expect_within(self.limit if self._ready else max(self.limit, START_LIMIT))
            assert self._helper.link is not None
            # Either the helper died, which its end of file shows next, or it hangs: soon overdue.
            with suppress(OSError):
                self._helper.link.sendall(json.dumps(self._current.request).encode() + b"\n")

    def _start(self) -> None:
        self._ready = False
        self._helper.start(command("gpulaunch.gpus.probe"), self._environ)

    def _expect_within(self, seconds: float) -> None:
        self._loop.call_after(self, seconds, self._overdue)

    def _said(self, line: bytes) -> None:
        if self._ready:
            self._answer(understood(line, dict[str, Any]))  # one question, one line
        else:
            self._ready = True
            if self._current:
                self._expect_within(self.limit)

    def _answer(self, answer: Answer) -> None:
        question, self._current = self._current, None
        self._loop.forget(self)
        self._go_on()
        if question:
            question.then(answer)

    def _overdue(self) -> None:
        """Kill the helper, whose question takes too long; its answer is an error.

        A question that could not be asked, for want of processes or descriptors, is overdue at
        once: its error is "Unasked" and says nothing about a card. Neither does a process that
        somebody has stopped.
        """
        pid = self._helper.pid
        if self._scarce:
            self._give_up("Unasked", f"the driver cannot be asked now: {self._scarce}")
        elif pid is not None and (how := suspension(pid)):
            self._give_up("Unasked", f"the process that asks the driver is {how}")
        elif not self._ready:
            self._give_up("Hung", "the process that asks the driver does not start")
        else:
            self._give_up("Hung", f"the driver did not answer for it within {self.limit:g} s")

    def _died(self, status: int | None) -> None:
        kind, how = "Crashed", ""
        if status is not None:
            how = f" (by signal {-status})" if status < 0 else f" (status {status})"
            if status in (-signal.SIGKILL, -signal.SIGTERM):
                kind = "Unasked"  # somebody, or the kernel for memory, killed it: no card did
        self._give_up(kind, f"the process that asked the driver died{how}")

    def _give_up(self, kind: str, text: str) -> None:
        self._helper.kill()
        if self._current:
            error = {"code": None, "kind": kind, "text": text}
            self._answer({**self._current.request, "error": error})
