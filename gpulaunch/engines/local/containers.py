"""Holds back an attempt's end until nothing is left of its container; cleans up what others left.

    Ended ─▶ its folder is gone, as ever: posted at once
          └▶ its carrier was killed, and left it: `containers.removing` ─▶ posted

Owns the helper processes that remove. Starts no container.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from typing import Any

from gpulaunch.containers.removing import RECORD
from gpulaunch.core.events import Ended, Event, Launch, WorkerEnded
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.context import RunContext
from gpulaunch.helper_process import Helper, command


class LeftContainers:
    """Passes events on to the supervisor's `post`, ends of attempts once they left no container.

    The container of a worker is that of the attempt with which it was started.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._post = context.post
        self._workers: dict[AttemptId, AttemptId] = {}
        self._helpers: set[Helper] = set()

    def launched(self, launch: Launch) -> None:
        """Learn in whose worker an attempt runs, if in another one's."""
        if launch.worker is not None and launch.job.container is not None:
            self._workers[launch.attempt] = launch.worker

    def post(self, event: Event) -> None:
        """Post the event; an end whose container is still to be removed, after that."""
        match event:
            case Ended(attempt=attempt, kept=kept):
                owner = self._workers.pop(attempt, attempt)
                folder = "" if kept else self._folder(owner)
            case WorkerEnded(worker):
                folder = self._folder(worker)
            case _:
                folder = ""
        if not folder or not os.path.isdir(folder):
            self._post(event)
        elif not os.path.exists(os.path.join(folder, RECORD)):
            shutil.rmtree(folder, ignore_errors=True)  # of an engine without a daemon
            self._post(event)
        else:
            self._remove([folder], lambda: self._post(event))

    def clean(self, spared: Collection[AttemptId]) -> None:
        """Remove what earlier supervisors left of this run's containers.

        `spared`: attempts that may still run; their ends are posted here.
        """
        kept = {os.path.basename(self._folder(attempt)) for attempt in spared}
        home = self._context.run.containers
        try:
            left = [str(home / name) for name in os.listdir(home) if name not in kept]
        except OSError:
            return
        if left:
            self._remove(left, lambda: None)

    def _folder(self, attempt: AttemptId) -> str:
        return str(self._context.run.container(attempt))

    def _remove(self, folders: Sequence[str], then: Callable[[], object]) -> None:
        """Have a helper remove these containers, and call `then`, whatever comes of it."""
        helper = Helper(self._context.loop, self._told, lambda status: over())

        def over() -> None:
            helper.close()
            self._helpers.discard(helper)
            then()

        self._helpers.add(helper)
        what = json.dumps({"folders": folders})
        line = command("gpulaunch.containers.removing", what, title="containers")
        try:
            helper.start(line, self._context.base)
        except OSError as error:
            why = error.strerror
            self._context.warn(None, f"what is left of a container is not removed: {why}")
            over()

    def _told(self, message: bytes) -> None:
        found: dict[str, Any] = json.loads(message)
        if names := found["removed"]:
            self._context.warn(None, f"removed what was left of {', '.join(names)}")
        for name, why in found["left"].items():
            self._context.warn(None, f"what is left of the container {name} is not removed: {why}")

    def close(self) -> None:
        for helper in self._helpers:
            helper.close()
        self._helpers.clear()
