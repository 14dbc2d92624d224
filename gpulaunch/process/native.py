"""The keepers' compiled program: whether there is one, and whether it works on this machine."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from gpulaunch import farside
from gpulaunch.farside.wire import PROTOCOL
from gpulaunch.own_files import farside_command, here

PROGRAM = Path(farside.__file__).parent / "native" / "keeper"
"""Where a build leaves it (`hatch_build.py`); absent where nothing could compile it."""
TEST_TIMEOUT = 10.0
"""Seconds for the program's test of itself, which takes some milliseconds."""

_INTERPRETER = 3
"""The kind of a program header that names an interpreter (PT_INTERP)."""

Reason: TypeAlias = Literal["works", "asked", "absent", "unfit"]


class KeeperChoice(Struct, frozen=True):
    """Which keepers jobs get: those of `program`, or, where it is None, Python's.

    `reason`: it works; GPULAUNCH_KEEPER asks for Python's; it was not built; or its test failed,
    and `problem` is what it said.
    """

    program: str | None
    reason: Reason
    problem: str = ""


def command_line(program: str | None, python: str = sys.executable) -> list[str]:
    """Return the command line of keepers, less their argument: the program's, or Python's."""
    return [program] if program else farside_command(python, "keeper")


def holder_lines() -> Iterator[list[str]]:
    """Yield the command lines of what holds leases beside a command, less their arguments.

    The next one is for where one does not start. Nothing tests the program before: it would cost
    each `exec` as much as the start itself.
    """
    if os.environ.get("GPULAUNCH_KEEPER") != "python":
        yield [here(str(PROGRAM)), "lease"]
    yield farside_command(sys.executable, "lease")


def program_inside() -> str | None:
    """Return the program that starts a job in a container of docker or podman; None: there is none.

    Only one that needs no library runs in every image; a machine may lack what makes such a one.
    """
    program = Path(here(str(PROGRAM)))
    try:
        return str(program) if _needs_no_library(program.read_bytes()) else None
    except OSError:
        return None


def _needs_no_library(program: bytes) -> bool:
    """Tell whether an ELF file asks for no interpreter, the dynamic linker (elf(5))."""
    if program[:5] != b"\x7fELF\x02":  # of 64 bits
        return False
    (start,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    kinds = (struct.unpack_from("<I", program, start + size * n)[0] for n in range(count))
    return _INTERPRETER not in kinds


def choose_keeper() -> KeeperChoice:
    """Return which keepers are to be started now."""
    if os.environ.get("GPULAUNCH_KEEPER") == "python":
        return KeeperChoice(None, "asked")
    program = here(str(PROGRAM))
    if not os.path.exists(program):
        return KeeperChoice(None, "absent")
    try:
        test = subprocess.run(
            [program, "--self-test", str(PROTOCOL)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TEST_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return KeeperChoice(None, "unfit", str(problem))
    if test.returncode == 0:
        return KeeperChoice(program, "works")
    said = test.stderr.decode("utf-8", "replace").strip()
    return KeeperChoice(None, "unfit", said or f"its test ended with status {test.returncode}")
