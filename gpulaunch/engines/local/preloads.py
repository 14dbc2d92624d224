"""The preload servers of a run, and which attempts are forked from them.

    Command ─▶ forkable? ─▶ a server that is like its cold start ─▶ importing: wait ─▶ it serves
                   └─no: cold                                         └─refused: cold

A server serves a job if it was started by the same command line up to the script's arguments, and
if every variable that its imports read has the same value in the job. An attempt that no server
can serve starts cold; the reason is noted once for each entry of the job file.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from msgspec import Struct, field

from gpulaunch.core.model import Job
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import CACHES, CHOSEN, KEEP, Delta
from gpulaunch.engines.local.forkable import EARLY, Cold, Forkable, forkable
from gpulaunch.process.command import Command, Main
from gpulaunch.process.preloading import Preload, PreloadReady, PreloadServer, PreloadUnavailable

MAX_SERVERS = 8
"""Servers of a run at once: each has the imported libraries in memory."""
OF_ENTRY = 4
"""Kinds of server for one entry of the job file: where each job has its own, nothing is shared."""
STARTS = 2
"""Starts of a server that ends by itself, before its jobs start cold."""
ATTEMPTS_OWN = ("GPULAUNCH_JOB", "GPULAUNCH_ATTEMPT", "GPULAUNCH_OUT", KEEP, "GPULAUNCH_LEASED")
PORTS = ("MASTER_PORT", "PET_MASTER_PORT")
_UNREAD = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", *CACHES})
"""Variables that are read only after the fork, when a card or its cache is first used."""

AUTO = ("auto",)
Key: TypeAlias = tuple[object, ...]


class ServerImporting(Exception):
    """The attempt's server is importing: launch again when `Preloads` calls `news`."""


class _Kind(Struct):
    """The jobs that one server could serve, and their servers. `cold`: why none serves them."""

    forkable: Forkable
    servers: list[PreloadServer] = field(default_factory=list)
    starts: int = 0
    cold: str = ""


class Preloads:
    """Owns the servers. `news` is called when attempts that waited may be launched again.

    `gone` is called with a server that serves no more.
    """

    def __init__(
        self,
        context: RunContext,
        news: Callable[[], None],
        gone: Callable[[PreloadServer], None],
    ) -> None:
        self._context = context
        self._news = news
        self._gone = gone
        self._kinds: dict[Key, _Kind] = {}
        self._of_entry: defaultdict[int, set[Key]] = defaultdict(set)
        self._noted: set[tuple[int, str]] = set()
        self._number = 0

    def served(self, job: Job, command: Command) -> tuple[PreloadServer | None, Command]:
        """Return the server that forks this attempt, and the command as it takes it.

        Without one (None) the attempt starts cold. Raises ServerImporting while it imports.
        """
        if job.preload and not job.worker:
            try:
                server, main = self._find(job, command)
            except Cold as cold:
                self._note_cold(job, str(cold))
            else:
                return server, replace(command, main=main)
        return None, command

    def began_cold(self, job: Job, server: PreloadServer, why: str, for_good: bool) -> None:
        """End a server whose job started cold after all, and note why.

        `for_good`: no other server is started for jobs of its kind.
        """
        self._note_cold(job, why)
        for kind in self._kinds.values():
            if server in kind.servers:
                kind.cold = why if for_good else kind.cold
                self._drop(kind, server)

    def _note_cold(self, job: Job, why: str) -> None:
        if (job.group, why) not in self._noted:
            self._noted.add((job.group, why))
            self._context.warn(job.name, f"preload: starts cold: {why}")

    def close(self) -> None:
        for kind in self._kinds.values():
            for server in kind.servers:
                self._end(server)

    # ── Which server ────────────────────────────────────────────────────────────────────────────

    def _find(self, job: Job, command: Command) -> tuple[PreloadServer, Main]:
        env = Delta(command.env_set, frozenset(command.env_unset)).over(self._context.base)
        by_shell = not isinstance(job.run, tuple)
        if command.hidden is not None:
            raise Cold("strict isolation needs an exec, which takes away the rights that it gave")
        found = forkable(command.argv, command.cwd, env, by_shell)
        env = {**env, **found.main.env}
        key = _key(found, job, command, env)
        known = self._of_entry[job.group]
        if key not in known and len(known) == OF_ENTRY:
            raise Cold(f"its siblings run {OF_ENTRY} other scripts, or in {OF_ENTRY} directories")
        known.add(key)
        kind = self._kinds.setdefault(key, _Kind(found))
        for server in kind.servers:
            if server.state == "importing":
                raise ServerImporting
            if server.state == "serves" and not _differing(server, env):
                return server, found.main
        if kind.cold:
            raise Cold(kind.cold)
        self._start(kind, job, command, env)
        raise ServerImporting

    def _start(self, kind: _Kind, job: Job, command: Command, env: Mapping[str, str]) -> None:
        alive = [s for k in self._kinds.values() for s in k.servers if s.state != "over"]
        if len(alive) >= MAX_SERVERS:
            names = {name for server in kind.servers for name in _differing(server, env)}
            why = f": imports read {', '.join(sorted(names)[:3])}, which differs" if names else ""
            raise Cold(f"{MAX_SERVERS} preload servers run already{why}")
        preload = Preload(
            python=kind.forkable.python,
            start=kind.forkable.start,
            target=kind.forkable.target,
            cwd=command.cwd,
            env=env,
            modules=None if job.preload == AUTO else job.preload,
            early=EARLY,
            own=_own(env),
        )
        self._number += 1
        folder = self._context.run.path / "preload"
        folder.mkdir(mode=0o700, exist_ok=True)
        log = _fresh(folder, self._number)
        programs = self._context.environments.programs
        server = PreloadServer(preload, log, self._context.base, programs)
        kind.servers.append(server)
        self._context.loop.watch(server.fileno(), lambda: self._hear(kind, server, job))

    # ── What servers say ────────────────────────────────────────────────────────────────────────

    def _hear(self, kind: _Kind, server: PreloadServer, job: Job) -> None:
        news = server.on_readable()
        if isinstance(news, PreloadReady):
            self._context.warn(job.name, in_words(kind.forkable.target, news))
        else:
            served = server.state == "serves"
            self._drop(kind, server)
            if isinstance(news, PreloadUnavailable):
                kind.cold = news.why
            else:
                kind.starts += 1
                again = served and kind.starts < STARTS
                kind.cold = "" if again else "its preload server ended"
        self._news()

    def _drop(self, kind: _Kind, server: PreloadServer) -> None:
        self._end(server)
        kind.servers.remove(server)
        self._gone(server)

    def _end(self, server: PreloadServer) -> None:
        if server.state != "over":
            self._context.loop.unwatch(server.fileno())
            server.close()


def in_words(target: tuple[str, ...], ready: PreloadReady) -> str:
    script = target[-1] if target[0] == "-m" else os.path.basename(target[0])
    text = f"preload: {', '.join(ready.modules)} for {script}, imported in {ready.seconds:.1f} s"
    if ready.left_out:
        text += "; left out " + ", ".join(f"{n} ({why})" for n, why in ready.left_out.items())
    return text


def _key(found: Forkable, job: Job, command: Command, env: Mapping[str, str]) -> Key:
    cards = (
        len(command.env_set.get("CUDA_VISIBLE_DEVICES", "").split(",")) if job.demand.gpus else 0
    )
    relative = [found.python, found.target[0], *env.get("PYTHONPATH", "/").split(":")]
    here = command.cwd if any(path[:1] != "/" for path in relative) else ""
    return (found.python, found.start, found.target, job.preload, here, cards)


def _own(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that differ from attempt to attempt."""
    chosen = env.get(CHOSEN, "").split(",")
    return (*ATTEMPTS_OWN, *(name for name in PORTS if name in chosen))


def _differing(server: PreloadServer, env: Mapping[str, str]) -> set[str]:
    """Return the variables that the server's imports read and that differ in the job."""
    names = set(server.reads)
    theirs = server.preload.env
    for name in {*theirs, *env}:
        if name.startswith(EARLY) and name not in _UNREAD:
            names.add(name)
    return {name for name in names if theirs.get(name) != env.get(name)}


def _fresh(folder: os.PathLike[str], number: int) -> str:
    """Return the path of a log that does not exist yet: a resumed run has earlier ones."""
    while os.path.lexists(path := os.path.join(folder, f"{number}.log")):
        number += 1
    return path
