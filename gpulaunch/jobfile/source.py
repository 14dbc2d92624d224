"""Reads and decodes the text of a job file, and shows its lines.

    path ──read──▶ bytes ──decode──▶ JobFileText ──tree──▶ YamlNode (each knows line and column)

Owns the limits that keep a hostile file cheap. Never interprets what the text says. Also says what
`foreach:` rests on, and what of it counts while a run follows it (`run --follow`).
"""

from __future__ import annotations

import os
import re
import stat
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

from msgspec import Struct

from gpulaunch.base.errors import NOWHERE, JobFileError, Mistake, UsageError
from gpulaunch.base.files import is_nowhere, read_at_most
from gpulaunch.jobfile.suggest import did_you_mean

MAX_BYTES = 64 << 20

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_LIST_BREAK = re.compile("\r\n|[\n\r]")
_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ADDRESS = re.compile(r"""\bto["']?\s*:\s*["']?[A-Za-z][A-Za-z0-9+.-]*://""")
_MAX_LINE_SHOWN = 100
_MAX_LINE_CHARACTERS = 1000
_LOOKED_AT = 1000
"""Entries of a directory that are searched for a file of nearly the same name."""


class JobFileText(Struct, frozen=True, dict=True):
    """A job file's text. `name` is how messages call it, `base` where its relative paths start.

    `what` it is: configuration is read in the same way. `is_list`: no YAML, but a command a line.
    """

    name: str
    base: Path
    data: bytes
    text: str
    what: str = "a job file"
    is_list: bool = False

    def __repr__(self) -> str:
        """Show the name alone: the text may hold secrets."""
        return f"JobFileText({self.name!r})"

    @cached_property
    def lines(self) -> list[str]:
        return (_LIST_BREAK if self.is_list else _LINE_BREAK).split(self.text)

    def line(self, number: int) -> str:
        """Return a line, counted from 0; empty behind the last."""
        return self.lines[number] if number < len(self.lines) else ""

    def mistake(
        self, line: int, column: int, message: str, field: str = "", shown: bool = True
    ) -> Mistake:
        """Return a mistake at a place: `name:12:7: field: message` (from 1 in print, from 0 here).

        `shown`: False where the line is nobody's to read. One with an address to tell never is.
        """
        text = self.line(line) if shown else ""
        if _ADDRESS.search(text):
            text = ""
        whole = f"{field}: {message}" if field else message
        block = pointed(self.name, line, column, whole, text)
        return Mistake(block, message, self.name, line + 1, column + 1, field)


def pointed(name: str, line: int, column: int, message: str, text: str) -> str:
    """Return a mistake as `JobFileText.point`, for a given line; leaves a blank line out."""
    head = f"{_one_line(name)}:{line + 1}:{column + 1}: {_one_line(message)}"
    if not text.strip():
        return head
    shown, caret = _excerpt(text, column)
    return f"{head}\n    {shown}\n    {' ' * caret}^"


def _one_line(message: str) -> str:
    """Return a file's or an item's name made safe for a terminal."""
    cut = message
    if len(cut) > _MAX_LINE_CHARACTERS:
        cut = f"{cut[: _MAX_LINE_CHARACTERS - 3]}..."
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def _excerpt(line: str, column: int) -> tuple[str, int]:
    """Return at most `_MAX_LINE_SHOWN` characters around the column, safe for a terminal."""
    start = 0 if column < _MAX_LINE_SHOWN - 10 else column - _MAX_LINE_SHOWN // 2
    cut = line[start : start + _MAX_LINE_SHOWN]
    clean = "".join(c if c.isprintable() else " " for c in cut)
    head = "… " if start else ""
    tail = " …" if start + _MAX_LINE_SHOWN < len(line) else ""
    return head + clean.rstrip() + tail, column - start + len(head)


def open_regular(path: Path, what: str) -> BinaryIO:
    """Open a regular file for reading. Raises UsageError with one line for anything else.

    The kind is looked at on the opened descriptor, so that nothing can be put in its place; and
    O_NONBLOCK lets the open of a FIFO nobody writes to return.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise UsageError(_cannot_open(path, what, error)) from None
    except ValueError:
        raise UsageError(f"{what} {str(path)!r}: a NUL character cannot be in a path") from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise UsageError(f"{path}: {kind}; expected {what}")
    return os.fdopen(fd, "rb")


def read_bytes(path: Path, what: str, limit: int = MAX_BYTES) -> bytes:
    """Return a regular file's bytes. Raises UsageError, also if there are too many."""
    with open_regular(path, what) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UsageError(f"{path}: {size:,} bytes; {what} may have at most {limit:,}")
        try:
            data = read_at_most(file, limit + 1) or b""  # None: one of /proc that would block
        except OSError as error:
            raise UsageError(_cannot_open(path, what, error)) from None
    if len(data) > limit:
        raise UsageError(f"{path}: {what} may have at most {limit:,} bytes")
    return data


def _cannot_open(path: Path, what: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        if not path.is_absolute() and is_nowhere():
            return NOWHERE
        return f"{path}: no such file; expected {what}{_near(path)}"
    if isinstance(error, PermissionError):
        return f"{path}: permission denied; expected {what} that this user may read"
    return f"{path}: cannot be read: {error.strerror}"


def _near(path: Path) -> str:
    """Return `; did you mean a.yaml?` if a file beside it has nearly that name; else ""."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, _LOOKED_AT) if entry.is_file()]
    except (OSError, ValueError):
        return ""
    alike = [name for name in names if Path(name).stem == path.stem and _is_yaml(name)]
    if len(alike) == 1:
        return f"; did you mean {_one_line(alike[0])}?"
    endings = (".yaml", ".yml", path.suffix) if path.suffix == ".txt" else (".yaml", ".yml")
    return did_you_mean(path.name, [name for name in names if name.endswith(endings)], alike=0.74)


def _is_yaml(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def decode(data: bytes, name: str) -> str:
    """Return the text of UTF-8 bytes, without a byte order mark. Raises JobFileError."""
    if len(data) > MAX_BYTES:
        raise _unread(name, f"{len(data):,} bytes; at most {MAX_BYTES:,} are read")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unread(name, "this is UTF-16 text; save it as UTF-8")
    zero = data.find(b"\0")
    if zero >= 0:
        message = "a NUL byte; this is to be text, is it binary?"
        raise _unread(name, message, _place(data, zero))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        message = f"byte 0x{byte:02x} is not UTF-8 (Latin-1 text?); save the file as UTF-8"
        raise _unread(name, message, _place(error.object, error.start)) from None
    odd = _NOT_TEXT.search(text)
    if odd:
        where = _place(text.encode(), len(text[: odd.start()].encode()))
        message = f"control character U+{ord(odd.group()):04X}; this is to be plain text"
        raise _unread(name, message, where)
    return text


def _unread(name: str, message: str, place: tuple[int, int] | None = None) -> JobFileError:
    """Return an error with the mistake that ended reading; its line is no text to show."""
    if place is None:
        return JobFileError([Mistake(f"{name}: {message}", message, name)])
    text = f"{name}:{place[0]}:{place[1]}: {message}"
    return JobFileError([Mistake(text, message, name, *place)])


def _place(data: bytes, offset: int) -> tuple[int, int]:
    line = data.count(b"\n", 0, offset) + 1
    start = data.rfind(b"\n", 0, offset) + 1
    column = len(data[start:offset].decode("utf-8", "replace")) + 1
    return line, column


# ── Sources of `foreach:` ─────────────────────────────────────────────────────────────────────────


class ForeachSource(Struct, frozen=True):
    """A glob below the directory `base`, or (`file`) a list of items by its absolute path."""

    pattern: str
    base: str
    file: bool = False


class Counting(Protocol):
    """Says which files count: those that are not half-written. Whoever watches them makes this."""

    def counts(self, path: str) -> bool:
        """Tell whether a glob's match, an absolute path, is an item."""

    def whole(self, path: str, size: int) -> bool:
        """Tell whether the last line or record of a list of so many bytes is an item too."""


class NothingYet:
    """A Counting by which nothing counts: for a first look at a file, to learn its sources."""

    def counts(self, path: str) -> bool:
        return False

    def whole(self, path: str, size: int) -> bool:
        return False


class Following(Struct, frozen=True):
    """How a job file is read for a run that follows its sources. `counting`: what counts.

    `more`: further items may come. Until then a job that waits for all of them is left out.
    """

    counting: Counting
    more: bool = True
