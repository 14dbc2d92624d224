"""Reading `events.jsonl`: whole, as a state, or as it grows. Never changes the file.

    bytes ─Splitter─▶ whole lines, and faults ─_Facts─▶ facts that fit ─▶ read, replay, Follower

INVARIANT: no part of a line whose checksum is wrong is ever used.

A last line that is not whole is the torn tail of a write that was cut short: it is left out (or
waited for, while the run lives). Any other line that is not what was written is left out as well,
and reported (`Damage`, `Foreign`). Later facts count if they fit those before them. Nothing is
inferred about what is lost, but the run's opening is also in its manifest.

Also waits for files to change (`Watch`), and finds jobs in a journal without a replay.
"""

from __future__ import annotations

import json
import os
import re
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from gpulaunch import __version__
from gpulaunch.base.errors import GpulaunchError, UsageError
from gpulaunch.base.files import regular
from gpulaunch.core.facts import Fact, JobsGiven, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant, Job, Params
from gpulaunch.journal import codec
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.rundir import RunDir

_IN_MODIFY, _IN_ATTRIB, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x4, 0x80, 0x100
_IN_DELETE_SELF, _IN_MOVE_SELF = 0x400, 0x800
# A deletion while somebody has the file open shows as ATTRIB (the link count changes).
_CHANGES = _IN_MODIFY | _IN_ATTRIB | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE_SELF | _IN_MOVE_SELF
_POLL_SECONDS = 1.0
_BUFFER_BYTES = 1 << 16


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Watch:
    """Wakes when one of the added files changes, or a file in an added directory does.

    inotify reports changes made on this machine, also on network file systems, and not those that
    another machine makes there. Where the kernel gives no inotify (a limit of 128 instances a user
    is common), `wait` wakes once a second instead, and `polls` is true.
    """

    def __init__(self) -> None:
        import ctypes  # most who read a journal wait for nothing

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self.polls = self._fd < 0

    def add(self, path: Path) -> None:
        """Watch a file, or a directory for files that appear or change in it."""
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(path), _CHANGES)
        self.polls = self.polls or watch < 0

    def wait(self, timeout: float | None = None, also: Sequence[HasFileno] = ()) -> bool:
        """Sleep until a change or until one of `also` is readable; False after `timeout` s.

        One of `also` with a negative descriptor tells nothing: wakes once a second for its sake.
        """
        polls = self.polls or any(one.fileno() < 0 for one in also)
        longest = timeout
        if polls and (timeout is None or timeout > _POLL_SECONDS):
            longest = _POLL_SECONDS
        poll = select.poll()
        for fd in [*(one.fileno() for one in also), self._fd]:
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        ready = poll.poll(None if longest is None else max(0, round(longest * 1000)))
        self._forget_changes()
        return bool(ready) or longest != timeout

    def _forget_changes(self) -> None:
        with suppress(BlockingIOError):
            while self._fd >= 0:
                os.read(self._fd, _BUFFER_BYTES)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# ── Lines and facts ───────────────────────────────────────────────────────────────────────────────

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
            except codec.UnknownKindError as error:
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


_CHUNK = 1 << 20


class DamagedJournalError(UsageError):
    """The journal's facts do not fit each other, or this version cannot understand them."""


class OtherFormatError(UsageError):
    """A version of gpulaunch that writes another form of the journal wrote this one."""


class _Facts(Splitter[codec.JournalLine]):
    """Reads facts from lines. Behind damage, it leaves out facts that fit nothing before them."""

    __slots__ = ("_ledger", "_path")

    def __init__(self, path: Path, faults: list[Fault] | None = None) -> None:
        super().__init__(self._decode, [] if faults is None else faults)
        self._path = path
        self._ledger: Ledger | None = None  # from the first damage on

    def take(self, data: bytes) -> list[codec.JournalLine]:
        """Return the facts of the lines that `data` completes."""
        lines: list[codec.JournalLine] = []
        for line, gap in self.feed(data):
            if gap and self._ledger is None:
                lines += self._begin(line.at)
            if self._ledger is None or _fits(self._ledger, line):
                lines.append(line)
        return lines

    def _begin(self, at: Instant) -> list[codec.JournalLine]:
        """Begin to check facts; return the manifest's opening if the first line is damaged."""
        self._ledger = Ledger()
        start = next(fault.byte for fault in self.faults if fault.lost)
        for line in _Facts(self._path).take(_beginning(self._path, start)):
            fold(self._ledger, line.fact, line.at, f"{self._path}: line {line.number}")
        opened = _opened_by_manifest(self._path) if self._ledger.opened is None else None
        if opened is None:
            return []
        self._ledger.apply(opened, at)
        return [codec.JournalLine(1, opened, at)]

    def _decode(self, line: bytes) -> tuple[int, codec.JournalLine]:
        try:
            read = codec.decode(line)
        except codec.FormatMismatchError as error:
            raise OtherFormatError(
                f"{self._path} was written by gpulaunch {error.version}, in a form that gpulaunch"
                f" {__version__} does not read: use that version for this run"
            ) from None
        if type(read.fact) is RunOpened:
            self.version = read.fact.version
        return read.number, read


def read(path: Path, faults: list[Fault] | None = None) -> Iterator[tuple[Fact, Instant]]:
    """Yield every fact of the file, in order. `faults` gets the reasons why some are missing.

    Raises UsageError where there is no such file.
    """
    for line in _lines(path, faults):
        yield line.fact, line.at


def replay(path: Path, faults: list[Fault] | None = None) -> Ledger:
    """Return the state that all facts of the journal make; `faults` as for `read`.

    Raises UsageError where there is no such file, DamagedJournalError where its facts do not fit
    each other although none is missing.
    """
    ledger = Ledger()
    for line in _lines(path, faults):
        fold(ledger, line.fact, line.at, f"{path}: line {line.number}")
    return ledger


def _fits(ledger: Ledger, line: codec.JournalLine) -> bool:
    """Apply the fact of a line; return False if it names what no fact before it names."""
    try:
        ledger.apply(line.fact, line.at)
    except (KeyError, IndexError):
        return False
    return True


def fold(ledger: Ledger, fact: Fact, at: Instant, where: str) -> None:
    """Apply a fact that was read. Raises DamagedJournalError where it does not fit the state."""
    try:
        ledger.apply(fact, at)
    except (KeyError, IndexError) as error:
        raise DamagedJournalError(
            f"{where} is damaged: it speaks of {error}, which no line before it knows"
        ) from None


def scan(path: Path) -> Splitter[None]:
    """Return the whole file's lines, known by checksums and numbers. Raises as `read` does."""
    lines: Splitter[None] = Splitter(lambda line: (codec.check(line), None))
    for chunk in _chunks(path):
        lines.feed(chunk)
    lines.finish()
    return lines


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the file's lines as they are, whole ones of a size that is read. Raises as `read`."""
    rest = bytearray()
    for chunk in _chunks(path):
        if b"\n" in chunk:
            *whole, last = (bytes(rest) + chunk).split(b"\n")
            yield from whole
            rest = bytearray(last)
        elif len(rest) <= LINE_BYTES:
            rest += chunk


class Follower:
    """Reads the facts of a journal as they come, from the first one on. A context manager.

    `wait` sleeps until there may be more, woken by inotify; see `Watch` for where that
    does not reach. A supervisor that was killed writes nothing: watch its control socket as well
    (`also`).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = _Facts(path)
        self._fd = _open(path)
        self._watch = Watch()
        self._watch.add(path)

    def fold(self, ledger: Ledger) -> list[Fact]:
        """Apply the facts recorded since the last call, and return them.

        Raises DamagedJournalError where one does not fit the state.
        """
        facts = self.read()
        for fact, at in facts:
            fold(ledger, fact, at, f"{self._path}: a line before line {self._lines.lines + 1}")
        return [fact for fact, _ in facts]

    def read(self, piece: bool = False) -> list[tuple[Fact, Instant]]:
        """Return the facts recorded since the last call; with `piece`, some MiB at most."""
        facts: list[tuple[Fact, Instant]] = []
        while data := os.pread(self._fd, _CHUNK, self._lines.end + len(self._lines.rest)):
            facts += ((line.fact, line.at) for line in self._lines.take(data))
            if len(data) < _CHUNK or (piece and facts):
                break  # the end of the file, as it was, or enough
        # An unfinished line is read again: a torn tail may be cut off and written anew.
        self._lines.rest.clear()
        return facts

    @property
    def faults(self) -> Sequence[Fault]:
        """The reasons why facts are missing so far."""
        return self._lines.faults

    @property
    def share(self) -> float:
        """The part of the file's present length that was read, from 0 to 1."""
        return min(1.0, self._lines.end / max(1, os.fstat(self._fd).st_size))

    def also_watch(self, path: Path) -> None:
        """Have `wait` wake for changes there as well."""
        self._watch.add(path)

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


def _lines(path: Path, faults: list[Fault] | None) -> Iterator[codec.JournalLine]:
    lines = _Facts(path, faults)
    for chunk in _chunks(path):
        yield from lines.take(chunk)
    lines.finish()


def _beginning(path: Path, size: int) -> bytes:
    with open(path, "rb", opener=regular) as file:
        return file.read(size)


def _opened_by_manifest(path: Path) -> RunOpened | None:
    """Return the run's first fact as far as the manifest beside the journal has it, or None."""
    try:
        kept = manifests.read(path.with_name("manifest.json"))
    except UsageError:
        return None
    pid = kept.epochs[0].pid if kept.epochs else 0
    return RunOpened(
        kept.run,
        kept.name,
        1,
        kept.version,
        kept.host,
        kept.boot,
        pid,
        kept.gpus,
        kept.simulated,
        engine=kept.engine,
    )


def _open(path: Path) -> int:
    try:
        return regular(path, os.O_RDONLY)
    except FileNotFoundError:
        raise UsageError(f"{path.parent} holds no run: it has no {path.name}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _chunks(path: Path) -> Iterator[bytes]:
    fd = _open(path)
    try:
        # A short read is the end. Another read could join the start of a torn tail to what has
        # replaced it since.
        while len(chunk := os.read(fd, _CHUNK)) == _CHUNK:
            yield chunk
        yield chunk
    finally:
        os.close(fd)


# ── Jobs without a replay ─────────────────────────────────────────────────────────────────────────

IN_A_FACT = 200
"""Jobs at most in one fact: a line of the journal is read and written whole."""
_MARK = b'"e":"jobs_given"'


class NotUnderstoodError(GpulaunchError):
    """Another version of gpulaunch wrote the jobs, or nobody did."""


class Addition(Struct, frozen=True):
    """Jobs that were added together to a live list, under the `name` of their addition.

    jobs ─text_of─▶ JobsGiven facts ─▶ events.jsonl ─additions_in─▶ jobs, for a later supervisor

    Only a supervisor reads them, and a client that has lost the answer to its addition.
    """

    name: str
    jobs: tuple[Job, ...]


def text_of(jobs: Sequence[Job]) -> str:
    """Return the definitions as JSON."""
    try:
        return _ENCODER.encode(jobs).decode()
    except UnicodeEncodeError:  # a path that is not UTF-8
        plain = msgspec.to_builtins(jobs, enc_hook=_plain)
        return codec.to_json(plain).decode()


def jobs_of(text: str) -> tuple[Job, ...]:
    """Return the jobs of such a text. Raises NotUnderstoodError where it is none."""
    try:
        return msgspec.json.decode(text, type=tuple[Job, ...])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        pass
    try:
        plain = codec.from_json(text.encode())
        json.dumps(plain, ensure_ascii=False).encode(errors="surrogateescape")
        return msgspec.convert(plain, tuple[Job, ...])
    except (msgspec.MsgspecError, ValueError) as error:
        raise NotUnderstoodError(f"no jobs that this gpulaunch understands: {error}") from None


def facts_of(addition: str, jobs: Sequence[Job]) -> list[JobsGiven]:
    """Return the facts that record an addition."""
    left = iter(jobs)
    parts = list(iter(lambda: list(islice(left, IN_A_FACT)), []))
    last = len(parts) - 1
    return [JobsGiven(addition, text_of(part), at < last) for at, part in enumerate(parts)]


def additions_in(events: Path) -> Iterator[Addition]:
    """Yield the whole additions of a journal, in order. Raises UsageError where there is none."""
    parts: dict[str, list[Job]] = {}
    for fact in _facts(events):
        parts.setdefault(fact.addition, []).extend(jobs_of(fact.jobs))
        if not fact.more:
            yield Addition(fact.addition, tuple(parts.pop(fact.addition)))


def _facts(events: Path) -> Iterator[JobsGiven]:
    for line in pieces(events):
        if _MARK not in line:
            continue
        try:
            fact = codec.decode(line).fact
        except (codec.BadLineError, codec.UnknownKindError):
            continue  # what damage it is, the journal's reader says
        if isinstance(fact, JobsGiven):
            yield fact


def _plain(value: Any) -> Any:
    if isinstance(value, Params):
        return dict(value)
    raise NotImplementedError


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)

MAX_BYTES = 1 << 28
"""Of a longer journal, the end is not looked at."""

_OF_JOB = re.compile(
    rb'"e":"(job_added|job_vanished|job_requeued|job_delayed|attempt_launched|job_settled)",'
    rb'"job":("(?:[^"\\]|\\.)*")(?:,"state":"(\w+)")?'
)
"""A journal's line begins with its kind and the job's name; in a text of a job's quotes are
escaped, so that none of them looks like one."""
_STATES = {b"job_vanished": "", b"attempt_launched": "running"}


def states_of(run: RunDir) -> dict[str, str]:
    """Return the states of a run's jobs by name, in the order of the list. Raises OSError.

    For a person who has typed half a name, and waits: ten thousand jobs take some 50 ms. A job that
    ran when its launcher was killed is told as running.
    """
    with open(run.events, "rb", opener=regular) as file:
        text = file.read(MAX_BYTES)
    states: dict[str, str] = {}
    for match in _OF_JOB.finditer(text):
        kind, name, settled = match.groups()
        state = settled.decode() if settled else _STATES.get(kind, "waiting")
        with suppress(ValueError):  # it is no name, and its line is damaged
            states[json.loads(name)] = state
    return states
