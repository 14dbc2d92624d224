"""Reading `events.jsonl`: whole, as a state, or as it grows. Never changes the file.

What ends the file without being a whole, right line is the torn tail of a write that was cut
short: it is left out (or waited for, while the run lives). Such a line with anything after it is
damage, and is refused: a run must not go on from a past that was changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from gpulaunch import __version__
from gpulaunch.core.facts import Fact, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant
from gpulaunch.errors import UsageError
from gpulaunch.journal import codec
from gpulaunch.journal.shapes import UnknownKindError
from gpulaunch.journal.watch import HasFileno, Watch

_CHUNK = 1 << 20

T = TypeVar("T")


class DamagedJournalError(UsageError):
    """A line of the journal is not what was written, or this version cannot understand it."""


@dataclass(frozen=True, slots=True)
class Scan:
    """How many whole lines there are, and where the last of them ends, in bytes."""

    lines: int
    end: int


@dataclass(slots=True)
class Splitter(Generic[T]):
    """Cuts what comes in into lines; `parse` gives a line's number and value.

    INVARIANT: `end` is the offset behind the last line that was right; `rest` starts there.
    """

    path: Path
    parse: Callable[[bytes], tuple[int, T]]
    lines: int = 0
    end: int = 0
    rest: bytes = b""
    version: str = ""

    def feed(self, data: bytes) -> list[T]:
        """The lines that `data` completes, but a bad last one. Raises DamagedJournalError."""
        data = self.rest + data
        values: list[T] = []
        start = 0
        while (stop := data.find(b"\n", start)) >= 0:
            line = data[start:stop]
            try:
                values.append(self._line(line))
            except codec.BadLineError as error:
                if stop + 1 == len(data):
                    break  # nothing follows (yet): torn, or still being written
                raise self._damaged(str(error)) from None
            except UnknownKindError as error:
                raise self._foreign(line, error) from None
            self.lines += 1
            self.end += stop + 1 - start
            start = stop + 1
        self.rest = data[start:]
        return values

    def _line(self, line: bytes) -> T:
        number, value = self.parse(line)
        if number != self.lines + 1:
            raise self._damaged(f"it is numbered {number}")
        return value

    def _damaged(self, what: str) -> DamagedJournalError:
        return DamagedJournalError(
            f"{self.path}: line {self.lines + 1} (byte {self.end}) is damaged: {what}."
            " The file was changed or lost data: bring back a copy of it, or start afresh with"
            " gpulaunch run --new"
        )

    def _foreign(self, line: bytes, error: UnknownKindError) -> DamagedJournalError:
        version = json.loads(line).get("version") or self.version or "of another version"
        return DamagedJournalError(
            f"{self.path}: line {self.lines + 1} (byte {self.end}) was written by gpulaunch"
            f" {version} and holds {error}, which this gpulaunch {__version__} does not know:"
            " use that version, or a newer one"
        )


class _Facts(Splitter[codec.Line]):
    """The facts of the lines; remembers which version wrote them."""

    __slots__ = ()

    def __init__(self, path: Path) -> None:
        super().__init__(path, self._decode)

    def _decode(self, line: bytes) -> tuple[int, codec.Line]:
        read = codec.decode(line)
        if type(read.fact) is RunOpened:
            self.version = read.fact.version
        return read.number, read


def read(path: Path) -> Iterator[tuple[Fact, Instant]]:
    """Every fact of the file, in order; a torn last line is left out.

    Raises UsageError where there is no such file, DamagedJournalError (naming line and byte) for
    any other line that is not what was written.
    """
    lines = _Facts(path)
    for chunk in _chunks(path):
        for line in lines.feed(chunk):
            yield line.fact, line.at


def replay(path: Path) -> Ledger:
    """The state that the journal adds up to. Raises as `read` does."""
    ledger = Ledger()
    for number, (fact, at) in enumerate(read(path), 1):
        fold(ledger, fact, at, f"{path}: line {number}")
    return ledger


def fold(ledger: Ledger, fact: Fact, at: Instant, where: str) -> None:
    """Apply a fact that was read. Raises DamagedJournalError where it fits nothing before it."""
    try:
        ledger.apply(fact, at)
    except (KeyError, IndexError) as error:
        raise DamagedJournalError(
            f"{where} is damaged: it speaks of {error}, which no line before it knows"
        ) from None


def scan(path: Path) -> Scan:
    """How far the file is right, by its checksums and numbers alone. Raises as `read` does."""
    lines = Splitter(path, lambda line: (codec.check(line), None))
    for chunk in _chunks(path):
        lines.feed(chunk)
    return Scan(lines.lines, lines.end)


@dataclass(slots=True)
class Follower:
    """The facts of a journal as they come, from the first one on. A context manager.

    `wait` sleeps until there may be more, woken by inotify; see `journal.watch` for where that
    does not reach. A supervisor that was killed writes nothing: watch its control socket as well
    (`also`).
    """

    path: Path
    _fd: int = field(init=False, default=-1)
    _watch: Watch = field(init=False)
    _lines: _Facts = field(init=False)

    def __post_init__(self) -> None:
        self._lines = _Facts(self.path)
        self._fd = _open(self.path)
        self._watch = Watch()
        self._watch.add(self.path)

    def read(self, piece: bool = False) -> list[tuple[Fact, Instant]]:
        """What was recorded since the last call; a `piece`: about 1 MiB of it at most.

        Raises DamagedJournalError.
        """
        facts: list[tuple[Fact, Instant]] = []
        while data := os.pread(self._fd, _CHUNK, self._lines.end + len(self._lines.rest)):
            facts += [(line.fact, line.at) for line in self._lines.feed(data)]
            if len(data) < _CHUNK or (piece and facts):
                break  # the end of the file, as it was
        # What is held back is read again: a torn tail may be cut off and written anew.
        self._lines.rest = b""
        return facts

    @property
    def share(self) -> float:
        """How much of the file, as long as it is now, was read: 0 to 1."""
        return min(1.0, self._lines.end / max(1, os.fstat(self._fd).st_size))

    def wait(self, timeout: float | None = None, also: Sequence[HasFileno] = ()) -> bool:
        """Sleep until the file changes or one of `also` is readable; False after `timeout` s.

        True is a hint: `read` may still find nothing new.
        """
        return self._watch.wait(timeout, also)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._watch.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(f"{path.parent} holds no run: it has no {path.name}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _chunks(path: Path) -> Iterator[bytes]:
    fd = _open(path)
    try:
        # A short read is the end. Asking once more could join a torn tail, as it was, to what
        # replaced it a moment later.
        while len(chunk := os.read(fd, _CHUNK)) == _CHUNK:
            yield chunk
        yield chunk
    finally:
        os.close(fd)
