"""The order of what is posted of attempts that follow each other in one worker.

    AttemptOver(a) ─▶ is_over(a) ─▶ a's cards are looked at ─▶ Ended(a) ─▶ what was held behind a

An attempt is over some time before its end is posted: the driver is asked about its cards first.
Meanwhile the core takes its worker for one that runs, and launches behind it. INVARIANT: whatever
becomes of such a launch is posted after that end, so that the core knows whether there is a worker.
"""

from __future__ import annotations

from gpulaunch.core.events import Ended, WorkerEnded
from gpulaunch.core.facts import AttemptStarted
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.protocol import Post


class PostInOrder:
    """Posts what comes of an attempt once the end of the attempt before it is posted."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._held: dict[AttemptId, list[Ended | AttemptStarted | WorkerEnded]] = {}

    def is_over(self, attempt: AttemptId) -> None:
        """Hold what comes of attempts behind this one until its end, now to be told, is posted."""
        self._held[attempt] = []

    def post(
        self, event: Ended | AttemptStarted | WorkerEnded, behind: AttemptId | None = None
    ) -> None:
        """Post the event, and after an attempt's end what was held for it; or hold the event.

        `behind`: the attempt behind which the event's own was launched, or which the worker ran
        last.
        """
        if behind is not None and behind in self._held:
            self._held[behind].append(event)
            return
        self._post(event)
        if isinstance(event, Ended):
            for held in self._held.pop(event.attempt, ()):
                self.post(held)
