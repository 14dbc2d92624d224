"""The executor's side of one worker: its process, its channel, and the thread that serves it.

    thread:  hello ─▶ ready ─▶ (take an item ─▶ send ─▶ send one ahead ─▶ result ─▶ future) ...
    manager: began ─▶ ... ─▶ ended (nothing of the process is left; the thread is woken)

The thread alone reads and writes the channel, and sends items. Only the manager speaks to keepers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulaunch.base.wording import signal_name
from gpulaunch.core.model import (
    AttemptId,
    Gpu,
    NotStarted,
    Outcome,
    exit_code_of,
    signal_of,
    status_of,
)
from gpulaunch.executor import transfer
from gpulaunch.executor.channel import (
    ITEM,
    LARGE_ITEM,
    READY,
    RESULT,
    UNREADY,
    ChannelMessage,
    ItemLine,
    WorkerChannel,
)
from gpulaunch.executor.future import (
    BrokenGpuExecutorError,
    GpuFuture,
    RemoteError,
    RemoteTraceback,
    WorkerDiedError,
)
from gpulaunch.executor.item_queue import Claim, Work, WorkItem

TAIL = 4096
"""Bytes of a worker's standard error that are kept."""
PASSED_ON = 3
"""Dead workers after which an item that none of them began fails all the same."""


class Streams:
    """A worker's streams: the executor's standard output, and a pipe to its standard error.

    `open`: whether the executor's process has these two. `tail`: the last of what the pipe passed.
    """

    def __init__(self, open: tuple[bool, bool] = (True, True)) -> None:
        self._out = _standard_output() if open[0] else _nowhere()
        self._passed_on = open[1]
        try:
            self._read, self._write = os.pipe2(os.O_CLOEXEC)
        except BaseException:
            os.close(self._out)
            raise
        os.set_blocking(self._read, False)
        self.tail = b""

    def fileno(self) -> int:
        return self._read

    def forward(self) -> bool:
        """Pass on what the pipe holds now; return False at its end."""
        while self._read >= 0:
            try:
                data = os.read(self._read, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.tail = (self.tail + data)[-TAIL:]
            with contextlib.suppress(OSError):  # a standard error that is closed, or full
                while data and self._passed_on:
                    data = data[os.write(2, data) :]
        return False

    def hand_over(self, link: socket.socket, line: socket.socket) -> None:
        """Send the streams to the worker, and close our copies: else the pipe would never end.

        `line`: the worker's end of the line, which goes with them.
        """
        socket.send_fds(link, [b"F"], [self._out, self._write, line.fileno()])
        self._drop()

    def close(self) -> None:
        self._drop()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1

    def _drop(self) -> None:
        for fd in (self._out, self._write):
            if fd >= 0:
                os.close(fd)
        self._out = self._write = -1


def _standard_output() -> int:
    try:
        return fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return _nowhere()  # closed since


def _nowhere() -> int:
    return os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What every worker is started with. `wait`: seconds for a first card, None: for ever.

    `streams`: whether the executor's process has a standard output and error. `most_items`: items
    after which a worker is replaced.
    """

    hello: ChannelMessage
    environ: Mapping[str, str] = field(repr=False)
    env: Mapping[str, str | None] = field(repr=False)
    cwd: str
    streams: tuple[bool, bool] = (True, True)
    per_gpu: int = 1
    cpus: int | None = None
    wait: float | None = None
    most_items: int | None = None


@dataclass(eq=False)
class WorkerHandle:
    """One worker. `tell` is called once by its thread, when it stops serving.

    With the error where the worker never became ready, else with None. `outcome` is known once
    `ended` is set. `unbegun`: the worker has not read its last item.
    """

    attempt: AttemptId
    gpu: Gpu
    plan: WorkerPlan
    work: Work
    tell: Callable[[WorkerHandle, UnreadyError | None], None]
    ended: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None
    unbegun: bool = False
    terminated: bool = False
    log: bytes = b""

    def __post_init__(self) -> None:
        self.streams = Streams(self.plan.streams)
        try:
            self.line = ItemLine()
        except BaseException:
            self.streams.close()
            raise
        try:
            ours, self.theirs = socket.socketpair()
        except BaseException:
            self.streams.close()
            self.line.close()
            raise
        self.claim = Claim(self.line, self.work.readmit)
        self.channel = WorkerChannel(ours)
        self.thread = threading.Thread(
            target=self._serve, name=f"gpulaunch-{self.attempt}", daemon=True
        )

    # ── The manager's ───────────────────────────────────────────────────────────────────────────

    def let_go(self) -> None:
        """Send the end of file, at which the process ends by itself, as any Python program does."""
        self._shut(socket.SHUT_WR)

    def end(self, outcome: Outcome) -> None:
        """Note the end of the worker's process, and wake its thread.

        What the worker sent before can still be read.
        """
        self.streams.forward()
        # Keepers still have the other end open, and so what the worker has not read can be seen.
        # Nothing may be sent after that check.
        self._shut(socket.SHUT_WR)
        self.unbegun = self.unbegun or self.channel.unread
        self.outcome = outcome
        self.ended.set()
        self._shut(socket.SHUT_RDWR)

    def discard(self) -> None:
        """Close all of a worker that was never launched."""
        self.theirs.close()
        self.close()
        self.streams.close()

    def close(self) -> None:
        self.claim.ahead.clear()
        self.channel.close()
        self.line.close()

    def _shut(self, how: int) -> None:
        self.line.shut()
        with contextlib.suppress(OSError):
            self.channel.link.shutdown(how)

    # ── Its thread's ────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        unready: UnreadyError | None = None
        try:
            unready = self._greet()
            if unready is None:
                self._serve_items()
        finally:
            self.claim.void = True
            self.tell(self, unready)
            self.ended.wait()
            self.close()

    def _greet(self) -> UnreadyError | None:
        try:
            self.streams.hand_over(self.channel.link, self.line.theirs)
        except OSError:
            self._shut(socket.SHUT_RDWR)
        self._send(self.plan.hello)
        answer = self._receive()
        if answer is not None and answer.kind == READY:
            return None
        if answer is not None and answer.kind == UNREADY:
            with contextlib.suppress(Exception):  # user code may have written to the channel
                summary, *_ = transfer.value_of(answer)
                return UnreadyError(f"its initializer failed: {summary}", _error_of(answer))
        self._shut(socket.SHUT_RDWR)
        self.ended.wait()
        return UnreadyError(f"it {self._how()} before it was ready{self._last_words()}")

    def _serve_items(self) -> None:
        """Run items until there is none for this worker any more, or it is gone."""
        left = self.plan.most_items or sys.maxsize
        running: WorkItem | None = None
        while running or left:
            if running is None:
                running = self.work.take(self.claim)
                if running is None:
                    return
                if not self._begin(running):
                    running = None
                    continue
            if not self.channel.received:  # else results that have come are told first
                self._send_ahead(left - 1)
            answer = self._receive()
            if answer is None:
                self._lose(running)
                return
            done, running = self.work.answered(self.claim, running, answer.number)
            for item in (done, running):
                if item:
                    item.future.gpu = self.gpu
            if done:
                left -= 1
                _settle(done.future, answer)
            done = item = answer = None  # nothing of an item is kept while the worker waits

    def _begin(self, item: WorkItem) -> bool:
        """Send the item; False where it cannot be, as its future has been told then."""
        item.future.gpu = self.gpu
        try:
            message = item.message or _message_of(item)
        except BaseException as error:
            self.work.over()
            item.future.set_exception(error)
            return False
        try:
            if not self.line.put(message):
                self.line.put(ChannelMessage(LARGE_ITEM, number=item.number))
                self._send(message)
        except OSError:
            self._break_off()
        return True

    def _send_ahead(self, most: int) -> None:
        """Send the items that the worker runs next, where there are some and they are small.

        `most`: how many it may have at most.
        """
        while len(self.claim.ahead) < most and (item := self.work.take_ahead(self.claim)):
            try:
                message = _message_of(item)
            except BaseException as error:
                if self.claim.take_back(item):
                    self.work.over()
                    if item.begin():
                        item.future.set_exception(error)
                continue
            if not self.claim.send(item, message):
                item.message = message
                self.work.readmit(item)

    def _send(self, message: ChannelMessage) -> None:
        """Send a message. Where that fails, `_receive` finds the channel shut."""
        try:
            self.channel.send(message)
        except (OSError, MemoryError):
            self._break_off()

    def _break_off(self) -> None:
        self.unbegun = True
        self._shut(socket.SHUT_RDWR)

    def _receive(self) -> ChannelMessage | None:
        """Return the worker's next message; None: none will come any more."""
        try:
            return self.channel.receive()
        except (OSError, MemoryError, OverflowError, ValueError):
            # Too large for memory, or no message: the worker finds its channel shut, and ends.
            self._shut(socket.SHUT_RDWR)
            return None

    def _lose(self, item: WorkItem) -> None:
        """Put the items of a dead worker back that it had not begun; let the others' futures fail.

        It has begun some that were ahead only where its result of the one before never came.
        """
        self.ended.wait()
        for waiting in reversed(list(self.claim.ahead)):
            if self.claim.take_back(waiting):
                self.work.readmit(waiting)
        while begun := self.claim.begun():
            self.work.over()
            begun.future.set_exception(self._death())
        unbegun = self.line.unread(item.number) or self.unbegun
        if not unbegun or item.passed_on >= PASSED_ON:
            self.work.over()
        elif self.work.put_back(item):
            return
        item.future.set_exception(self._death())

    def _death(self) -> Exception:
        assert self.outcome is not None
        if self.terminated:
            return BrokenGpuExecutorError("the executor's workers were terminated")
        where = f"the worker on card {self.gpu.index} ({self.gpu.uuid})"
        return WorkerDiedError(
            f"{where} {self._how()} while it ran this item; another one takes the next"
            f"{self._last_words()}",
            self.gpu,
            exit_code_of(self.outcome),
            signal_of(self.outcome),
            self._stderr_tail(),
        )

    def _how(self) -> str:
        outcome = self.outcome
        assert outcome is not None
        number, code = signal_of(outcome), exit_code_of(outcome)
        if number is not None:
            return f"was killed by {signal_name(number)}"
        if code is not None:
            return f"exited with status {code}"
        if isinstance(outcome, NotStarted):
            return f"could not be started ({outcome.error})"
        assert status_of(outcome) is None
        return "was lost with those that kept it"

    def _stderr_tail(self) -> str:
        return (self.log + self.streams.tail)[-TAIL:].decode("utf-8", "replace").strip()

    def _last_words(self) -> str:
        text = self._stderr_tail()
        return f"; the end of its standard error:\n{text}" if text else ", and said nothing"


class UnreadyError(Exception):
    """A worker never became ready; the cause is the initializer's own exception, if it raised."""

    def __init__(self, text: str, cause: BaseException | None = None) -> None:
        super().__init__(text)
        self.__cause__ = cause


def _message_of(item: WorkItem) -> ChannelMessage:
    """Return the item as it is sent. Raises whatever pickling it raises."""
    return transfer.message(ITEM, (item.function, item.args, item.kwargs), True, item.number)


def _settle(future: GpuFuture[Any], answer: ChannelMessage) -> None:
    """Set the future's result or exception from the answer.

    An answer that cannot be unpickled here fails this future alone.
    """
    try:
        result = transfer.value_of(answer) if answer.kind == RESULT else None
        error = None if answer.kind == RESULT else _error_of(answer)
    except BaseException as problem:
        result, error = None, problem
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _error_of(answer: ChannelMessage) -> BaseException:
    summary, text, pickled, buffers = transfer.value_of(answer)
    error: object = None
    why = ""
    if pickled is not None:
        try:
            error = transfer.value_of(ChannelMessage(answer.kind, pickled, buffers))
        except Exception as problem:
            why = f" (it cannot be brought here: {problem})"
    if not isinstance(error, BaseException):
        error = RemoteError(f"{summary}{why}")
    error.__cause__ = RemoteTraceback(text)
    return error
