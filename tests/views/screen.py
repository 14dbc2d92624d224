"""Streams and consoles for the views' tests: what a terminal, or a pipe, would get."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console

from gpulaunch.core.model import AttemptId
from gpulaunch.observe.terminal.terminal import console_for


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Paths:
    """A run directory's paths, without the directory."""

    root = Path("gpulaunch-runs/nanobodies-20261120-074215")

    def log(self, attempt: AttemptId) -> Path:
        return self.root / "logs" / f"{attempt}.log"

    def out(self, attempt: AttemptId) -> Path:
        return self.root / "out" / str(attempt)

    def keep(self, job: str) -> Path:
        return self.root / "keep" / job


def rendered(show: Callable[[Console], None], columns: int | None = None) -> str:
    """What `show` prints to a pipe, lines without trailing blanks."""
    stream = io.StringIO()
    show(console_for(stream, {"COLUMNS": str(columns)} if columns else {}))
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip("\n").split("\n"))


class Screen:
    """A terminal as wide as given and endlessly long; refuses sequences that it does not know."""

    _ESCAPE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])")

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self.cursor_visible = True

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = self._ESCAPE.match(text, at)
                assert found, f"unknown sequence {text[at : at + 20]!r}"
                self._obey(found[1], found[2])
                at = found.end()
            else:
                self._put(text[at])
                at += 1

    @property
    def lines(self) -> list[str]:
        return "\n".join("".join(row).rstrip() for row in self._rows).rstrip("\n").split("\n")

    def _put(self, char: str) -> None:
        if char == "\n":
            self._down()
        elif char == "\r":
            self._column = 0
        else:
            kind = unicodedata.category(char)
            assert kind[0] != "C" or char in "\u200c\u200d", repr(char)
            if self._column + cell_len(char) > self._columns:
                self._down()
            row = self._rows[self._row]
            row.extend(" " * (self._column - len(row)))
            row[self._column : self._column + 1] = [char]
            if cell_len(char) == 2:
                row[self._column + 1 : self._column + 2] = [""]
            self._column += cell_len(char)

    def _down(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._rows):
            self._rows.append([])

    def _obey(self, numbers: str, letter: str) -> None:
        match numbers, letter:
            case _, "m":
                pass
            case _, "A":
                self._row = max(0, self._row - int(numbers or 1))
            case "2", "K":
                self._rows[self._row] = []
            case "?25", "l" | "h":
                self.cursor_visible = letter == "h"
            case _:
                raise AssertionError(f"unknown sequence {numbers}{letter}")
