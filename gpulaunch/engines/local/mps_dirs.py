"""The directories of MPS's control daemons: made for each, removed where all who cared are gone.

A daemon's guard removes its directory, and holds a lock on it until then, as the launcher does
before. One without a lock was left by a launcher, keepers and a guard that were killed at once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from gpulaunch.engines.local.stragglers import kill_marked
from gpulaunch.errors import GpulaunchError
from gpulaunch.files import locked_directory
from gpulaunch.gpus.finding import DoctorFinding
from gpulaunch.gpus.mps import MAX_PIPES_BYTES

PREFIX = "gpulaunch-mps-"
MARK = "GPULAUNCH_MPS"
"""The variable by which a daemon and its servers are found; its value is the directory."""
_RANDOM_BYTES = 8  # characters that mkdtemp adds
_TRIES = 3  # as one that has no lock yet may be cleared away


class NoRoomError(GpulaunchError):
    """No directory can be made that has a short name and a lock."""


def make(environ: Mapping[str, str]) -> tuple[str, int]:
    """Make a daemon's directory, mode 0700; return its path, and a descriptor that locks it.

    Not below $XDG_RUNTIME_DIR, which goes with the user's last session, while runs go on. Raises
    OSError, NoRoomError.
    """
    for place in _places(environ):
        length = len(os.fsencode(os.path.join(place, PREFIX, "pipe"))) + _RANDOM_BYTES
        if length <= MAX_PIPES_BYTES and os.access(place, os.W_OK | os.X_OK):
            for _ in range(_TRIES):
                path = tempfile.mkdtemp(prefix=PREFIX, dir=place)
                if (lock := locked_directory(path, fcntl.LOCK_SH)) is not None:
                    os.mkdir(os.path.join(path, "pipe"), 0o700)
                    return path, lock
                with suppress(OSError):
                    os.rmdir(path)
    raise NoRoomError(
        "the sockets of MPS need a directory whose path is short: expected one that can be written"
        f" and locked in {' or '.join(_places(environ))}; set TMPDIR to such a directory"
    )


def _places(environ: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys((os.path.abspath(environ.get("TMPDIR") or "/tmp"), "/tmp")))


@contextmanager
def _left(environ: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the paths of this user's directories that nobody holds, and nobody can take then."""
    with ExitStack() as stack:
        paths = []
        for path in _all(environ):
            lock = locked_directory(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock is not None:
                stack.callback(os.close, lock)
                paths.append(path)
        yield paths


def _all(environ: Mapping[str, str]) -> Iterator[str]:
    for place in _places(environ):
        with suppress(OSError):
            names = os.listdir(place)
            yield from (os.path.join(place, name) for name in names if name.startswith(PREFIX))


def clear(environ: Mapping[str, str]) -> int:
    """Remove what is left, daemons and servers that live on included; return how many of these."""
    with _left(environ) as paths:
        killed = sum(kill_marked({os.fsencode(f"{MARK}={path}")}) for path in paths)
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
    return killed


def finding(environ: Mapping[str, str]) -> DoctorFinding | None:
    """Return the finding of `gpulaunch doctor` on directories that killed runs have left."""
    with _left(environ) as paths:
        if not paths:
            return None
    what = f"left of MPS daemons of runs that were killed: {', '.join(paths)}"
    return DoctorFinding("warning", what, "the next run with mps: true removes them")
