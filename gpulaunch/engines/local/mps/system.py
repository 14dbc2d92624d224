"""MPS on this machine: NVIDIA's program, its variables, and the directories of its daemons.

One control daemon (`nvidia-cuda-mps-control`) listens in a directory of its own, and starts one
server for each user. Programs that find the directory by a variable are the server's clients:
their kernels run on the card at the same time, not in turns. Source: "Multi-Process Service",
docs.nvidia.com/deploy/mps. `tests/gpu/test_mps.py` tries a real one where there is a card.

A daemon's guard removes the directory, and holds a lock on it until then, as the launcher does. A
directory without a lock was left by a launcher, keepers and a guard that were killed at once.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.base.files import locked_directory
from gpulaunch.core.model import Gpu
from gpulaunch.engines.local.containers import kill_marked
from gpulaunch.gpus.machine import DoctorFinding, Machine

PROGRAM = "nvidia-cuda-mps-control"
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MARK = "GPULAUNCH_MPS"
"""The variable by which a daemon and its servers are found; its value is the directory."""
PREFIX = "gpulaunch-mps-"
MAX_PIPES_BYTES = 107 - len("/control_privileged")
"""Bytes of the path of `pipe` at most: its sockets' names end in `sun_path`, of 108 (unix(7))."""
_RANDOM_BYTES = 8  # characters that mkdtemp adds


class NoRoomError(GpulaunchError):
    """No directory can be made that has a short name and a lock."""


def find_program(environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of the control program; None if there is none."""
    found = shutil.which(PROGRAM, path=environ.get("PATH", os.defpath))
    return None if found is None else os.path.abspath(found)


def why_not(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> str:
    """Return why jobs cannot share these cards through MPS; empty if they can."""
    if part := next((gpu for gpu in gpus if gpu.mig), None):
        return (
            f"{part.uuid}, of GPU {part.index}, is a MIG instance, and gpulaunch runs MPS on whole"
            " cards alone: leave mps: out, or name whole cards with --gpus"
        )
    if find_program(environ) is None:
        return (
            f"{PROGRAM} is not on PATH: it comes with the driver (Debian, Ubuntu: the package"
            " nvidia-compute-utils-NNN); install it, or leave mps: out"
        )
    return ""


def memory_limit(memory: int) -> tuple[str, str]:
    """Return the variable that keeps a client to so many bytes of its card, and its value.

    The limit is a whole number of MiB, rounded up, for the card that the client sees as number 0.
    """
    return LIMIT, f"0={-(-memory // 2**20)}M"


# ── Directories ─────────────────────────────────────────────────────────────────────────────────


def make(environ: Mapping[str, str]) -> tuple[str, int]:
    """Make a daemon's directory, mode 0700; return its path, and a descriptor that locks it.

    It holds `pipe`, where the daemon listens, and the FIFO `news`, through which the guard reports.
    It is not below $XDG_RUNTIME_DIR, which is removed with the user's last session although runs go
    on. Raises OSError, NoRoomError.
    """
    for place in _places(environ):
        length = len(os.fsencode(os.path.join(place, PREFIX, "pipe"))) + _RANDOM_BYTES
        if length <= MAX_PIPES_BYTES and os.access(place, os.W_OK | os.X_OK):
            path = tempfile.mkdtemp(prefix=PREFIX, dir=place)
            if (lock := locked_directory(path, fcntl.LOCK_SH)) is not None:
                os.mkdir(os.path.join(path, "pipe"), 0o700)  # from here on, `_left` looks at it
                os.mkfifo(os.path.join(path, "news"), 0o600)
                return path, lock
            os.rmdir(path)
    raise NoRoomError(
        "the sockets of MPS need a directory whose path is short: expected one that can be written"
        f" and locked in {' or '.join(_places(environ))}; set TMPDIR to such a directory"
    )


def _places(environ: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys((os.path.abspath(environ.get("TMPDIR") or "/tmp"), "/tmp")))


@contextmanager
def _left(environ: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield this user's directories that nobody holds; they are locked until the end."""
    with ExitStack() as stack:
        paths = []
        for place in _places(environ):
            for pipe in glob.iglob(os.path.join(glob.escape(place), PREFIX + "*", "pipe")):
                path = os.path.dirname(pipe)
                lock = locked_directory(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock is not None:
                    stack.callback(os.close, lock)
                    paths.append(path)
        yield paths


def clear(environ: Mapping[str, str]) -> int:
    """Remove what killed runs have left, also daemons and servers; return how many of these."""
    with _left(environ) as paths:
        killed = sum(kill_marked({os.fsencode(f"{MARK}={path}")}) for path in paths)
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
    return killed


def findings(environ: Mapping[str, str], here: Machine) -> Iterator[DoctorFinding]:
    """Yield whether jobs can use MPS, and what runs have left, for `gpulaunch doctor`."""
    why = why_not(here.gpus, environ)
    if here.gpus and why:
        yield DoctorFinding("note", why, "jobs that say `mps: true` are refused here")
    elif here.gpus:
        yield DoctorFinding("ok", f"jobs may share a card through MPS: {find_program(environ)}")
    with _left(environ) as paths:
        if paths:
            what = f"left of MPS daemons of runs that were killed: {', '.join(paths)}"
            yield DoctorFinding("warning", what, "the next run with mps: true removes them")
