"""Streams and consoles for the views' tests: what a terminal, or a pipe, would get."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from gpulaunch.core.model import AttemptId
from gpulaunch.views.terminal import console_for


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


def rendered(show: Callable[[Console], None], columns: int | None = None) -> str:
    """What `show` prints to a pipe, lines without trailing blanks."""
    stream = io.StringIO()
    show(console_for(stream, {"COLUMNS": str(columns)} if columns else {}))
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip("\n").split("\n"))
