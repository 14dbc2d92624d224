"""The compiled keepers: whether they are there, and whether they work on this machine."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

from gpulaunch import farside
from gpulaunch.errors import GpulaunchError
from gpulaunch.farside.wire import PROTOCOL
from gpulaunch.process.programs import INSTALLED, Programs

PROGRAM = Path(farside.__file__).parent / "native" / f"keeper-{os.uname().machine}"
"""Where a build leaves the program (`hatch_build.py`)."""
TEST_TIMEOUT = 10.0
"""Seconds for the program's test of itself, which takes some milliseconds."""

_INTERPRETER = 3
"""The kind of a program header that names an interpreter (PT_INTERP)."""


class KeepersError(GpulaunchError):
    """There are no keepers that work here; the text says why, and what to do."""


def find_keepers(programs: Programs = INSTALLED) -> str:
    """Return the path of the keepers' program. Raises KeepersError unless its own test succeeds."""
    program = programs.now(str(PROGRAM))
    if not os.path.exists(program):
        raise KeepersError(
            f"gpulaunch was installed without its program for this machine ({program}): install it"
            " again, here"
        )
    try:
        test = subprocess.run(
            [program, "--self-test", str(PROTOCOL)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TEST_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise KeepersError(f"gpulaunch's compiled program does not run here: {problem}") from None
    if test.returncode:
        said = test.stderr.decode("utf-8", "replace").strip()
        why = said or f"its test ended with status {test.returncode}"
        raise KeepersError(f"gpulaunch's compiled program does not work here: {why}")
    return program


def program_line(*words: str) -> list[str]:
    """Return a command line of the program, for `exec` and `hold`: nothing tests it before."""
    return [str(PROGRAM), *words]


def program_inside(programs: Programs = INSTALLED) -> str | None:
    """Return the program that starts a job in a container of docker or podman; None: there is none.

    Only one that needs no library runs in every image; a machine may lack what makes such a one.
    """
    program = Path(programs.at(str(PROGRAM)))
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
