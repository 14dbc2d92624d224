"""What killed processes leave of a run on this machine: containers, and processes of attempts.

    Ended ─▶ its folder is gone, as ever: posted at once
          └▶ its carrier was killed, and left it: `containers.removing` ─▶ posted

An attempt's end is held back until nothing is left of its container. What earlier supervisors left
is removed too. Owns the helper processes that remove. Starts no container.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from gpulaunch.agent.proc import stat_fields
from gpulaunch.base.helper_process import Helper, command, understood
from gpulaunch.base.text import listing
from gpulaunch.containers.engines import CARRIED, NO_PROGRAM, InstalledEngines
from gpulaunch.containers.removing import PID, Removal, is_held, remove_strays
from gpulaunch.core.events import Ended, Event, ImageReady, Launch, WorkerEnded
from gpulaunch.core.model import AttemptId, ContainerEngine
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.programs import program_inside
from gpulaunch.gpus.machine import DoctorFinding
from gpulaunch.gpus.socket_locks import UNKNOWN, have_open, holder_of, listening

LAST_LIMIT = 5.0
"""Seconds that an engine has to remove what is left when the run closes."""


class LeftContainers:
    """Passes events on to the supervisor's `post`, ends of attempts once they left no container.

    Each attempt in a container has an owner: the attempt with which its container was started,
    another one where it runs in a worker.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._post = context.post
        self._owners: dict[AttemptId, AttemptId] = {}
        self._helpers: set[Helper] = set()
        self._looked: set[ContainerEngine] = set()

    def launched(self, launch: Launch) -> None:
        """Learn which attempts run in containers."""
        if launch.job.container is not None:
            self._owners[launch.attempt] = launch.worker or launch.attempt

    def post(self, event: Event) -> None:
        """Post the event; an end whose container is still to be removed, after that."""
        match event:
            case Ended(attempt=attempt, kept=kept) if attempt in self._owners:
                owners = {attempt, self._owners.pop(attempt)}
                left = [self._left_of(owner) for owner in owners if not kept or owner == attempt]
                folders = [folder for folder in left if folder]
            case WorkerEnded(worker):
                folders = [folder] if (folder := self._left_of(worker)) else []
            case ImageReady(engine=engine):
                self._look_for_strays(engine)
                folders = []
            case _:
                folders = []
        if folders:
            self._remove({"folders": folders}, lambda: self._post(event), of_earlier=False)
        else:
            self._post(event)

    def _left_of(self, attempt: AttemptId) -> str:
        """Return the attempt's folder where its carrier was killed; "" where nothing is left.

        The folder of one that never began, as another one's worker took the attempt, is removed.
        """
        folder = self._folder(attempt)
        if not os.path.isdir(folder) or is_held(folder):
            return ""
        if os.path.exists(os.path.join(folder, PID)):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        return ""

    def clean(self, spared: Collection[AttemptId]) -> None:
        """Remove what earlier supervisors left of this run's containers.

        `spared`: attempts that may still run; their ends are posted here.
        """
        self._owners.update({attempt: attempt for attempt in spared})
        kept = {os.path.basename(self._folder(attempt)) for attempt in spared}
        home = self._context.run.containers
        try:
            found = [str(home / name) for name in os.listdir(home) if name not in kept]
        except OSError:
            return
        # A worker may still run an attempt that is spared: its carrier removes its own.
        if left := [folder for folder in found if not is_held(folder)]:
            self._remove({"folders": left})

    def _look_for_strays(self, engine: ContainerEngine) -> None:
        """Remove this engine's containers that killed runs of this user have left, once a run."""
        if engine in CARRIED and engine not in self._looked:
            self._looked.add(engine)
            self._remove({"engines": [engine]})

    def _folder(self, attempt: AttemptId) -> str:
        return str(self._context.run.container(attempt))

    def _remove(
        self,
        what: Mapping[str, Sequence[str]],
        then: Callable[[], object] = lambda: None,
        of_earlier: bool = True,
    ) -> None:
        """Have a helper remove containers, and call `then`, whatever comes of it.

        `of_earlier`: those of earlier supervisors, which is worth a line. Of a job that had to be
        killed it is what comes with that.
        """
        helper = Helper(self._context.loop, partial(self._told, of_earlier), lambda status: over())

        def over() -> None:
            helper.close()
            self._helpers.discard(helper)
            then()

        self._helpers.add(helper)
        line = command("gpulaunch.containers.removing", json.dumps(what), title="containers")
        try:
            helper.start(line, self._context.base)
        except OSError as error:
            why = error.strerror
            self._context.warn(None, f"what is left of a container is not removed: {why}")
            over()

    def _told(self, of_earlier: bool, message: bytes) -> None:
        found = understood(message, Removal)
        if found.removed and of_earlier:
            self._context.warn(None, f"removed what was left of {listing(found.removed)}")
        for name, why in found.left.items():
            self._context.warn(None, f"what is left of the container {name} is not removed: {why}")

    def close(self) -> None:
        """Let the processes that remove end by themselves, for a while."""
        for helper in self._helpers:
            helper.finish(LAST_LIMIT)
        self._helpers.clear()


def finding(environ: Mapping[str, str]) -> DoctorFinding | None:
    """Return what `gpulaunch doctor` finds of containers that killed runs have left; removes them.

    None where no engine with a daemon is here.
    """
    installed = InstalledEngines(environ)
    engines = sorted(engine for engine in CARRIED if installed.usable(engine))
    if not engines:
        return None
    found = remove_strays(engines)
    if found.left:
        why = "; ".join(f"{name}: {why}" for name, why in found.left.items())
        return DoctorFinding("warning", f"containers that killed runs left: {why}")
    if found.silent:
        why = "; ".join(f"{engine}: {why}" for engine, why in found.silent.items())
        return DoctorFinding("warning", f"whether killed runs left containers is not known: {why}")
    if program_inside() is None:
        what = f"no job can run in a container of {' or '.join(engines)}: {NO_PROGRAM}"
        return DoctorFinding("warning", what)
    if found.removed:
        return DoctorFinding(
            "note", f"removed containers that killed runs had left: {listing(found.removed)}"
        )
    names = " and ".join(engines)
    return DoctorFinding("ok", f"no container is left of earlier runs in {names}")


# ── Processes that outlived all their keepers ─────────────────────────────────────────────────────

KILL_TIMEOUT = 5.0
"""Seconds to wait for the end of a killed process."""
ROUNDS = 50
"""Searches at most, each for what killed processes had forked meanwhile."""


def end_stragglers(context: RunContext, attempt: AttemptId) -> None:
    """Kill the attempt's processes that outlived all their keepers; warn.

    There are some only where supervisor, both keepers and spawner were killed at once. They are
    found by a variable in their environment: a process that has cleared it since, or belongs to
    another user, is not found.
    """
    markers = {
        f"GPULAUNCH_RUN_ID={context.run_id}".encode(),
        b"GPULAUNCH_JOB=" + os.fsencode(attempt.job),
        b"GPULAUNCH_ATTEMPT=%d" % attempt.number,
    }
    if count := kill_marked(markers):
        context.warn(attempt.job, f"{count} processes had outlived their keepers: killed")


def alive_without(run: str) -> bool:
    """Tell whether processes of the run's jobs live on, or keepers, after their supervisor's end.

    Its keepers end a job by themselves, which takes its grace.
    """
    keepers = map(holder_of, listening(f"keeper/{run}/"))
    if any(one is not None and one.uid in (os.geteuid(), UNKNOWN.uid) for one in keepers):
        return True
    return bool(_find({f"GPULAUNCH_RUN_ID={run}".encode()}))


def left_below(name: str) -> list[int]:
    """Return the processes below the keepers that hold a name, without the keepers themselves.

    Reads no process's memory: that of a process which is stuck in the kernel may block the reader.
    """
    parents = {pid: parent for pid in _pids() if (parent := _parent(pid))}
    keepers = have_open(name, parents)
    below = {
        pid
        for pid in parents
        if pid not in keepers and not keepers.isdisjoint(_ancestors(pid, parents))
    }
    return sorted(below)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    try:
        return int(stat_fields(pid)[1])
    except (OSError, IndexError, ValueError):
        return 0


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def kill_marked(markers: set[bytes]) -> int:
    """Kill all processes with these variables; wait for their end and return how many.

    `markers`: each as `NAME=value`.
    """
    count = 0
    # Repeated until none is found: a process may fork just before it is killed.
    for _ in range(ROUNDS):
        found = _find(markers)
        if not found:
            break
        count += len(found)
        _kill(found, markers)
        if not _all_gone(found):
            break
    return count


def _find(markers: set[bytes]) -> list[int]:
    return [pid for pid in _pids() if _is_ours(pid, markers)]


def _is_ours(pid: int, markers: set[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return markers.issubset(file.read().split(b"\0")) and pid != os.getpid()
    except OSError:
        return False


def _kill(pids: list[int], markers: set[bytes]) -> None:
    for pid in pids:
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # The pid may be another process's by now; the handle cannot be.
                if _is_ours(pid, markers):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def _all_gone(pids: list[int]) -> bool:
    """Wait for the end of these processes; False where one stays (as one stuck in the kernel)."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(KILL_TIMEOUT * 1000):
                return False
        finally:
            os.close(handle)
    return True
