"""The end of a log, read in bounded time and memory, whatever stands there."""

from __future__ import annotations

import os

WINDOW = 64 * 1024


def tail(path: str | os.PathLike[str], window: int = WINDOW) -> str:
    """The log's last `window` bytes as text; empty where there is no file or it cannot be read.

    Reads once, what is there at that moment: a file that grows or shrinks meanwhile does no harm.
    A file cut out of its middle reads as NULs there; they are left out.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            start = max(0, os.fstat(file.fileno()).st_size - window)
            data = os.pread(file.fileno(), window, start)
    except (OSError, ValueError):
        return ""
    return _whole_lines(data, start > 0).replace(b"\0", b"").decode("utf-8", "replace")


def _whole_lines(data: bytes, cut: bool) -> bytes:
    """Without the rest of a line whose beginning is not there, unless there is nothing else."""
    if not cut:
        return data
    _, newline, rest = data.partition(b"\n")
    return rest if newline and rest.strip() else data
