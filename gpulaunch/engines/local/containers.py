"""Holds back an attempt's end until nothing is left of its container; cleans up what others left.

    Ended ─▶ its folder is gone, as ever: posted at once
          └▶ its carrier was killed, and left it: `containers.removing` ─▶ posted

Owns the helper processes that remove. Starts no container.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from gpulaunch.containers.command_lines import CARRIED, NO_PROGRAM
from gpulaunch.containers.engines import InstalledEngines
from gpulaunch.containers.removing import PID, Removal, is_held, remove_strays
from gpulaunch.core.events import Ended, Event, ImageReady, Launch, WorkerEnded
from gpulaunch.core.model import AttemptId, ContainerEngine
from gpulaunch.engines.context import RunContext
from gpulaunch.gpus.machine import DoctorFinding
from gpulaunch.helper_process import Helper, command, understood
from gpulaunch.process.native import program_inside
from gpulaunch.text import listing

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
