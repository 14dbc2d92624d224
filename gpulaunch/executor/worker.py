"""The worker's process: from the executor's first word to its last. Runs in its own interpreter.

It serves one channel, which it finds among what it inherited; the executor's end of file is the
end. It prints nothing of its own. What it never does: look at cards; its environment names them.
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

from gpulaunch.executor.channel import ERROR, READY, RESULT, UNREADY, ChannelMessage, WorkerChannel

# Only names that no file in a working directory can stand for come before `sys.path` is set.
START = "import sys; sys.path[:] = sys.argv[2:]; from gpulaunch.executor.worker import main; main()"
GONE = 70


def main() -> None:
    with _adopt(int(sys.argv[1])) as link:
        _take_streams(link)
        _work(WorkerChannel(link))


def _work(channel: WorkerChannel) -> None:
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
    _serve(channel)


def _serve(channel: WorkerChannel) -> None:
    from gpulaunch.executor import transfer

    while (item := channel.receive()) is not None:
        try:
            function, args, kwargs = transfer.value_of(item)
            del item
            answer = transfer.message(RESULT, function(*args, **kwargs), to_worker=False)
        except BaseException as error:
            answer = _failure(ERROR, error)
        _send(channel, answer)
        # Nothing of an item is kept while the next one is waited for.
        function = args = kwargs = None
        del answer


def _failure(kind: bytes, error: BaseException) -> ChannelMessage:
    """The exception, and in plain text what it was in case it cannot be brought over."""
    from gpulaunch.executor import transfer

    lines = traceback.format_exception(type(error), error, _trimmed(error.__traceback__))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    error.__traceback__ = None
    told = (summary, "".join(lines))
    try:
        # On its own: what cannot be read at the other end must not take the text along.
        inner = transfer.message(kind, error, to_worker=False)
        return transfer.message(kind, (*told, bytes(inner.pickle), _copied(inner)), to_worker=False)
    except BaseException:
        return transfer.message(kind, (*told, None, ()), to_worker=False)


def _copied(message: ChannelMessage) -> list[bytearray]:
    return [bytearray(buffer) for buffer in message.buffers]


def _trimmed(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Without our own frame, as long as there is another."""
    return trace.tb_next if trace is not None and trace.tb_next is not None else trace


def _adopt(inode: int) -> socket.socket:
    """The channel, by its number in the kernel; out of the way, and for no program started here."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.fstat(int(name)).st_ino == inode and int(name) > 2:
                os.set_inheritable(int(name), False)
                return socket.socket(fileno=int(name))
    raise OSError(f"expected the executor's socket (inode {inode}) among the open files: not there")


def _take_streams(link: socket.socket) -> None:
    """The executor's own standard output, and a pipe to its standard error."""
    _, fds, _, _ = socket.recv_fds(link, 1, 2)
    for number, fd in zip((1, 2), fds, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if not faulthandler.is_enabled():
        faulthandler.enable(2)


def _send(channel: WorkerChannel, message: ChannelMessage) -> None:
    try:
        channel.send(message)
    except OSError:
        _leave()


def _leave() -> NoReturn:
    """Nobody listens any more: the executor is gone, or the function closed what is not its own."""
    with suppress(Exception):
        print("gpulaunch: the worker's connection to its executor is closed", file=sys.stderr)
        sys.stderr.flush()
    os._exit(GONE)
