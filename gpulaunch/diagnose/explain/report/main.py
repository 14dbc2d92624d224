"""Reports on an error that was not caught: as text, or to standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .errors import recognised
from .messages import message
from .verdict import DeviceErrorEvidence
from .words import HEAD, ReportLines, bounded

if TYPE_CHECKING:
    from types import TracebackType


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
