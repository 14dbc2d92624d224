"""The programs that run beside jobs: where they are, and copies of them for one run.

    the installed package ─▶ Programs ─▶ RUN/programs.1/                 for this machine
                          └▶ archived ─▶ RUN/slurm/agent-VERSION.zip   for a cluster's nodes

A run lasts for weeks. If another gpulaunch is installed meanwhile, the programs that the run starts
afterwards must still be those of its own version. Between two versions pip has none for seconds.

The nodes get one archive, because one file is one look for a file system over a network, and is
there as a whole or not at all. Beside each module it holds its code as this Python compiles it;
another version compiles for itself. The keepers are compiled for each architecture; they are used
only where their own test of themselves succeeds.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from gpulaunch import agent
from gpulaunch.agent import client
from gpulaunch.agent.wire import PROTOCOL
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core.model import Job

FOLDER = Path(agent.__file__).parent
PACKAGE = str(FOLDER.parent)
COPIED = ("agent", "diagnose/explain")
"""The directories of the package that hold programs, and what jobs' interpreters import."""
_ON_NODES = ("*.py", "node/*.py")
_UNCHECKED_HASH = (1).to_bytes(4, "little")
"""A .pyc's flags, by which its code is taken without a look at its source (PEP 552)."""


class Programs:
    """Where a run finds its programs: in `copy`, which is made at the first need, or as installed.

    `copy`: a directory that is not there yet; empty: nothing is copied. `trouble`: why the copy
    could not be made; the programs are then the installed ones.
    """

    def __init__(self, copy: str = "") -> None:
        self._copy = copy
        self._is_made = False
        self.trouble = ""

    def at(self, path: str) -> str:
        """Return where a file or directory of the package is to be started or read."""
        if self._copy and not self._is_made and not self.trouble:
            self.make()
        return self.now(path)

    def now(self, path: str) -> str:
        """Return the same, but make no copy."""
        return self._copy + path[len(PACKAGE) :] if self._is_made else path

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return the command line of a program of `agent`, for gpulaunch's own interpreter."""
        python, *options, path, name = client.command(sys.executable, program)
        return [python, *options, self.at(path), name, *arguments]

    def make(self) -> None:
        """Make the copy now."""
        import shutil  # `exec`, which starts often, copies nothing

        sources = shutil.ignore_patterns("*.c", "*.h")
        try:
            for name in COPIED:
                shutil.copytree(f"{PACKAGE}/{name}", f"{self._copy}/{name}", ignore=sources)
        except (OSError, shutil.Error) as error:
            self.trouble = str(error)
        else:
            self._is_made = True

    def remove(self) -> None:
        """Remove the copy, and those that killed launchers of the run left beside it."""
        import shutil

        self._is_made = False
        copy = Path(self._copy)
        with suppress(OSError):
            for found in copy.parent.glob(f"{copy.stem}.*"):
                if found.suffix[1:].isdecimal():
                    shutil.rmtree(found, ignore_errors=True)


INSTALLED = Programs()
"""For who has no directory that lives as long as the programs do."""


def needs_programs(job: Job) -> bool:
    """Tell whether an attempt of the job starts more than the keepers, which live already."""
    return bool(job.worker or job.preload or job.explain or job.container or job.demand.mps)


def archived(before: bytes = b"", folder: Path = FOLDER) -> bytes:
    """Return the nodes' archive; `before` itself if it is one of these modules by this Python."""
    import hashlib
    import importlib.util
    import io
    import marshal
    import zipfile

    sources = {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in _ON_NODES
        for path in sorted(folder.glob(pattern))
    }
    told = repr((sys.implementation.cache_tag, sys.hexversion, sources))
    mark = hashlib.sha256(told.encode()).hexdigest().encode()
    if before.endswith(mark):
        return before
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, source in sources.items():
            code = compile(source, str(folder / name), "exec", dont_inherit=True)
            head = (
                importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
            )
            for kind, content in (("", source), ("c", head + marshal.dumps(code))):
                archive.writestr(zipfile.ZipInfo(name + kind), content)
        archive.comment = mark
    return data.getvalue()


# ── Compiled keepers ──────────────────────────────────────────────────────────────────────────────

PROGRAM = Path(agent.__file__).parent / "native" / f"keeper-{os.uname().machine}"
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
