"""Stops a run in which many jobs in a row fail fast and in the same way.

It counts different jobs, with no success and no other kind of failure between them. A job counts
once it has failed for good, or once it has failed again: a first failure that is about to be
repeated says little, and neither does one whose repeat changes something (`core.completion`).

Stopping a list that would have gone well costs a night, running one that fails at once costs
little: so the limit has to be a number that chance does not reach. The count is lost with its
supervisor, and what follows from a trip is `core.run`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpulaunch.core.model import Outcome
from gpulaunch.core.reasons import AttemptEnd, FailedAlike

FAST_FAILURE_SECONDS = 60.0
"""Seconds below which a failed attempt counts: it has hardly begun its work."""

_VARIES = re.compile(r"0x[0-9a-f]+|\d+")
MIN_BREAKER = 3
"""Characters that a job's value needs to be taken out of a text: shorter ones are in any text."""


class Breaker:
    """A count of jobs that failed alike. `tripped`: why nothing more starts; None: it may.

    `limit`: so many jobs trip it; None: never.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._alike: tuple[Outcome, str] | None = None
        self._jobs: set[str] = set()
        self.tripped: FailedAlike | None = None

    def worked(self) -> None:
        self._jobs.clear()

    def failed(
        self,
        job: str,
        end: AttemptEnd,
        evidence: str,
        params: Iterable[str],
        seconds: float,
        counts: bool = True,
    ) -> None:
        """Note a failed attempt that ran for `seconds`; trip once `limit` jobs failed alike.

        `evidence` shows why it ended so; `params` are the job's values, which differ from job to
        job. `counts`: the job counts by it; otherwise it goes again and may do better.
        """
        if self._limit is None or seconds >= FAST_FAILURE_SECONDS:
            self._jobs.clear()
            return
        alike = (end.outcome, without_own(evidence, (job, *params)))
        if alike != self._alike:
            self._alike = alike
            self._jobs.clear()
        if counts:
            self._jobs.add(job)
        if len(self._jobs) >= self._limit and not self.tripped:
            shown = AttemptEnd(end.outcome, evidence, end.service)
            self.tripped = FailedAlike(len(self._jobs), FAST_FAILURE_SECONDS, shown)

    def reset(self) -> None:
        self._jobs.clear()
        self.tripped = None


def without_own(text: str, params: Iterable[str]) -> str:
    """Return the text with the job's own values as `*` and every number as 0."""
    for value in sorted(params, key=len, reverse=True):
        if len(value) >= MIN_BREAKER:
            text = text.replace(value, "*")
    return _VARIES.sub("0", text)
