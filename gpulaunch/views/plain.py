"""Prints lines in a few styles, thousands a second: what has no tables, and nothing to redraw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TextIO, TypeAlias

from gpulaunch.views.terminal import SafeStream, wants_color

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
