"""The one place of this package that touches the file system: reading scripts, finding modules.

Reads regular files only, never more than a bound, and nothing of what was installed. What cannot
be read is None: a script that is not there yet, or is no text, is no finding.
"""

from __future__ import annotations

import io
import os
import re
import time
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from gpulaunch.errors import UsageError
from gpulaunch.jobfile.source import read_bytes

_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^/(?:usr|proc|sys|dev|nix)/")
_ENCODINGS = re.compile(
    r"utf-?8(-sig)?|ascii|us-ascii|latin-?1|iso-?8859-?\d+|cp\d+|gbk|gb2312|gb18030|big5|koi8-r"
    r"|shift[_-]?jis|euc[_-](jp|kr)",
    re.IGNORECASE,
)
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(slots=True)
class ReadBudget:
    """How much is read at most: files, bytes of one and of all, seconds (of `clock`) in all."""

    files: int = 300
    bytes_each: int = 256 << 10
    bytes_all: int = 8 << 20
    seconds: float = 2.0
    clock: Callable[[], float] = time.monotonic
    why: str = ""
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.clock() + self.seconds

    def left(self) -> bool:
        """Tell whether to go on; `why` says what ran out."""
        if not self.why and self.clock() > self._end:
            self.why = f"{self.seconds:g} s were over"
        return not self.why

    def took(self, size: int) -> None:
        self.files -= 1
        self.bytes_all -= size
        if self.files <= 0 or self.bytes_all <= 0:
            self.why = self.why or "there are too many of them"


class Files:
    """Texts of scripts, each read once. `base`: how paths are shown, relative to it if below."""

    def __init__(self, base: str, budget: ReadBudget) -> None:
        self.budget = budget
        self._base = base
        self._kinds: dict[str, bool] = {}
        self._real: dict[str, str] = {}

    def text(self, path: str) -> str | None:
        """Return a script's text, decoded as Python would; None for no script, or one too many."""
        if not self.budget.left():
            return None
        try:
            data = read_bytes(Path(path), "a script", self.budget.bytes_each)
        except UsageError:
            return None
        self.budget.took(len(data))
        return decoded(data)

    def is_file(self, path: str) -> bool:
        if path not in self._kinds:
            self._kinds[path] = os.path.isfile(path)  # no error: False for what cannot be asked
        return self._kinds[path]

    def exists(self, path: str) -> bool:
        """Return False only where it is certain: a directory that may not be read may hold it."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return True
        return True

    def names(self, directory: str, most: int) -> list[str]:
        """Names in a directory, `most` of them at most; none where it cannot be read."""
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in islice(entries, most)]
        except (OSError, ValueError):
            return []

    def real(self, path: str) -> str:
        """Return the path by which a file is known, whatever links lead to it."""
        if path not in self._real:
            try:
                self._real[path] = os.path.realpath(path)
            except (OSError, ValueError):
                self._real[path] = path
        return self._real[path]

    def shown(self, path: str) -> str:
        relative = os.path.relpath(path, self._base)
        return path if relative.startswith("..") else relative


def is_installed(path: str) -> bool:
    """Tell whether a file is a package's or the system's, not of those who wrote the job."""
    return bool(_INSTALLED.search(path))


def decoded(data: bytes) -> str | None:
    """Return a script's text, or None: NUL bytes, another encoding than it says, odd ones.

    A few codecs only: some of Python's take quadratic time, or make bytes of bytes.
    """
    if b"\0" in data:
        return None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding) if _ENCODINGS.fullmatch(encoding) else None
    except (SyntaxError, UnicodeError, LookupError, ValueError):
        return None


def lines_of(text: str) -> list[str]:
    """Split a text into lines as Python does; form feeds and U+2028 end none."""
    return _LINE_END.split(text)
