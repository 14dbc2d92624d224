r"""A log's end -> the errors in it, in their order. Structure only; what they mean is `patterns`.

Owns the folding of raw text into lines, the taking apart of interleaved ranks, and the shapes of
errors: tracebacks with their chains, `terminate called`, an exception's line alone, lines that
only say that something went wrong. Pure; linear in the text; never raises.

    "[rank1]: Traceback ...\n[rank1]:   File ...\n[rank1]: RuntimeError: boom\n"
        ->  Error(raised=(Raised("RuntimeError", "boom"),), stream="rank1", ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct

from gpulaunch.diagnose.failure import patterns as p
from gpulaunch.text import as_shown

MAX_TEXT_CHARACTERS = 128 * 1024  # Characters of the text,
MAX_LINES = 4000  # lines of it that are looked at,
WIDTH = 4000  # and characters of each.
_ENDS_A_MESSAGE = (p.LINK, p.EXCEPTION, p.IGNORED)
BODY = 30  # Lines after an exception's own that may belong to its message.


class LogLine(Struct, frozen=True):
    """One line without its prefixes. `stream`: the rank or process that a prefix names.

    `level`: W(arning) and I(nfo) lines speak of what was survived; "" where there is no level.
    """

    at: int
    text: str
    stream: str = ""
    level: str = ""


class Raised(Struct, frozen=True):
    """An exception: its type without modules, and its message, with the lines that follow it."""

    type: str
    message: str


class Error(Struct, frozen=True):
    """One error in the log, over the lines `start` to `end`.

    `raised` is a chain, the cause first; `explicit[i]`: the link after `raised[i]` is "the direct
    cause of", not merely "during handling of". `shape`: `raised` (a traceback), `child` (that of a
    child process; `ignored` by the interpreter; `survived`, a warning says), `bare` (an exception's
    line alone), `abort` (C++), `line` (any other line that `patterns` knows; `kind` is then its
    class), `vague` (a line that says "error", no more).
    """

    start: int
    end: int
    shape: str
    raised: tuple[Raised, ...] = ()
    explicit: tuple[bool, ...] = ()
    stream: str = ""
    kind: str = ""
    text: str = ""


def lines_of(text: str) -> tuple[LogLine, ...]:
    """Return the log's lines as a terminal shows them, their prefixes taken off."""
    raw = text[-MAX_TEXT_CHARACTERS:].replace("\0", "").split("\n")[-MAX_LINES:]
    return tuple(_line(at, line) for at, line in enumerate(raw))


def errors_of(lines: Sequence[LogLine]) -> tuple[Error, ...]:
    """Every error, in the order of the lines in which they end."""
    streams: dict[str, list[LogLine]] = {}
    for line in lines:
        streams.setdefault(line.stream, []).append(line)
    found = [error for each in streams.values() for error in _Parser(each).errors()]
    return tuple(sorted(found, key=lambda error: (error.end, error.start)))


def _line(at: int, raw: str) -> LogLine:
    if not raw:
        return LogLine(at, "")
    text = as_shown(raw).rstrip()[:WIDTH]
    place, stream, level = 0, "", ""
    for _ in range(8):
        found = p.PREFIX.match(text, place) or (
            p.INNER_PREFIX.match(text, place) if place else None
        )
        if found is None or found.end() == place:
            break
        place = found.end()
        name = found.lastgroup or ""
        if name.startswith("level"):
            level = found[name][0]
        elif name:
            stream = found[name]
    return LogLine(at, text[place:], stream, level)


class _Parser:
    """The errors of one stream's lines."""

    def __init__(self, lines: list[LogLine]) -> None:
        self._lines = lines
        self._at = 0
        self._told = -1  # Where the last traceback ended.

    def errors(self) -> Iterator[Error]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            error: Error | None
            if _is_header(line.text):
                error = self._traceback()
                self._told = self._at - 1
            elif line.text.startswith("terminate called after"):
                error = self._abort()
            else:
                error = self._single(line)
            if error is not None:
                yield error

    def _traceback(self) -> Error:
        """Read a traceback and those chained to it."""
        first = self._at
        # Another traceback's last line announces nothing.
        announced = first > 0 and first - 1 != self._told
        before = self._lines[first - 1] if announced else LogLine(0, "")
        raised: list[Raised] = []
        explicit: list[bool] = []
        last = first
        while True:
            last = self._skip_frames()
            raised.append(self._exception())
            link = self._link()
            if link is None:
                break
            explicit.append(link)
        shape = _shape(before)
        start, end = self._lines[first], self._lines[last]
        return Error(
            start.at, end.at, shape, tuple(raised), tuple(explicit), start.stream, text=end.text
        )

    def _skip_frames(self) -> int:
        """Past header and frames; the index of the line that says what was raised."""
        self._at += 1
        while self._at < len(self._lines) - 1 and _is_frame(self._lines[self._at].text):
            self._at += 1
        return min(self._at, len(self._lines) - 1)

    def _exception(self) -> Raised:
        text = self._lines[self._at].text if self._at < len(self._lines) else ""
        self._at += 1
        found = p.EXCEPTION.match(text)
        return self._raised(found["type"], found["message"] or "") if found else Raised("", "")

    def _raised(self, kind: str, head: str) -> Raised:
        return Raised(kind, "\n".join([head, *self._body()]))

    def _body(self) -> list[str]:
        """Return the lines that may belong to the message just read; they are read again."""
        body = []
        for line in self._lines[self._at : self._at + BODY]:
            text = line.text
            if _is_header(text) or any(end.match(text) for end in _ENDS_A_MESSAGE):
                break
            body.append(text)
        return body

    def _link(self) -> bool | None:
        """Over to the next traceback of the chain; None where it ends here."""
        for ahead in range(self._at, min(self._at + BODY, len(self._lines) - 1)):
            text = self._lines[ahead].text
            found = p.LINK.match(text)
            if found:
                following = range(ahead + 1, min(ahead + 4, len(self._lines)))
                for at in following:
                    if _is_header(self._lines[at].text):
                        self._at = at
                        return found["cause"] is not None
                return None
            if _is_header(text) or p.EXCEPTION.match(text):
                return None
        return None

    def _abort(self) -> Error:
        first = self._lines[self._at]
        found = p.TERMINATE.match(first.text)
        self._at += 1
        raised = Raised(found["type"] if found else "", "")
        if self._at < len(self._lines):
            what = p.WHAT.match(self._lines[self._at].text)
            if what:
                self._at += 1
                raised = self._raised(raised.type, what["message"])
        end = self._lines[self._at - 1]
        return Error(first.at, end.at, "abort", (raised,), (), first.stream, text=end.text)

    def _single(self, line: LogLine) -> Error | None:
        self._at += 1
        if line.level in ("W", "I", "D") or not line.text:
            return None
        single = partial(Error, line.at, line.at, stream=line.stream, text=line.text)
        known = p.ANY_LINE.match(line.text) is not None
        for pattern in p.LINES if known else ():
            if pattern.text.match(line.text):
                return single("line", kind=pattern.kind)
        if p.NOISE.match(line.text):
            return None
        found = p.EXCEPTION.match(line.text)
        if found is not None:
            return single("bare", (self._raised(found["type"], found["message"] or ""),))
        if line.level == "F":
            return single("abort", (self._raised("Fatal", line.text),))
        if line.level in ("E", "C") or p.VAGUE.match(line.text):
            return single("vague")
        return None


def _is_header(text: str) -> bool:
    # A progress bar without its newline stands before it; rich draws a box around it.
    at = text.find("Traceback (most recent call last)")
    if at < 0:
        return False
    rest = text[at + 33 :]
    return rest == ":" or (text[:1] == "╭" and rest.startswith(" ─")) or not text[:at].strip()


def _is_frame(text: str) -> bool:
    return not text or text[0] in " \t│╭╰❱" or _is_header(text)


def _shape(before: LogLine) -> str:
    """Return what the line before a traceback makes of it."""
    if p.IGNORED.match(before.text):
        return "ignored"
    if before.level == "W" and (p.SURVIVED.search(before.text) or p.WENT_WRONG.search(before.text)):
        return "survived"
    return "child" if p.CHILD.match(before.text) else "raised"
