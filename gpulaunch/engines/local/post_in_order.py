"""The order of what is posted of attempts that follow each other in one worker.

An attempt may begin, and end, while the cards of the one before it are still being looked at.
"""

from __future__ import annotations

from gpulaunch.core.events import Ended
from gpulaunch.core.facts import AttemptStarted
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.protocol import Post


class PostInOrder:
    """Posts what comes of an attempt once the end of the one before it is posted."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._before: dict[AttemptId, AttemptId] = {}
        self._held: dict[AttemptId, list[Ended | AttemptStarted]] = {}

    def post_after(self, attempt: AttemptId, before: AttemptId) -> None:
        """Hold what comes of this attempt until the end of the one before it is posted."""
        self._before[attempt] = before
        self._held[before] = []

    def post(self, event: Ended | AttemptStarted) -> None:
        """Post the event, and after an attempt's end what was held until then; or hold it."""
        if before := self._before.get(event.attempt):
            self._held[before].append(event)
            return
        self._post(event)
        if isinstance(event, Ended) and event.attempt in self._held:
            self._before = {a: b for a, b in self._before.items() if b != event.attempt}
            for held in self._held.pop(event.attempt):
                self.post(held)
