"""What passes between processes, and between machines: the one place for its form.

Bytes travel in JSON as Latin-1, one character each, so that any name of a file survives;
descriptors travel beside messages. To keepers a message is fields, each with a NUL at its end, the
first of which says what is asked; a list is a count and its fields. From keepers it is one JSON
object. The record of an end:

    <crc32, 8 hex digits> <one JSON object>\\n<NULs up to END_SIZE, allocated at launch>
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import json
import math
import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence

TYPE_CHECKING = False  # `typing` itself would be a tenth of what every fork of a keeper copies
if TYPE_CHECKING:
    from typing import IO as IO
    from typing import Any as Any
else:  # for annotations, which are never evaluated here
    IO = Any = object

PROTOCOL = 6  # of what keepers are told; one that does not know it exits
UNKNOWN_PROTOCOL = 64  # with this status
MAX_MESSAGE = 60_000  # bytes of a message to keepers; a longer one is in a file without a name
MAX_DESCRIPTORS = 253  # descriptors that a message brings (SCM_MAX_FD)
END_SIZE = 8192  # bytes allocated for the record of an end before the job starts
DIGITS = 18  # of a number in a message, at most: each fits into 64 bits
NO_SPACE = "no_space"  # the kind of an error: the disk was full, and nothing was run


# ── Bytes in JSON ───────────────────────────────────────────────────────────────────────────────


def coded(value: str | bytes) -> str:
    """Return the kernel's bytes of a text, a character each."""
    if isinstance(value, str) and value.isascii():
        return value
    return os.fsencode(value).decode("latin-1")


def coded_all(values: Iterable[Any]) -> list[str]:
    """Return each text or name of a file as `coded` does."""
    values = list(values)
    return values if _are_ascii(values) else [coded(value) for value in values]


def coded_dict(values: Mapping[Any, Any]) -> dict[str, str]:
    if _are_ascii(values) and _are_ascii(values.values()):
        return dict(values)
    return {coded(name): coded(value) for name, value in values.items()}


def _are_ascii(values: Iterable[Any]) -> bool:
    """Tell whether all are texts of ASCII alone, which stay as they are."""
    try:
        return "".join(values).isascii()
    except TypeError:
        return False


def raw(value: object) -> bytes:
    """Return the bytes that came as characters."""
    return str(value).encode("latin-1")


def coded_text(text: str) -> str:
    """Return the characters that stand for a text's bytes in UTF-8, whatever the locale."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


def raw_all(values: Any) -> list[bytes]:
    return [raw(value) for value in values]


def raw_dict(values: Any) -> dict[bytes, bytes]:
    return {raw(name): raw(value) for name, value in values.items()}


def decoded(value: object) -> str:
    """Return the text that was coded, as this interpreter names files."""
    return os.fsdecode(raw(value))


def shown(value: bytes) -> str:
    """Return bytes as people read them."""
    return value.decode("utf-8", "replace")


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


def send_bytes(link: socket.socket, data: bytes, fds: Sequence[int], flags: int) -> None:
    rights = struct.pack(f"{len(fds)}i", *fds)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
    link.sendmsg([data], ancillary, flags)


def packed(*fields: str) -> bytes:
    """Return a message to keepers, of fields whose characters are bytes."""
    return "\0".join([*fields, ""]).encode("latin-1")


def counted(values: Sequence[str]) -> list[str]:
    """Return the fields that say a list."""
    return [str(len(values)), *values]


def send_fields(link: socket.socket, data: bytes, fds: Sequence[int] = (), flags: int = 0) -> None:
    """Send a message to keepers, or the file that holds it. Raises OSError."""
    if len(data) <= MAX_MESSAGE:
        send_bytes(link, data, fds, flags)
        return
    with memory_file("launch") as file:
        file.write(data)
        file.flush()
        send_bytes(link, packed("file"), [file.fileno(), *fds], flags)


class MessageFields:
    """A message to keepers, taken field by field; one that is missing is empty.

    `wrong`: one was missing. Numbers are read as the compiled keepers do: of digits alone.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        *left, self._rest = data.split(b"\0")
        self._left = left[::-1]
        self.wrong = False

    @property
    def whole(self) -> bool:
        """Whether no field was missing, and none is left."""
        return not (self.wrong or self._left or self._rest)

    def next(self) -> bytes:
        if self._left:
            return self._left.pop()
        self.wrong = True
        return b""

    def text(self) -> str:
        return self.next().decode("utf-8", "surrogateescape")

    def flag(self) -> bool:
        return self.next() == b"1"

    def limit(self) -> int | None:
        """Return a number; None where the field is empty. Raises ValueError."""
        field = self.next()
        return number_of(field) if field else None

    def seconds(self) -> float | None:
        """Return seconds; None where the field is empty. Raises ValueError."""
        field = self.next()
        return seconds_of(field) if field else None

    def many(self) -> list[bytes]:
        """Return a list. Raises ValueError where it has not as many fields as it says."""
        count = number_of(self.next())
        if count > len(self._left):
            raise ValueError(f"expected {count} fields, found {len(self._left)}")
        return [self.next() for _ in range(count)]

    def rest(self) -> bytes:
        """Return the fields that are left, as a message."""
        return b"\0".join([*reversed(self._left), b""])


def number_of(field: bytes) -> int:
    if field.isdigit() and len(field) <= DIGITS:
        return int(field)
    raise ValueError(f"expected a number, found {field!r}")


def seconds_of(field: bytes) -> float:
    plain = field[:1].isdigit() and not field.translate(None, b"0123456789.e+-")
    seconds = float(field) if plain else math.inf
    if seconds == math.inf:
        raise ValueError(f"expected seconds, found {field!r}")
    return seconds


def receive_fields(link: socket.socket) -> tuple[MessageFields | None, list[int]]:
    """Return the next message and its descriptors; None when nobody is at the other end.

    A peer that died with unread messages of ours shows as ECONNRESET, not as an end of file.
    Raises OSError.
    """
    try:
        data, fds = receive(link)
    except ConnectionError:
        return None, []
    if data == packed("file"):
        if not fds:  # the kernel dropped it
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        data = read_whole(fds[0])
        os.close(fds.pop(0))
    return (MessageFields(data) if data else None), fds


def peer(link: socket.socket) -> tuple[int, int]:
    """Return the PID (0: in another PID namespace) and user id at a connection's other end.

    For a connection to a listening socket, these are of the process that called listen last, for a
    pair of the one that made it (SO_PEERCRED, unix(7)).
    """
    size = struct.calcsize("iII")
    pid, uid, _ = struct.unpack("iII", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def receive(
    link: socket.socket, size: int = 65536, most: int = MAX_DESCRIPTORS
) -> tuple[bytes, list[int]]:
    """Receive up to `size` bytes and up to `most` descriptors, which are close-on-exec.

    Stands for socket.recv_fds, whose flags Python 3.11 ignores. Raises OSError.
    """
    data, ancillary, _, _ = link.recvmsg(size, socket.CMSG_LEN(4 * most), socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.extend(memoryview(payload[: len(payload) // 4 * 4]).cast("i"))
    return data, fds


class KeeperChannel:
    """The keepers' end of a SEQPACKET pair."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)

    def receive(self) -> tuple[MessageFields | None, list[int]]:
        """Return the next message and its descriptors; None when the supervisor is gone."""
        return receive_fields(self.socket)

    def send(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone; the end is in its file
            self.socket.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)


# ── Files ───────────────────────────────────────────────────────────────────────────────────────


def memory_file(name: str) -> IO[bytes]:
    """Open a file without a name that is never on a disk."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create(f"gpulaunch-{name}"), "w+b")
    import tempfile  # built for an old glibc

    return tempfile.TemporaryFile(dir="/dev/shm")


def read_whole(fd: int) -> bytes:
    """Return what a file holds. Does not move its position: several processes may read it."""
    data, size = b"", os.fstat(fd).st_size
    while len(data) < size:
        data += os.pread(fd, size - len(data), len(data))
    return data


def read_spec(fd: int) -> dict[str, Any]:
    """Return what a preload server is to do."""
    value: dict[str, Any] = json.loads(read_whole(fd))
    return value


# ── The end of an attempt ───────────────────────────────────────────────────────────────────────


def end_record(attempt: str, **known: object) -> dict[str, Any]:
    """Return the record of an end: what is known of it, the rest as for no process at all."""
    return {
        "attempt": attempt,
        "pid": None,
        "status": None,
        "cause": None,
        "by": "",
        "seconds": None,
        "missing": [],
        "error": None,
        "kind": None,
        "leftovers": 0,
        "oom_kills": 0,
        "started": None,
        "ended": (time.monotonic(), time.time()),
        "warned": None,
        **known,
    }


def end_line(record: Mapping[str, object]) -> bytes:
    line = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (binascii.crc32(line), line)


def line_of_end(data: bytes) -> bytes | None:
    """Return the record's JSON from what its file holds; None if it is not written, or torn."""
    line, newline, _ = data.partition(b"\n")
    checksum, _, record = line.partition(b" ")
    return record if newline and checksum == b"%08x" % binascii.crc32(record) else None
