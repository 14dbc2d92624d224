"""Interrupts the main thread at a bytecode that is counted: every point is hit, and hit again.

A Python trace function could not: an interrupt is raised inside of it, also where the interpreter
looks for none. Imports nothing of gpulaunch and of the tests, for the scripts that it aims at.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("aim.c")
TOOL = 3


def build(directory: Path) -> Path | None:
    """The library, made in that directory; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "aim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", str(SOURCE), "-o", str(library)], check=True
    )
    return library


class Aim:
    """One thread's: of the one that makes it."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.PyDLL(library)
        self._library.at.argtypes = [ctypes.c_long]
        self._library.count.restype = ctypes.c_long
        if sys.version_info >= (3, 12):
            monitoring: Any = sys.monitoring
            callback = getattr(self._library, "pass")
            callback.argtypes, callback.restype = [ctypes.py_object, ctypes.c_long], None
            monitoring.use_tool_id(TOOL, "aim")
            monitoring.register_callback(TOOL, monitoring.events.INSTRUCTION, callback)
            monitoring.set_events(TOOL, monitoring.events.INSTRUCTION)
        else:
            self._library.follow()

    def at(self, number: int) -> None:
        """The interrupt comes at that bytecode from here on; never for 0."""
        self._library.at(number)

    def count(self) -> int:
        """How many bytecodes came since, and no interrupt comes any more."""
        return int(self._library.count())
