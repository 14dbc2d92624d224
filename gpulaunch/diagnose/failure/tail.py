"""The end of a log, read in bounded time and memory, whatever stands there."""

from __future__ import annotations

import os
import re

from gpulaunch.files import regular

WINDOW = 64 * 1024
_BAR = re.compile(
    r".{0,200}?(?:\d{1,3}%\||\d+(?:/\d+|it) ?\[\d+:\d\d|[━╸╺█▏▎▍▌▋▊▉]{3}|\[[=>#.-]{8,} *\]).*"
)


def tail(path: str | os.PathLike[str], window: int = WINDOW) -> str:
    """The log's last `window` bytes as text; empty where there is no file or it cannot be read.

    Reads once, what is there at that moment: a file that grows or shrinks meanwhile does no harm.
    A file cut out of its middle reads as NULs there; they are left out.
    """
    try:
        descriptor = regular(path, os.O_RDONLY)
    except (OSError, ValueError):
        return ""
    try:
        start = max(0, os.fstat(descriptor).st_size - window)
        data = os.pread(descriptor, window, start)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return _whole_lines(data, start > 0).replace(b"\0", b"").decode("utf-8", "replace")


def _whole_lines(data: bytes, cut: bool) -> bytes:
    """Without the rest of a line whose beginning is not there, unless there is nothing else."""
    if not cut:
        return data
    _, newline, rest = data.partition(b"\n")
    return rest if newline and rest.strip() else data


def is_bar(line: str) -> bool:
    """Whether the line is a state of a progress bar (tqdm, rich, keras, pip and their kin)."""
    return _BAR.fullmatch(line) is not None
