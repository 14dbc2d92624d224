"""The supervisor's side of a preload server: how it is started, what it says, its pairs.

A server is a spawner that begins with importing: `on_readable` gives Ready, Refused or Vanished
once; after Ready it bears pairs as any spawner does. Never blocks, never decides which jobs go
where.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gpulaunch.process.client import Spawner, _coded, _inherited, _memory_file, code

FOLDER = Path(__file__).with_name("preload")
SERVER = FOLDER / "server.py"
HOOK = str(FOLDER / "hook")
IMPORT_TIMEOUT = 600.0
"""Seconds that importing may take."""
AT_FORK = 20.0
"""Seconds that what imports have called at forks may take, at one fork."""
CARDS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
"""A descriptor that begins so is a card in use."""


@dataclass(frozen=True, slots=True)
class Preload:
    """What a server is made for.

    `python` is the interpreter's path, `start` its command line up to its last option, `target` the
    script, or `-m` and a module. `modules`: None finds them by the script. `env` is the whole
    environment of its first job. Variables that begin with one of `early` libraries read before
    Python code could; `own` are those which every attempt has its own.
    """

    python: str
    start: tuple[str, ...]
    target: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    modules: tuple[str, ...] | None = None
    early: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    limit: float = IMPORT_TIMEOUT
    at_fork: float = AT_FORK
    cards: tuple[str, ...] = CARDS


@dataclass(frozen=True, slots=True)
class PreloadReady:
    """It serves. `reads` are the variables that imports read; `left_out` has the reasons."""

    modules: tuple[str, ...]
    left_out: Mapping[str, str]
    reads: frozenset[str]
    seconds: float


@dataclass(frozen=True, slots=True)
class PreloadUnavailable:
    """Jobs cannot be forked from it, in words; nothing of it is left."""

    why: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """It is gone; pairs forked before live on."""


News: TypeAlias = PreloadReady | PreloadUnavailable | Vanished


class PreloadServer(Spawner):
    """One interpreter that imports once. `log` is a file that does not exist yet: what it says."""

    def __init__(
        self, preload: Preload, log: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self._said = _memory_file("preload")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        base = _inherited() if environ is None else environ
        with theirs, _memory_file("imports") as spec:
            spec.write(_spec(preload, log, base))
            spec.flush()
            fds = [fcntl.fcntl(f.fileno(), fcntl.F_DUPFD_CLOEXEC, 3) for f in (theirs, spec)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SERVER), *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=base,
                pass_fds=fds,
                start_new_session=True,
            )
        except OSError:
            self._socket.close()
            self._said.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)

    def on_readable(self) -> News:
        """To be called when its descriptor is readable, and not again after Refused or Vanished."""
        try:
            data = self._socket.recv(1 << 18)
        except ConnectionResetError:
            return Vanished()
        if not data:
            return Vanished()
        message = json.loads(data)
        if message["is"] == "refused":
            return PreloadUnavailable(message["why"])
        reads = frozenset(os.fsdecode(name.encode("latin-1")) for name in message["reads"])
        modules = tuple(message["modules"])
        return PreloadReady(modules, message["left_out"], reads, message["seconds"])


def _spec(preload: Preload, log: str, base: Mapping[str, str]) -> bytes:
    theirs = preload.env.get("PYTHONPATH")
    env = {**preload.env, "PYTHONPATH": os.pathsep.join([HOOK, theirs] if theirs else [HOOK])}
    spec = {
        "python": code(preload.python),
        "start": _coded(preload.start),
        "target": _coded(preload.target),
        "cwd": code(preload.cwd),
        "env": _codes(env),
        "python_path": None if theirs is None else code(theirs),
        "base": _codes(base),
        "modules": preload.modules,
        "early": preload.early,
        "own": preload.own,
        "limit": preload.limit,
        "at_fork": preload.at_fork,
        "cards": preload.cards,
        "log": code(log),
    }
    return json.dumps(spec).encode()


def _codes(environ: Mapping[str, str]) -> dict[str, str]:
    return {code(name): code(value) for name, value in environ.items()}
