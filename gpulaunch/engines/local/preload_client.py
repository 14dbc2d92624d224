"""The supervisor's side of a preload server: its start, its messages, its pairs.

A server is a spawner that imports first, and forks pairs as any spawner does once it serves. Never
blocks, never decides which jobs go where.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from gpulaunch.agent.client import PROGRAM, spawn
from gpulaunch.agent.proc import own_environment
from gpulaunch.agent.wire import coded, coded_all, coded_dict, decoded, memory_file
from gpulaunch.engines.client import SENSELESS, Spawner
from gpulaunch.engines.programs import INSTALLED, Programs, find_keepers
from gpulaunch.journal.ends import record_of, seconds, text

HOOK = str(Path(PROGRAM).with_name("preload") / "hook")
"""What comes first on PYTHONPATH, so that an interpreter becomes a server."""
IMPORT_TIMEOUT = 600.0
"""Seconds that importing may take."""
AT_FORK = 20.0
"""Seconds that the hooks that imports registered for forks may take, at one fork."""
CARDS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
"""The beginnings of device files; an open one means a card in use."""


class Preload(Struct, frozen=True):
    """The interpreter, script and environment that a preload server is made for.

    `python` is the interpreter's path, `start` its command line up to its last option, `target` the
    script, or `-m` and a module. `modules`: None finds them by the script. `env` is the whole
    environment of the server's first job. Libraries may read variables that begin with one of
    `early` before any Python code runs; `own` are variables that differ for every attempt. `limit`
    and `at_fork` are seconds.
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


class PreloadReady(Struct, frozen=True):
    """The server serves, with these modules after so many seconds.

    `left_out` has the modules that it lacks, with the reasons; `reads` the variables that imports
    read.
    """

    modules: tuple[str, ...]
    left_out: Mapping[str, str]
    reads: frozenset[str]
    seconds: float


class PreloadUnavailable(Struct, frozen=True):
    """No jobs can be forked from the server, `why` in words; no process of it is left."""

    why: str


class Vanished(Struct, frozen=True):
    """The server is gone; pairs forked before live on."""


News: TypeAlias = PreloadReady | PreloadUnavailable | Vanished


class PreloadServer(Spawner):
    """An interpreter that imports once and forks jobs. `log`, a new file, takes its output.

    `programs`: where the server's own program is.
    `reads`: the variables that its imports read, once it serves.
    """

    def __init__(
        self,
        preload: Preload,
        log: str,
        environ: Mapping[str, str] | None = None,
        programs: Programs = INSTALLED,
    ) -> None:
        self.preload = preload
        self.state: Literal["importing", "serves", "over"] = "importing"
        self.reads: frozenset[str] = frozenset()
        self._said = memory_file("preload")
        base = own_environment() if environ is None else environ
        with memory_file("imports") as spec:
            spec.write(_spec(preload, log, base, programs))
            spec.flush()
            try:
                self._process, self._socket = spawn(
                    programs.command("preload"), base, [spec], stderr=self._said
                )
            except OSError:
                self._said.close()
                raise

    def on_readable(self) -> News:
        """Return what became of the server, once its descriptor is readable.

        PreloadReady comes once at most, PreloadUnavailable or Vanished as the last.
        """
        try:
            data = self._socket.recv(1 << 18)
        except ConnectionResetError:
            return Vanished()
        if not data:
            return Vanished()
        news = news_of(data)
        if isinstance(news, PreloadReady):
            self.state, self.reads = "serves", news.reads
        return news

    def close(self) -> None:
        self.state = "over"
        super().close()


def news_of(data: bytes) -> News:
    """Return what a server's message says; one that has no meaning is the last of that server."""
    try:
        return _news(record_of(data))
    except SENSELESS:  # what it imports may have written it
        return Vanished()


def _news(message: Mapping[str, Any]) -> News:
    if message["is"] == "refused":
        return PreloadUnavailable(text(message["why"]))
    left_out = {text(name): text(why) for name, why in message["left_out"].items()}
    reads = frozenset(decoded(text(name)) for name in message["reads"])
    modules = tuple(map(text, message["modules"]))
    return PreloadReady(modules, left_out, reads, seconds(message["seconds"]))


def _spec(
    preload: Preload, log: str, base: Mapping[str, str] | Mapping[bytes, bytes], programs: Programs
) -> bytes:
    theirs, hook = preload.env.get("PYTHONPATH"), programs.at(HOOK)
    env = {**preload.env, "PYTHONPATH": os.pathsep.join([hook, theirs] if theirs else [hook])}
    spec = {
        "python": coded(preload.python),
        "start": coded_all(preload.start),
        "target": coded_all(preload.target),
        "cwd": coded(preload.cwd),
        "env": coded_dict(env),
        "python_path": None if theirs is None else coded(theirs),
        "base": coded_dict(base),
        "keepers": coded(find_keepers(programs)),
        "modules": preload.modules,
        "early": preload.early,
        "own": preload.own,
        "limit": preload.limit,
        "at_fork": preload.at_fork,
        "cards": preload.cards,
        "log": coded(log),
    }
    return json.dumps(spec).encode()
