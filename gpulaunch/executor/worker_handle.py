"""One worker as the executor has it: its process, its channel, and the thread that serves it.

    thread:  hello ─▶ ready ─▶ (take an item ─▶ send ─▶ result ─▶ future) ...
    manager: began ─▶ ... ─▶ ended (nothing of the process is left; the thread is woken)

The thread alone reads and writes the channel. Only the manager speaks to keepers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpulaunch.core.model import (
    AttemptId,
    Gpu,
    NotStarted,
    Outcome,
    exit_code_of,
    signal_of,
    status_of,
)
from gpulaunch.core.words import signal_name
from gpulaunch.executor import transfer
from gpulaunch.executor.channel import ITEM, READY, RESULT, UNREADY, ChannelMessage, WorkerChannel
from gpulaunch.executor.errors import (
    BrokenGpuExecutorError,
    RemoteError,
    RemoteTraceback,
    WorkerDiedError,
)
from gpulaunch.executor.future import GpuFuture
from gpulaunch.executor.work import Claim, Work, WorkItem

TAIL = 4096
PASSED_ON = 3


class Streams:
    """The executor's own standard output, and a pipe that ends at its standard error.

    `open`: whether its process has the one, and the other. `tail`: the last of what came by.
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
        """Pass on what is there. False at the end."""
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

    def hand_over(self, link: socket.socket) -> None:
        """To the worker; with our copies, the pipe would not end."""
        socket.send_fds(link, [b"F"], [self._out, self._write])
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


@dataclass(eq=False)
class WorkerHandle:
    """`open_streams`: whether the executor's process has a standard output, and a standard error.

    `tell` is called by its thread, once, when it has stopped serving: with why it never became
    ready, or with nothing. `outcome` stands when `ended` is set."""

    attempt: AttemptId
    gpu: Gpu
    hello: ChannelMessage
    most: int | None
    open_streams: tuple[bool, bool]
    work: Work
    tell: Callable[[WorkerHandle, UnreadyError | None], None]
    ticket: Claim = field(default_factory=Claim)
    ended: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None
    unbegun: bool = False
    terminated: bool = False
    log: bytes = b""

    def __post_init__(self) -> None:
        self.streams = Streams(self.open_streams)
        try:
            ours, self.theirs = socket.socketpair()
        except BaseException:
            self.streams.close()
            raise
        self.channel = WorkerChannel(ours)
        self.thread = threading.Thread(
            target=self._serve, name=f"gpulaunch-{self.attempt}", daemon=True
        )

    # ── The manager's ───────────────────────────────────────────────────────────────────────────

    def let_go(self) -> None:
        """The end of file: the process ends by itself, as any Python program does."""
        self._shut(socket.SHUT_WR)

    def end(self, outcome: Outcome) -> None:
        """Nothing of it is left. What it had sent before can still be read."""
        self.streams.forward()
        # Keepers still hold the other end, and with it what their worker has not read. Nothing
        # may be sent after the look.
        self._shut(socket.SHUT_WR)
        self.unbegun = self.unbegun or self.channel.unread
        self.outcome = outcome
        self.ended.set()
        self._shut(socket.SHUT_RDWR)

    def discard(self) -> None:
        """It was never launched."""
        self.theirs.close()
        self.channel.close()
        self.streams.close()

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self.channel.link.shutdown(how)

    # ── Its thread's ────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        unready: UnreadyError | None = None
        try:
            unready = self._greet()
            done = 0
            while unready is None and done != self.most:
                item = self.work.take(self.ticket)
                if item is None or not self._run(item):
                    break
                done += 1
                del item
        finally:
            self.ticket.void = True
            self.tell(self, unready)
            self.ended.wait()
            self.channel.close()

    def _greet(self) -> UnreadyError | None:
        try:
            self.streams.hand_over(self.channel.link)
        except OSError:
            self._shut(socket.SHUT_RDWR)
        self._send(self.hello)
        answer = self._receive()
        if answer is not None and answer.kind == READY:
            return None
        if answer is not None and answer.kind == UNREADY:
            summary, *_ = transfer.value_of(answer)
            return UnreadyError(f"its initializer failed: {summary}", _error_of(answer))
        self.ended.wait()
        return UnreadyError(f"it {self._how()} before it was ready{self._last_words()}")

    def _run(self, item: WorkItem) -> bool:
        """True where the worker can take another one."""
        future = item.future
        future.gpu = self.gpu
        try:
            message = transfer.message(
                ITEM, (item.function, item.args, item.kwargs), to_worker=True
            )
        except BaseException as error:
            self.work.over()
            future.set_exception(error)
            return True
        self._send(message)
        del message
        answer = self._receive()
        if answer is None:
            self._lose(item)
            return False
        self.work.over()
        _settle(future, answer)
        return True

    def _send(self, message: ChannelMessage) -> None:
        """The missing answer tells where it cannot be sent."""
        try:
            self.channel.send(message)
        except (OSError, MemoryError):
            self.unbegun = True
            self._shut(socket.SHUT_RDWR)

    def _receive(self) -> ChannelMessage | None:
        """None: nothing will come any more."""
        try:
            return self.channel.receive()
        except (OSError, MemoryError, OverflowError, ValueError):
            # No room for it, or no message at all: the worker finds its channel shut, and ends.
            self._shut(socket.SHUT_RDWR)
            return None

    def _lose(self, item: WorkItem) -> None:
        """The worker is dead. An item that it had not read is lost to nobody."""
        self.ended.wait()
        if not self.unbegun or item.passed_on >= PASSED_ON:
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
            self._said(),
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

    def _said(self) -> str:
        return (self.log + self.streams.tail)[-TAIL:].decode("utf-8", "replace").strip()

    def _last_words(self) -> str:
        said = self._said()
        return f"; the end of its standard error:\n{said}" if said else ", and said nothing"


class UnreadyError(Exception):
    """Why a worker never became ready; its cause is the initializer's own exception."""

    def __init__(self, text: str, cause: BaseException | None = None) -> None:
        super().__init__(text)
        self.__cause__ = cause


def _settle(future: GpuFuture[Any], answer: ChannelMessage) -> None:
    """What cannot be unpickled here fails this future, and no more."""
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
