"""The worker's process: takes items from the executor and returns results, in its own interpreter.

It serves a channel, a socket that it inherited, and the line of items that came by it, until their
end of file. It prints nothing of its own, and never looks at cards: its environment names them.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import traceback
import types
from contextlib import suppress
from typing import NoReturn

from gpulaunch.executor.channel import (
    ERROR,
    READY,
    RESULT,
    UNREADY,
    ChannelMessage,
    ItemReceiver,
    WorkerChannel,
)

# Before `sys.path` is set, only modules are imported that no file in the directory can replace.
START = "import sys; sys.path[:] = sys.argv[2:]; from gpulaunch.executor.worker import main; main()"
GONE = 70
"""The exit status of a worker whose channel is closed."""


def main() -> None:
    with _adopt(int(sys.argv[1])) as link, _take_streams(link) as line:
        channel = WorkerChannel(link)
        _work(channel, ItemReceiver(line, channel))


def _work(channel: WorkerChannel, items: ItemReceiver) -> None:
    from gpulaunch.executor import transfer

    hello = channel.receive()
    if hello is None:
        return
    # Functions of the caller's `__main__` have this one as their globals.
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        sys.argv[:], initializer, initargs = transfer.value_of(hello)
        if initializer is not None:
            initializer(*initargs)
    except BaseException as error:
        _send(channel, _failure(UNREADY, error))
        return
    del hello, initializer, initargs
    _send(channel, ChannelMessage(READY))
    _serve(channel, items)


def _serve(channel: WorkerChannel, items: ItemReceiver) -> None:
    from gpulaunch.executor import transfer

    while (item := items.receive()) is not None:
        number = item.number
        try:
            function, args, kwargs = transfer.value_of(item)
            del item
            answer = transfer.message(RESULT, function(*args, **kwargs), False, number)
        except BaseException as error:
            answer = _failure(ERROR, error, number)
        _send(channel, answer)
        # No part of an item is kept while the worker waits for the next one.
        function = args = kwargs = None
        del answer


def _failure(kind: bytes, error: BaseException, number: int = 0) -> ChannelMessage:
    """Return a message with the exception, and with its text in case it cannot be unpickled."""
    from gpulaunch.executor import transfer

    lines = traceback.format_exception(type(error), error, _trimmed(error.__traceback__))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    error.__traceback__ = None
    texts = (summary, "".join(lines))
    try:
        # A pickle of its own: if it cannot be read at the other end, the texts still can.
        inner = transfer.message(kind, error, to_worker=False)
        parts = (*texts, bytes(inner.pickle), [bytearray(one) for one in inner.buffers])
        return transfer.message(kind, parts, False, number)
    except BaseException:
        return transfer.message(kind, (*texts, None, ()), False, number)


def _trimmed(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback without this module's frame, unless it has no other."""
    return trace.tb_next if trace is not None and trace.tb_next is not None else trace


def _adopt(inode: int) -> socket.socket:
    """Return the inherited socket with this inode number, made close-on-exec."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.fstat(int(name)).st_ino == inode and int(name) > 2:
                os.set_inheritable(int(name), False)
                return socket.socket(fileno=int(name))
    raise OSError(f"expected the executor's socket (inode {inode}) among the open files: not there")


def _take_streams(link: socket.socket) -> socket.socket:
    """Receive and install the executor's standard output and a pipe to its standard error.

    Return the line, which comes with them.
    """
    _, (*fds, line), _, _ = socket.recv_fds(link, 1, 3)
    os.set_inheritable(line, False)
    for number, fd in zip((1, 2), fds, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if not faulthandler.is_enabled():
        faulthandler.enable(2)
    return socket.socket(fileno=line)


def _send(channel: WorkerChannel, message: ChannelMessage) -> None:
    try:
        channel.send(message)
    except OSError:
        _leave()


def _leave() -> NoReturn:
    """Exit, as the channel is closed: the executor is gone, or the function closed the socket."""
    with suppress(Exception):
        print("gpulaunch: the worker's connection to its executor is closed", file=sys.stderr)
        sys.stderr.flush()
    os._exit(GONE)
