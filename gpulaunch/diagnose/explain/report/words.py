"""The report on an uncaught error: where it happened, what every frame held, what to change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .advice import Advice
from .messages import LOADED, MEMORY, NO_GPU, ORDINAL, message, recognised, summary
from .search import TracebackStep, short
from .tensors import (
    FRAMES,
    LINES,
    OBJECTS,
    PER_CONTAINER,
    PER_FRAME,
    SECONDS,
    WIDTH,
    NamedTensor,
    by_device,
    counts,
    described,
    grouped,
)
from .verdict import DeviceErrorEvidence, FailingLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType


HEAD = "gpulaunch explain:"


class ReportLines:
    """The lines of a report on what was found."""

    def __init__(self, found: DeviceErrorEvidence) -> None:
        self.found = found

    def lines(self) -> Iterator[str]:
        kind, text = type(self.found.error).__name__, summary(self.found.text)
        yield f"{HEAD} {text}" if text.startswith(kind + ":") else f"{HEAD} {kind}: {text}"
        yield from self.elsewhere()
        if self.found.where is not None:
            yield from self.place(self.found.where, self.found.line, "where")
            inner = self.found.inner
            other = inner is not None and inner.frame is not self.found.where.frame
            if inner is not None and other and any(self.found.inner_line):
                yield from self.place(inner, self.found.inner_line, "inside")
        yield from Advice(self.found).lines()
        yield from self.others()
        if self.found.cut:
            yield (
                f"  not everything was looked at: {PER_CONTAINER} entries of a container, "
                f"{OBJECTS:,} objects of a frame, {SECONDS:g} seconds"
            )
        yield f"{HEAD} end of the report"

    def elsewhere(self) -> Iterator[str]:
        place = self.found.elsewhere
        if place is None:
            return
        if "from user code" in self.found.whole:
            yield "  torch.compile was at:"
        else:
            yield "  it happened in another process or thread, whose variables are gone; there:"
        yield f"    {short(place.file)}:{place.line}, in {place.function}: {place.source}"

    def place(self, step: TracebackStep, line: FailingLine, word: str) -> Iterator[str]:
        yield f"  {word}: {step.at}, in {step.function}"
        text = self.found.source.text(step)
        if text:
            yield f"      {text}"
        if line.tensors:
            yield "    on that line:"
            yield from self.table(line.tensors)
        if self.found.kind in (ORDINAL, LOADED, NO_GPU):
            for path, value in line.devices[:PER_FRAME]:
                yield f"      {path} = {value}" if path else f"      {value}"

    def table(self, tensors: list[NamedTensor]) -> Iterator[str]:
        """Tensors by line; a module of many as a count by device and the odd ones."""
        odd = {t.key for t in self.found.odd}
        width = min(40, max((len(t.path) for t in tensors), default=0))
        for root, group in grouped(tensors).items():
            marked = [t for t in group if t.key in odd]
            shown = group
            if len(group) > PER_FRAME:
                yield f"      {root}: {counts(group)}"
                common = by_device(group)[0][0]
                shown = [t for t in group if t.device != common]
                if self.found.kind == MEMORY:
                    shown = sorted(group, key=lambda t: -t.size)[:PER_FRAME]
            shown = sorted(shown, key=lambda t: t.key not in odd) if marked else shown
            for tensor in shown[:PER_FRAME]:
                mark = "   <-- odd" if tensor.key in odd else ""
                yield "      " + described(tensor, width) + mark
            if len(shown) > PER_FRAME:
                yield f"      ... and {len(shown) - PER_FRAME:,} more of {root}"

    def others(self) -> Iterator[str]:
        """Yield what every frame held, the user's first; of a library's, what is new."""
        told: list[tuple[TracebackStep, list[NamedTensor]]] = []
        met: set[int] = set()
        for step in self.found.users[::-1] + [
            s for s in self.found.way[::-1] if s not in self.found.users
        ]:
            tensors = self.found.held(step)
            if step not in self.found.users:
                tensors = [t for t in tensors if t.key not in met]
            met.update(t.key for t in tensors)
            if tensors:
                told.append((step, tensors))
        if told:
            yield "  every frame's tensors, from the innermost out, the libraries' last:"
        for step, tensors in told[:FRAMES]:
            yield f"    {step.at}, in {step.function}"
            yield from self.table(tensors)
        if len(told) > FRAMES:
            yield f"    ... and {len(told) - FRAMES} frames more"


def bounded(lines: Iterable[str]) -> list[str]:
    """No more than LINES lines of WIDTH characters; says how many were left out."""
    whole = [line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in lines]
    printable = ["".join(c if c.isprintable() else "?" for c in line) for line in whole]
    if len(printable) <= LINES:
        return printable
    left = len(printable) - LINES + 1
    return [*printable[: LINES - 2], f"  ... {left} lines left out", printable[-1]]


# ── The report, as text or to standard error ──────────────────────────────────────────────────────


def report(
    exc_type: type[BaseException] | None,
    exc: BaseException | None,
    tb: TracebackType | None,
    *,
    program: str | None = None,
) -> str:
    """Return the report on an error, ending in a new line; '' when it is no device error.

    `program` is a directory whose files count as the user's own, wherever it lies; otherwise what
    is installed (site-packages, the standard library) does not. Never raises; takes about two
    seconds at the most.
    """
    try:
        found = recognised(exc, tb)
    except BaseException:  # Not even an error: hooks are called with anything.
        return ""
    if found is None:
        return ""
    try:
        evidence = DeviceErrorEvidence(*found, program=program, whole=message(exc) if exc else "")
        return "\n".join(bounded(ReportLines(evidence).lines())) + "\n"
    except BaseException as error:  # Whatever a stranger's objects do, the job ends as it would.
        return f"{HEAD} no report: {type(error).__name__} while it was made\n"


def tell(exc: BaseException, tb: TracebackType | None) -> None:
    """Write the report on an uncaught error to standard error; what the injected file calls.

    Raises whatever that stream raises; without one, as without one for a traceback, says nothing.
    """
    if type(exc).__name__ in ("ProcessRaisedException", "ChildFailedError"):
        return  # torch's words for a child's error, which the child has reported itself.
    text = report(type(exc), exc, tb)
    stream = sys.stderr
    if stream is not None and text:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
