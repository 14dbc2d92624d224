r"""Shows logs as people read them: progress bars folded, colours gone, control characters visible.

Owns the folding of raw bytes into lines; reads a bounded end of a file, or a stream piece by piece.
Never changes a log.

    b"50%|##  |\r100%|####|\n"  ->  "100%|####|"       (what a terminal would still show)
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Iterator

from gpulaunch.base.files import end_of
from gpulaunch.base.text import as_shown, clip
from gpulaunch.observe.present.words import visible

WINDOW = 64 * 1024
LINE = 400
LINES_SHOWN = 6
REPORTED = 10

_BAR = re.compile(r"(.{0,200}?)\b\d{1,3}(?:\.\d+)?%(?:\||\s|$)")
_TRACEBACK = re.compile(r"(\[rank\d+\]: ?)?Traceback \(most recent call last\):")
_EXCEPTION = re.compile(
    r"(?:\[rank\d+\]: ?)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::.*)?"
)
# What `diagnose.explain.report` begins with, and what follows after where and what to change.
_REPORT = "gpulaunch explain: "
_REPORT_GOES_ON = ("  every frame's tensors", f"{_REPORT}end of the report")


def read_tail(
    path: str | os.PathLike[str], lines: int = LINES_SHOWN, window: int = WINDOW
) -> tuple[str, ...]:
    """Return the last meaningful lines of a log; empty if it cannot be read.

    Reads `window` bytes at most.
    """
    try:
        data, cut = end_of(path, window)
    except OSError:
        return ()
    return last_lines(data, lines, cut)


def last_lines(data: bytes, lines: int = LINES_SHOWN, cut: bool = False) -> tuple[str, ...]:
    """Return the last meaningful lines of `data`; `cut`: its beginning is missing.

    Blank lines are dropped. The last traceback's exception is among them, whatever followed it; a
    report of what to change (`explain: true`) stands for all.
    """
    if cut:
        data = _from_whole_line(data)
    lines_of = map(fold_line, data.decode("utf-8", "replace").split("\n"))
    folded = _without_stale_bars([line for line in lines_of if line.strip()])
    if report := _report(folded):
        return tuple(clip(line, LINE) for line in report)
    kept = folded[-lines:]
    exception = _last_exception(folded)
    if exception is not None and exception < len(folded) - lines:
        kept = [folded[exception], *kept[1:]]
    return tuple(clip(line, LINE) for line in kept)


class Folder:
    """Folds a stream: feed it bytes as they come, get text to print. Memory stays bounded.

    Colours go, control characters become visible, and of a line rewritten by carriage returns
    only the last state is kept; blank lines stay. A line longer than 64 KiB is passed on in parts.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._passed = False

    @property
    def rest(self) -> str:
        """The unfinished last line, as a terminal would show it now."""
        return fold_line(self._rest)

    def feed(self, data: bytes) -> str:
        """Take bytes; return the text that is now final: whole lines, each with its newline."""
        self._rest += self._decoder.decode(data)
        whole, newline, rest = self._rest.rpartition("\n")
        out = "".join(f"{line}\n" for line in self._lines(whole)) if newline else ""
        self._rest = rest if len(rest) <= WINDOW else self._last_state(rest)
        if len(self._rest) > WINDOW:
            out += fold_line(self._rest)
            self._rest, self._passed = "", True
        return out

    def close(self) -> str:
        """Return the rest: a last line without its newline gets one."""
        rest = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        text = fold_line(rest)
        ending = "\n" if text or self._passed else ""
        self._passed = False
        return text + ending

    def _lines(self, whole: str) -> Iterator[str]:
        self._passed = False
        return map(fold_line, whole.split("\n"))

    @staticmethod
    def _last_state(rest: str) -> str:
        """Return the unfinished line without the states that carriage returns have replaced."""
        before, _, last = rest.rpartition("\r")
        return last if last.strip() else before.rpartition("\r")[2] + "\r" + last


def fold(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield a whole stream's folded text."""
    folder = Folder()
    for chunk in chunks:
        if text := folder.feed(chunk):
            yield text
    if text := folder.close():
        yield text


def fold_line(line: str) -> str:
    """Return one line as a terminal would leave it: the last state, without escapes."""
    return visible(as_shown(line)).rstrip()


def _from_whole_line(data: bytes) -> bytes:
    """Return data from the first whole line on; of one endless line, its end with a mark."""
    _, newline, rest = data.partition(b"\n")
    if newline and rest.strip():
        return rest
    return "…".encode() + data[-LINE:].lstrip(bytes(range(0x80, 0xC0)))


def _without_stale_bars(lines: list[str]) -> list[str]:
    """Return the lines with only the last of neighbouring states of one progress bar."""
    kept: list[str] = []
    last_label: str | None = None
    for line in lines:
        found = _BAR.match(line)
        label = found[1].strip() if found else None
        if label is not None and label == last_label:
            kept.pop()
        kept.append(line)
        last_label = label
    return kept


def _last_exception(lines: list[str]) -> int | None:
    """Return the index of the last traceback's exception line; None if there is none."""
    for start in range(len(lines) - 1, -1, -1):
        header = _TRACEBACK.match(lines[start])
        if header:
            prefix = header[1] or ""
            for at in range(start + 1, len(lines)):
                line = lines[at].removeprefix(prefix)
                if line.strip() and not line.startswith((" ", "|")):
                    return at
            return None
        if _EXCEPTION.fullmatch(lines[start]):
            return start
    return None


def _report(lines: list[str]) -> list[str]:
    """Return the last report's lines on where it happened and what to change; else empty."""
    starts = [
        at
        for at, line in enumerate(lines)
        if line.startswith(_REPORT) and not line.startswith(_REPORT_GOES_ON)
    ]
    if not starts:
        return []
    report = lines[starts[-1] :][:REPORTED]
    ends = [at for at, line in enumerate(report) if line.startswith(_REPORT_GOES_ON)]
    return report[: min(ends, default=REPORTED)]
