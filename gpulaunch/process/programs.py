"""The programs that run beside jobs: where they are, and copies of them for one run.

    the installed package ─▶ Programs ─▶ RUN/programs.1/                 for this machine
                          └▶ archived ─▶ RUN/slurm/farside-VERSION.zip   for a cluster's nodes

A run lasts for weeks. If another gpulaunch is installed meanwhile, the programs that the run starts
afterwards must still be those of its own version. Between two versions pip has none for seconds.

The nodes get one archive, because one file is one look for a file system over a network, and is
there as a whole or not at all. Beside each module it holds its code as this Python compiles it;
another version compiles for itself.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from gpulaunch import farside
from gpulaunch.core.model import Job
from gpulaunch.farside import client

FOLDER = Path(farside.__file__).parent
PACKAGE = str(FOLDER.parent)
COPIED = ("farside", "diagnose/explain")
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
        """Return the command line of a program of `farside`, for gpulaunch's own interpreter."""
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
