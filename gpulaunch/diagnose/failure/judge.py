"""The errors at a log's end, which of them decides, and its class. Pure; in doubt there is none.

Reading is structure only; what errors mean is `patterns`. It is linear in the text, and never
raises. The errors at the log's end, with no sign of life between them, are one cluster; what came
before was survived. In a cluster the last error decides, unless it only follows from an earlier
one:

    rank 0: CUDA out of memory   ◀── decides
    rank 1: NCCL: remote process exited          (secondary)
    torchrun: ChildFailedError                   (a wrapper: says that another failed)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct

from gpulaunch.base.text import as_shown
from gpulaunch.diagnose.failure import patterns
from gpulaunch.diagnose.failure import patterns as p
from gpulaunch.diagnose.failure.patterns import WRAPPER

# ── Reading ───────────────────────────────────────────────────────────────────────────────────────

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
    r"""Every error, in the order of the lines in which they end.

    Takes interleaved ranks apart, and knows the shapes of errors: tracebacks with their chains,
    `terminate called`, an exception's line alone, lines that only say that something went wrong.

        "[rank1]: Traceback ...\n[rank1]:   File ...\n[rank1]: RuntimeError: boom\n"
            ->  Error(raised=(Raised("RuntimeError", "boom"),), stream="rank1", ...)
    """
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


# ── Judgement ─────────────────────────────────────────────────────────────────────────────────────

TRAILER = 25  # Lines that may follow the last error before it counts as survived.
MAX_CLUSTER_ERRORS = 200  # Errors of a cluster that are looked at, the last ones.
ECHO = 2  # Lines between an error and a wrapper's own "error: it failed".
FOLLOWING = frozenset({"secondary", WRAPPER})


class FailureEvidence(Struct, frozen=True):
    """`text`: the line that shows it; `message`: the exception's, where it was one."""

    kind: str
    text: str
    message: str = ""


class Verdict(Struct, frozen=True):
    """`finding` decides; `error`: the log ends in an error, whatever it is; `soft`: something was
    given up on and the program went on; `child`: the log says that this signal killed a process."""

    finding: FailureEvidence | None
    error: Error | None
    soft: FailureEvidence | None
    child: int | None = None


def judge(text: str) -> Verdict:
    lines = lines_of(text)
    errors = errors_of(lines)
    soft = _soft(lines)
    cluster = _cluster(lines, errors)
    if not cluster:
        return Verdict(None, None, soft, _child(lines))
    return Verdict(_decide(lines, cluster), cluster[-1], soft, _child(lines))


def classify(error: Error) -> FailureEvidence | None:
    """Return the error's class, `secondary` and WRAPPER included; None where it is unknown."""
    if error.shape == "line":
        return FailureEvidence(error.kind, error.text)
    if error.shape == "vague":
        return None
    links = [*error.explicit, True]
    found: FailureEvidence | None = None
    for raised, explicit in zip(reversed(error.raised), reversed(links), strict=False):
        deeper = _of_exception(raised)
        if deeper is None:
            continue
        if found is None and not explicit and deeper.kind in patterns.WEAK:
            continue
        if deeper.kind not in FOLLOWING:
            return deeper
        found = found or deeper
    return found


def _of_exception(raised: Raised) -> FailureEvidence | None:
    if not raised.type:
        return None
    head = raised.message.partition("\n")[0]
    quoting = patterns.QUOTING.fullmatch(raised.type) is not None
    for pattern in patterns.RAISED:
        if pattern.types is None and quoting:
            continue
        if pattern.types is not None and not pattern.types.fullmatch(raised.type):
            continue
        if pattern.text.search(raised.message if pattern.deep else head):
            text = f"{raised.type}: {head}" if head else raised.type
            return FailureEvidence(pattern.kind, text, raised.message)
    return None


# ── Which errors count ──────────────────────────────────────────────────────────────────────────


def _cluster(lines: Sequence[LogLine], errors: Sequence[Error]) -> list[Error]:
    """Return the errors at the end; empty where the log goes on after the last."""
    owned = {at for error in errors for at in range(error.start, error.end + 1)}
    rest = [line for line in lines if line.at not in owned]
    cluster: list[Error] = []
    after = len(lines)
    for error in reversed(errors):
        if error.shape == "ignored":
            continue
        survived = error.shape == "survived" and not (cluster and _points_back(cluster[0]))
        if survived or len(cluster) == MAX_CLUSTER_ERRORS:
            break
        if not _is_quiet(line for line in rest if error.end < line.at < after):
            break
        cluster.insert(0, error)
        after = min(after, error.start)
    return cluster


def _points_back(error: Error) -> bool:
    """Tell whether an error only says that what a warning told of was not survived after all."""
    return any(patterns.WARNED.search(raised.message) for raised in error.raised)


def _is_quiet(between: Iterator[LogLine]) -> bool:
    """No sign of life, and not many lines of any other kind."""
    others = bars = 0
    for line in between:
        text = line.text
        if patterns.IGNORED.match(text):
            continue
        if patterns.BAR.match(text):
            bars += 1
        elif patterns.PROGRESS.match(text) or patterns.SURVIVED.search(text):
            return False
        elif line.level not in ("W", "I", "D") and text and not _is_noise(text):
            others += 1
        if others > TRAILER or bars > 2:
            return False
    return True


def _is_noise(text: str) -> bool:
    return bool(patterns.NOISE.match(text) or patterns.ENDED.match(text))


# ── Which of them decides ───────────────────────────────────────────────────────────────────────


def _decide(lines: Sequence[LogLine], cluster: Sequence[Error]) -> FailureEvidence | None:
    known = [(error, classify(error)) for error in cluster]
    firsts = [(e, found) for e, found in known if found and found.kind not in FOLLOWING]
    # What programs expect and handle is a root cause only where there is no other.
    firsts.sort(key=lambda pair: pair[1].kind in patterns.WEAK)
    last, found = known[-1]
    if found is None:
        return next((f for e, f in firsts if _explains(lines, cluster, e, last)), None)
    if found.kind in FOLLOWING:
        if firsts:
            return firsts[0][1]
        return next((f for _, f in known if f and f.kind == "secondary"), None)
    for error, first in firsts:
        other = error.stream != last.stream or error.shape == "child" or last.shape == "abort"
        if other or (found.kind in patterns.FOLLOWS and first.kind not in patterns.WEAK):
            return first
    return found


def _explains(
    lines: Sequence[LogLine], cluster: Sequence[Error], error: Error, last: Error
) -> bool:
    """Tell whether `error` is why the unknown `last` came: another process's, or echoed by it."""
    if error.stream != last.stream or error.shape == "child":
        return True
    plain = last.shape == "bare" and last.raised[0].type == "Error"
    if last.shape != "vague" and not plain:
        return last.shape == "abort"
    if any(error.end < between.start < last.start for between in cluster):
        return False
    others = [
        line for line in lines[error.end + 1 : last.start] if line.text and not _is_noise(line.text)
    ]
    return len(others) <= ECHO


def of_status(text: str, code: int) -> FailureEvidence | None:
    """Return what the last lines say of the status that they came with."""
    for line in reversed(last_lines(text)):
        for codes, pattern in patterns.STATUSES:
            if code in codes and pattern.text.match(line):
                return FailureEvidence(pattern.kind, line)
    return None


def last_lines(text: str) -> list[str]:
    """Those that may still have to do with how it ended, without what loggers put before them."""
    return [line.text for line in lines_of(text)[-TRAILER:]]


def _child(lines: Sequence[LogLine]) -> int | None:
    """Return the first of SIGILL, SIGBUS, SIGKILL that the last lines tell of."""
    for line in lines[-2 * TRAILER :]:
        found = patterns.CHILD_SIGNAL.search(line.text)
        if found is not None:
            return int(found["signal"])
    return None


def _soft(lines: Sequence[LogLine]) -> FailureEvidence | None:
    for line in reversed(lines):
        for pattern in patterns.SOFT:
            found = pattern.text.match(line.text)
            if found is None:
                continue
            if pattern.kind:
                return FailureEvidence(pattern.kind, line.text)
            inner = _of_exception(Raised("RuntimeError", found["rest"]))
            if inner is not None and inner.kind not in FOLLOWING:
                return FailureEvidence(inner.kind, line.text, found["rest"])
    return None
