"""Messages between the executor and one worker: a stream, and a line of small items.

    executor ── hello, large items ──▶ stream ──▶ worker ── stream ── ready, result, result, ... ──▶
    executor ── item, item, end of file ──▶ line ──▶ worker

A message is a kind, a pickle, and the buffers that the pickle leaves out (protocol 5). A large
buffer goes from the sender's memory into the kernel, and from there into the memory in which the
receiver uses it; it is copied nowhere else. Knows nothing of what is in a pickle.

The line is a socket of packets, one for each item. The kernel gives a packet to one reader alone,
the worker or the executor, which so takes an item back or learns that the worker has begun it. The
worker may read on while the executor looks through the line, so that a later item overtakes an
earlier one. So every item has a number, which its answer bears as well.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import socket
import struct
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

HELLO, ITEM, LARGE_ITEM = b"H", b"C", b"L"
READY, UNREADY, RESULT, ERROR = b"K", b"U", b"R", b"E"

Buffer: TypeAlias = "bytes | bytearray | memoryview"

_HEAD = struct.Struct("!cQQI")
_SIZE = struct.Struct("!Q")
LARGE = 1 << 20
"""Bytes from which received memory is mapped; below, that costs more than filling it with zeros."""
PACKET = 1 << 14
"""Bytes of a message up to which it is one packet on the line."""
_AHEAD = 1 << 14
"""Bytes that one system call reads of the stream, beyond what is asked for."""
_PARTS = 512
"""Buffers for one system call: the kernel takes 1,024 at most."""


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """One message. `buffers` are writable, in the order in which the pickle left them out.

    `number`: of the item that it is, or answers.
    """

    kind: bytes
    pickle: Buffer = b""
    buffers: Sequence[Buffer | mmap.mmap] = ()
    number: int = 0


class WorkerChannel:
    """One end of the stream. Both ends block; shutting the socket down wakes a blocked one."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._room = memoryview(bytearray(_AHEAD))
        self._read = self._room[:0]

    def send(self, message: ChannelMessage) -> None:
        """Send a message. Raises OSError when the other end is gone."""
        self._send_all(_parts(message))

    @property
    def received(self) -> bool:
        """Whether the next message, or a part of it, is here already."""
        return self._read.nbytes > 0

    def receive(self) -> ChannelMessage | None:
        """Return the next message; None at the end of file, also in the middle of a message."""
        return _message(self._exactly)

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
        """Return so many bytes in memory of their own; None where the stream ends before."""
        memory = _memory(size)
        view = memoryview(memory)
        while True:
            part = min(view.nbytes, self._read.nbytes)
            view[:part] = self._read[:part]
            view, self._read = view[part:], self._read[part:]
            if not view.nbytes:
                return memory
            try:
                if view.nbytes < _AHEAD:
                    count = self.link.recv_into(self._room)
                    self._read = self._room[:count]
                else:
                    count = self.link.recv_into(view, 0, socket.MSG_WAITALL)
                    view = view[count:]
            except ConnectionError:
                count = 0
            if not count:
                return None


class ItemLine:
    """The executor's end of the line, and its own copy of the worker's end."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lost: list[bytes] = []

    def put(self, message: ChannelMessage, wait: bool = True) -> bool:
        """Send a message as one packet; False where it is too large.

        False as well where it cannot be sent at once and `wait` is False; else raises OSError.
        """
        parts = list(_parts(message))
        if len(parts) > _PARTS or sum(part.nbytes for part in parts) > PACKET:
            return False
        flags = socket.MSG_NOSIGNAL | (0 if wait else socket.MSG_DONTWAIT)
        try:
            self._ours.sendmsg(parts, [], flags)
        except OSError as error:
            if wait and error.errno != errno.EMSGSIZE:  # a system with smaller buffers than usual
                raise
            return False
        return True

    def take_back(self, number: int) -> bool:
        """Take the item of this number back; False where the worker has it.

        The others go to the worker nevertheless, in their order.
        """
        drained = self._drain()
        packets = [packet for packet in drained if _number(packet) != number]
        found = len(packets) < len(drained)
        while packets:
            try:
                self._ours.send(packets[0], socket.MSG_NOSIGNAL)
            except OSError:  # it is shut: the worker can read no more
                break
            del packets[0]
        self._lost = packets
        return found

    def unread(self, number: int) -> bool:
        """Take all back; return whether the worker did not read the item of this number."""
        return any(_number(packet) == number for packet in self._drain())

    def _drain(self) -> list[bytes]:
        packets: list[bytes] = []
        with suppress(OSError):  # it is empty
            while packet := self.theirs.recv(PACKET, socket.MSG_DONTWAIT):
                packets.append(packet)
        packets += self._lost
        return packets

    def shut(self) -> None:
        """Let the worker read the end of file, after what is in the line."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()


class ItemReceiver:
    """The worker's side: items from the line, and those that are too large for it."""

    def __init__(self, line: socket.socket, channel: WorkerChannel) -> None:
        self._line = line
        self._channel = channel
        self._room = memoryview(bytearray(PACKET))

    def receive(self) -> ChannelMessage | None:
        """Return the next item; None at the end of file. Raises OSError."""
        packet = self._room[: self._take()]

        def exactly(size: int) -> bytearray | None:
            nonlocal packet
            part, packet = packet[:size], packet[size:]
            return bytearray(part) if part.nbytes == size else None

        message = _message(exactly)
        return self._channel.receive() if message and message.kind == LARGE_ITEM else message

    def _take(self) -> int:
        """Wait for a packet, take it, and return its size; 0 at the end of file.

        INVARIANT: what is taken was waited for in another call. A process that is killed while it
        waits may still finish the call: it would have taken an item that it never begins.
        """
        while self._line.recv(1, socket.MSG_PEEK):
            with suppress(BlockingIOError):  # it was taken back meanwhile
                return self._line.recv_into(self._room, 0, socket.MSG_DONTWAIT)
        return 0


def _number(packet: bytes) -> int:
    _, number, _, _ = _HEAD.unpack_from(packet)
    return int(number)


def _parts(message: ChannelMessage) -> Iterator[memoryview]:
    """Yield the message's bytes: head, sizes of the buffers, pickle, buffers."""
    buffers = [memoryview(buffer).cast("B") for buffer in message.buffers]
    pickle = memoryview(message.pickle).cast("B")
    head = _HEAD.pack(message.kind, message.number, pickle.nbytes, len(buffers))
    yield memoryview(head + b"".join(_SIZE.pack(buffer.nbytes) for buffer in buffers))
    yield pickle
    yield from buffers


def _message(exactly: Callable[[int], bytearray | mmap.mmap | None]) -> ChannelMessage | None:
    """Return the message that `exactly` reads, in memory of its own; None where it ends early."""
    head = exactly(_HEAD.size)
    if head is None:
        return None
    kind, number, size, count = _HEAD.unpack(head)
    sizes = exactly(count * _SIZE.size)
    pickle = exactly(size) if sizes is not None else None
    if sizes is None or pickle is None:
        return None
    buffers = []
    for (length,) in _SIZE.iter_unpack(sizes):
        buffer = exactly(length)
        if buffer is None:
            return None
        buffers.append(buffer)
    return ChannelMessage(kind, pickle, buffers, number)  # type: ignore[arg-type]


def _memory(size: int) -> bytearray | mmap.mmap:
    """Return writable memory. Large memory is mapped: not zeroed first, and given back at once."""
    if size < LARGE:
        return bytearray(size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
