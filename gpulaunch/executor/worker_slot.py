"""Starts workers' processes: their environment, their keepers, and what they hold until the end.

Owns the spawner. Never decides which worker is started where, and never waits.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from gpulaunch.agent.ports import PortLease
from gpulaunch.base.files import locked_directory, regular
from gpulaunch.core.events import Launch
from gpulaunch.engines.client import Pair, Spawner, SpawnerGoneError
from gpulaunch.engines.command import Command
from gpulaunch.engines.environment import AttemptPlace, delta
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.programs import find_keepers
from gpulaunch.executor.item_queue import Work
from gpulaunch.executor.worker import START
from gpulaunch.executor.worker_handle import UnreadyError, WorkerHandle, WorkerPlan
from gpulaunch.gpus.socket_locks import reserve_port

GRACE = 10.0
"""Seconds that a worker has to end by itself, and again after a SIGTERM, before it is killed."""
PREFIX = "gpulaunch-worker-"
"""Of a directory for a keeper's files, which is locked until the worker has begun."""
_TRIES = 3  # another executor may remove one that is not locked yet


class KeeperFiles:
    """A directory for the files of one keeper; `path` is empty once it is removed."""

    def __init__(self) -> None:
        """Make the directory. Raises OSError."""
        for _ in range(_TRIES):
            self.path = tempfile.mkdtemp(prefix=PREFIX)
            self._lock = locked_directory(self.path, fcntl.LOCK_SH)
            if self._lock is not None or os.path.isdir(self.path):  # a place without locks
                break

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path = ""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_left() -> None:
    """Remove the directories that executors of this user left when they were killed."""
    place = tempfile.gettempdir()
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if name.startswith(PREFIX) and (
            (lock := locked_directory(path, fcntl.LOCK_EX | fcntl.LOCK_NB)) is not None
        ):
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


@dataclass(slots=True)
class WorkerSlot:
    """A worker between its launch and its end, with its keepers, port and files.

    `stopped`: it was asked to end. `thread_ended`: its thread serves it no more. `gone`: its
    keepers are gone. `unkillable`: a process of it cannot be killed.
    """

    worker: WorkerHandle
    pair: Pair
    port: PortLease
    directory: KeeperFiles
    log: int = -1
    stopped: bool = False
    thread_ended: bool = False
    gone: bool = False
    unkillable: bool = False

    def put_away(self) -> None:
        """Delete the keeper's files, which are open by now: none is left if this process dies."""
        if self.directory.path:
            with suppress(OSError):
                self.log = regular(os.path.join(self.directory.path, "log"), os.O_RDONLY)
            self.directory.remove()

    def read_log(self) -> bytes:
        """Return what was written before the worker had its streams: why Python did not start."""
        self.put_away()
        return os.pread(self.log, 4096, 0) if self.log >= 0 else b""

    def close(self) -> None:
        self.put_away()
        if self.log >= 0:
            os.close(self.log)
            self.log = -1
        self.port.close()
        self.pair.close()
        self.worker.streams.close()


class Starter:
    """Starts workers, one at a time, each below a keeper pair of its own."""

    def __init__(self, pool: CardPool, plan: WorkerPlan) -> None:
        self._pool = pool
        self._plan = plan
        self._id = secrets.token_hex(4)
        self._spawner: Spawner | None = None
        with suppress(OSError):
            remove_left()

    def begin(
        self,
        launch: Launch,
        leases: Sequence[int],
        work: Work,
        tell: Callable[[WorkerHandle, UnreadyError | None], None],
    ) -> WorkerSlot:
        """Start a worker and return what it holds; where that fails, nothing is held.

        `leases` are the card's descriptors. Raises OSError and GpulaunchError.
        """
        with ExitStack() as undo:
            worker = WorkerHandle(launch.attempt, launch.gpus[0], self._plan, work, tell)
            undo.callback(worker.discard)
            port = undo.enter_context(reserve_port())
            directory = KeeperFiles()
            undo.callback(directory.remove)
            pair = self._pair([*leases, worker.theirs.fileno()])
            undo.callback(pair.close)
            pair.launch(self._command(launch, worker, port, directory.path))
            undo.pop_all()
        worker.theirs.close()
        return WorkerSlot(worker, pair, port, directory)

    def _pair(self, descriptors: list[int]) -> Pair:
        if self._spawner:
            with suppress(SpawnerGoneError):
                return self._spawner.pair(descriptors)
            self._spawner.close()
        self._spawner = Spawner(find_keepers(), self._plan.environ)
        return self._spawner.pair(descriptors)

    def _command(
        self, launch: Launch, worker: WorkerHandle, port: PortLease, directory: str
    ) -> Command:
        scope = f"executor/{self._id}/{launch.attempt}"
        place = AttemptPlace(launch.gpus, self._pool.style, scope, port.port)
        changes = delta(launch.job, place, self._pool.machine, self._plan.environ, self._plan.env)
        inode = os.fstat(worker.theirs.fileno()).st_ino
        # As in multiprocessing: -W, -X, -O and their like hold for workers as well.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        path = [entry for entry in sys.path if isinstance(entry, str)]
        return Command(
            attempt=str(launch.attempt),
            argv=(sys.executable, *flags, "-c", START, str(inode), *path),
            log=os.path.join(directory, "log"),
            end=os.path.join(directory, "end"),
            cwd=self._plan.cwd,
            env_set=changes.set,
            env_unset=tuple(changes.unset),
            grace=GRACE,
        )

    def close(self) -> None:
        if self._spawner:
            self._spawner.close()

    def close_in_child(self) -> None:
        """Close a forked child's copy of the spawner's socket."""
        if self._spawner:
            self._spawner.close_in_child()
