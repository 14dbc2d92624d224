"""Splits a journal's bytes into lines, and finds which are damaged and which are missing.

Knows no fact. INVARIANT: no part of a line whose checksum is wrong is ever used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct

from gpulaunch.journal import codec
from gpulaunch.shapes import UnknownKindError

T = TypeVar("T")
LINE_BYTES = 256 << 20
"""Bytes of a line that is read, at most: of a longer one, nothing is kept."""
_STRANGE_BYTES = 1 << 20
"""The same for what does not begin as a line does."""


class Damage(Struct, frozen=True):
    """Lines `first` to `last` are missing or not what was written (`last` before `first`: none).

    `byte` is where the damage begins, `why` what was found there. `torn`: it is the file's end,
    which may be a line that is just being written.
    """

    first: int
    last: int
    byte: int
    why: str
    torn: bool = False

    @property
    def lost(self) -> bool:
        return self.last >= self.first


class Foreign(Struct, frozen=True):
    """A line by another `version` of gpulaunch holds `what`, which this version does not know."""

    line: int
    byte: int
    version: str
    what: str

    @property
    def lost(self) -> bool:
        return True


Fault: TypeAlias = Damage | Foreign
"""A reason why facts of a journal are missing."""


@dataclass(slots=True)
class Splitter(Generic[T]):
    """Cuts bytes into lines as they come in; `parse` returns a line's number and value.

    `lines` is the number of the last line. INVARIANT: `end` is the offset behind the last line
    that was handled; `rest`, the bytes of an unfinished line, starts there.
    """

    parse: Callable[[bytes], tuple[int, T]]
    faults: list[Fault] = field(default_factory=list)
    lines: int = 0
    end: int = 0
    rest: bytearray = field(default_factory=bytearray)
    version: str = ""
    _bad: int = 0  # lines since the last right one
    _first_bad: tuple[int, str] = (0, "")
    _gap: bool = False
    _why_unread: str = ""
    _too_long: bool = False  # the line that `end` is in

    def feed(self, data: bytes) -> list[tuple[T, bool]]:
        """Return the values of the lines that `data` completes, but of a bad last one.

        True beside a value: lines before it are missing.
        """
        if self._too_long:
            data = self._behind_the_long_line(data)
        if b"\n" not in data and b"\n" not in self.rest[-1:]:
            self._keep(data)
            return []
        data = bytes(self.rest) + data
        values: list[tuple[T, bool]] = []
        start = 0
        while (stop := data.find(b"\n", start)) >= 0:
            line = data[start:stop]
            try:
                number, value = self.parse(line)
            except codec.BadLineError as error:
                self._why_unread = str(error)
                if stop + 1 == len(data):
                    break  # nothing follows (yet): torn, or still being written
                self._note_bad(str(error))
            except UnknownKindError as error:
                self._note_foreign(line, str(error))
            else:
                if self._counts(number):
                    values.append((value, self._gap))
                    self._gap = False
            self.end += stop + 1 - start
            start = stop + 1
        self.rest.clear()
        self._keep(data[start:])
        return values

    def _keep(self, data: bytes) -> None:
        """Keep the beginning of a line until the line is whole, unless the line is too long."""
        self.rest += data
        most = LINE_BYTES if self.rest.startswith(codec.HEAD) else _STRANGE_BYTES
        if len(self.rest) > most and b"\n" not in self.rest[-1:]:
            self._note_bad(f"it has more than {most >> 20} MiB")
            self.end += len(self.rest)
            self._too_long = True
            self.rest.clear()

    def _behind_the_long_line(self, data: bytes) -> bytes:
        """Return the part of the data that belongs to the next line."""
        before, newline, behind = data.partition(b"\n")
        self.end += len(before) + len(newline)
        self._too_long = not newline
        return behind

    def finish(self) -> None:
        """Note the end of the file: an unread last line is damage, an unfinished one is torn."""
        if self.rest.endswith(b"\n"):
            self._note_bad(self._why_unread)
            self.end += len(self.rest)
            self.rest.clear()
        if self._bad:
            self._note_lost(self.lines + self._bad)
        if self.rest:
            at = self.lines + 1
            self.faults.append(Damage(at, at, self.end, "it is cut off", torn=True))

    def _counts(self, number: int) -> bool:
        """Note a right line of this number and any gap before it; return whether it is used."""
        if number <= self.lines:
            why = f"line {number:,} stands behind line {self.lines:,}"
            self.faults.append(Damage(self.lines + 1, self.lines, self.end, why))
            return False
        if self._bad or number > self.lines + 1:
            self._note_lost(number - 1)
        self.lines = number
        return True

    def _note_bad(self, why: str) -> None:
        if not self._bad:
            self._first_bad = self.end, why
        self._bad += 1

    def _note_lost(self, last: int) -> None:
        """Note that the lines up to this number are missing."""
        byte, why = self._first_bad if self._bad else (self.end, "it is not there")
        found = Damage(self.lines + 1, last, byte, why)
        self.faults.append(found)
        self._gap = self._gap or found.lost
        self._bad, self.lines = 0, last

    def _note_foreign(self, line: bytes, what: str) -> None:
        number = codec.check(line)
        if self._counts(number):
            version = codec.from_json(line).get("version") or self.version
            self.faults.append(Foreign(number, self.end, str(version), what))
            self._gap = True
