"""The streams that views write to: which get colours or a live view; writing never hurts the run.

Never opens or closes a stream.

A view's reader may go away (a closed terminal, `| head`) or not know a character (LANG=C). Neither
may stop a run that works: what cannot be encoded is escaped, and a stream that fails stays silent.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TextIO, TypeAlias, cast

from gpulaunch.core.facts import Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


UNBOUNDED = 1000
"""The width of what is not a terminal: nothing is cut or wrapped there."""


class View(Protocol):
    """A view, which the supervisor drives. `see` comes after the ledger has applied the fact."""

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None: ...

    def tick(self, now: Instant, ledger: Ledger, doing: Sequence[str] = ()) -> None:
        """Show what has changed, if it is time to. `doing`: what the run is at, beside its jobs."""

    def next_tick(self, now: Instant) -> float | None:
        """Return the monotonic time from which `tick` has something to do; None for nothing."""

    def close(self, ledger: Ledger) -> None:
        """Show the rest and leave the terminal as it was."""


class SilentView:
    """Shows nothing: standard output belongs to `--json`."""

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None: ...
    def tick(self, now: Instant, ledger: Ledger, doing: Sequence[str] = ()) -> None: ...

    def next_tick(self, now: Instant) -> float | None:
        return None

    def close(self, ledger: Ledger) -> None: ...


class SafeStream:
    """A text stream whose writes never raise: see the module's text.

    With `raises` they do, once, where a disk is full or fails: for what is asked for, not for what
    is told beside a run.
    """

    def __init__(self, stream: TextIO, raises: bool = False) -> None:
        self._stream = stream
        self._raises = raises
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.broken = False

    def write(self, text: str) -> int:
        if not self.broken:
            try:
                self._stream.write(self._encodable(text))
            except (OSError, ValueError) as error:  # ValueError: the stream was closed
                self._break(error)
        return len(text)

    def flush(self) -> None:
        if not self.broken:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._break(error)

    def _break(self, error: OSError | ValueError) -> None:
        self.broken = True
        if self._raises and isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise error

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return is_terminal(self._stream)

    def writable_now(self) -> bool:
        """Tell whether the stream takes text: after Ctrl-S a write would freeze the run."""
        return _polled(self._stream, select.POLLOUT) != 0

    def _encodable(self, text: str) -> str:
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        return text


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (OSError, ValueError, AttributeError):
        return False


def is_gone(stream: TextIO) -> bool:
    """Tell whether the terminal was closed, so that it cannot be read or written any more."""
    state = _polled(stream, 0)  # poll always reports a hang-up
    return state is None or bool(state & (select.POLLHUP | select.POLLERR | select.POLLNVAL))


def _polled(stream: TextIO, wanted: int) -> int | None:
    """Return what poll tells of a stream at once, 0 for nothing; None for one without a file."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), wanted)
        return sum(event for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):
        return None


def is_smart(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Tell whether the stream is a terminal that, by TERM, obeys escape sequences."""
    return is_terminal(stream) and environ.get("TERM", "") not in ("", "dumb", "unknown")


def wants_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Tell whether to use colours: on a terminal that has them, without NO_COLOR (no-color.org)."""
    return is_smart(stream, environ) and not environ.get("NO_COLOR")


def can_redraw(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Tell whether the live view works: it moves the cursor and needs characters beyond ASCII."""
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    return is_smart(stream, environ) and encoding.startswith("utf")


def console_for(stream: TextIO, environ: Mapping[str, str], raises: bool = False) -> Console:
    """Return a rich Console that writes as a SafeStream does, without markup or emoji."""
    from rich.console import Console

    terminal = is_terminal(stream)
    # rich would let FORCE_COLOR, COLUMNS and the like overrule the stream's own nature.
    known = {name: environ[name] for name in ("TERM", "COLORTERM") if name in environ}
    return Console(
        file=cast(TextIO, SafeStream(stream, raises)),
        width=None if terminal else _columns(environ),
        force_terminal=terminal,
        no_color=not wants_color(stream, environ),
        color_system="auto" if wants_color(stream, environ) else None,
        markup=False,
        emoji=False,
        highlight=False,
        _environ=known,
    )


def _columns(environ: Mapping[str, str]) -> int:
    columns = environ.get("COLUMNS", "")
    return max(20, int(columns)) if columns.isascii() and columns.isdigit() else UNBOUNDED


def fits(console: Console, table: Table, last: int | None = None) -> bool:
    """Tell whether no cell need be cut or folded; `last` columns are enough for the last one."""
    from rich.measure import Measurement

    if console.width >= UNBOUNDED:
        return True
    end = table.columns[-1]
    end.max_width, before = last, end.max_width
    options = console.options.update(max_width=1_000_000)
    wanted = Measurement.get(console, options, table).maximum
    end.max_width = before
    return wanted <= console.width


# ── Lines in a few styles, thousands a second ─────────────────────────────────────────────────────

Style: TypeAlias = Literal["bold", "dim", "green"]
Line: TypeAlias = tuple["str | tuple[str, Style]", ...]
"""The pieces of a line: texts, plain or each with its style."""

_CODES: Mapping[Style, str] = {"bold": "\x1b[1m", "dim": "\x1b[2m", "green": "\x1b[32m"}
_END = "\x1b[0m"


class LinePrinter:
    """Writes lines to a stream, with colours where it has them.

    Cuts and folds nothing: a terminal does that. Raises OSError where a disk is full.
    """

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._stream = SafeStream(stream, raises=True)
        self._color = wants_color(stream, environ)

    def print(self, lines: Iterable[Line]) -> None:
        """Write the lines at once."""
        self._stream.write("".join(f"{self._shown(line)}\n" for line in lines))

    def _shown(self, line: Line) -> str:
        if not self._color:
            return "".join(piece if isinstance(piece, str) else piece[0] for piece in line)
        return "".join(
            piece if isinstance(piece, str) else f"{_CODES[piece[1]]}{piece[0]}{_END}"
            for piece in line
        )

    @property
    def broken(self) -> bool:
        """Tell whether nobody reads any more (`| head`)."""
        return self._stream.broken

    def flush(self) -> None:
        self._stream.flush()
