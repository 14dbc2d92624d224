"""Messages between the executor and one worker, over a stream socket, strictly in turn.

    executor ── hello, item, item, end of file ──▶ worker ── ready, result, result, ... ──▶

A message is a kind, a pickle, and the buffers that the pickle leaves out (protocol 5). A buffer
goes from the sender's memory into the kernel, and from there into the memory in which the receiver
uses it; it is copied nowhere else. Knows nothing of what is in a pickle.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import socket
import struct
import termios
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

HELLO, ITEM = b"H", b"C"
READY, UNREADY, RESULT, ERROR = b"K", b"U", b"R", b"E"

Buffer: TypeAlias = "bytes | bytearray | memoryview"

_HEAD = struct.Struct("!cQI")
_SIZE = struct.Struct("!Q")
LARGE = 1 << 20
"""Bytes from which received memory is mapped; below, that costs more than filling it with zeros."""
_PARTS = 512
"""Buffers for one system call: the kernel takes 1,024 at most."""


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """One message. `buffers` are writable, in the order in which the pickle left them out."""

    kind: bytes
    pickle: Buffer = b""
    buffers: Sequence[Buffer | mmap.mmap] = ()


class WorkerChannel:
    """One end of the channel. Both ends block; shutting the socket down wakes a blocked one."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link

    def send(self, message: ChannelMessage) -> None:
        """Send a message. Raises OSError when the other end is gone."""
        parts = [memoryview(message.pickle).cast("B")]
        parts += [memoryview(buffer).cast("B") for buffer in message.buffers]
        head = _HEAD.pack(message.kind, parts[0].nbytes, len(parts) - 1)
        sizes = b"".join(_SIZE.pack(part.nbytes) for part in parts[1:])
        self._send_all(itertools.chain([memoryview(head + sizes)], parts))

    def receive(self) -> ChannelMessage | None:
        """Return the next message; None at the end of file, also in the middle of a message."""
        head = self._exactly(_HEAD.size)
        if head is None:
            return None
        kind, size, count = _HEAD.unpack(head)
        sizes = self._exactly(count * _SIZE.size)
        pickle = self._exactly(size) if sizes is not None else None
        if sizes is None or pickle is None:
            return None
        buffers = []
        for (length,) in _SIZE.iter_unpack(sizes):
            buffer = self._exactly(length)
            if buffer is None:
                return None
            buffers.append(buffer)
        return ChannelMessage(kind, pickle, buffers)  # type: ignore[arg-type]

    @property
    def unread(self) -> bool:
        """Whether the other end has not read all that was sent."""
        count = bytearray(4)
        try:
            fcntl.ioctl(self.link, termios.TIOCOUTQ, count)  # SIOCOUTQ, unix(7)
        except OSError:
            return False
        return any(count)

    def close(self) -> None:
        self.link.close()

    def _send_all(self, parts: Iterable[memoryview]) -> None:
        waiting = [part for part in parts if part.nbytes]
        while waiting:
            sent = self.link.sendmsg(waiting[:_PARTS], [], socket.MSG_NOSIGNAL)
            done = 0
            while done < len(waiting) and sent >= waiting[done].nbytes:
                sent -= waiting[done].nbytes
                done += 1
            del waiting[:done]
            if sent:
                waiting[0] = waiting[0][sent:]

    def _exactly(self, size: int) -> bytearray | mmap.mmap | None:
        memory = _memory(size)
        view = memoryview(memory)
        while view.nbytes:
            try:
                count = self.link.recv_into(view, 0, socket.MSG_WAITALL)
            except ConnectionError:
                count = 0
            if not count:
                return None
            view = view[count:]
        return memory


def _memory(size: int) -> bytearray | mmap.mmap:
    """Return writable memory. Large memory is mapped: not zeroed first, and given back at once."""
    if size < LARGE:
        return bytearray(size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
