"""Many jobs that fail fast, one after the other, in the same way: stop, rather than burn the list.

Counted are different jobs in a row, with no success and no other kind of end between them. To stop
a list that would have gone well costs a night, to run one that fails at once costs little: the
limit wants to be a number that chance does not reach. It is of this supervisor's time alone; what
follows from it is Run's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpulaunch.core.words import duration

FAST_FAILURE_SECONDS = 60.0
"""An attempt that fails within so many seconds has hardly begun its work."""

_VARIES = re.compile(r"0x[0-9a-f]+|\d+")
MIN_BREAKER = 3


class Breaker:
    """`tripped` says why nothing more is to start; empty while all is well."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._alike = ""
        self._jobs: set[str] = set()
        self.tripped = ""

    @property
    def waits(self) -> str:
        """The same, with how a person goes on."""
        return (
            f"{self.tripped}; go on from another terminal with what failed (gpulaunch retry) or"
            " without (gpulaunch resume), or end the run (Ctrl-C)"
        )

    def worked(self) -> None:
        self._jobs.clear()

    def failed(
        self, job: str, status: str, evidence: str, params: Iterable[str], seconds: float
    ) -> None:
        """`status` is how it ended, in words; `evidence` what shows why; `params` what varies from
        job to job."""
        if seconds >= FAST_FAILURE_SECONDS:
            self._jobs.clear()
            return
        alike = f"{status}: {without_own(evidence, (job, *params))}"
        if alike != self._alike:
            self._alike = alike
            self._jobs.clear()
        self._jobs.add(job)
        if self._limit and len(self._jobs) >= self._limit and not self.tripped:
            self.tripped = (
                f"{len(self._jobs)} jobs in a row failed within {duration(FAST_FAILURE_SECONDS)}"
                f" of their start, all in the same way: {status}"
                + (f": {evidence}" if evidence else "")
            )

    def reset(self) -> None:
        self._jobs.clear()
        self.tripped = ""


def without_own(text: str, params: Iterable[str]) -> str:
    """The text without what is the job's own: its name and values, and all numbers."""
    for value in sorted(params, key=len, reverse=True):
        if len(value) >= MIN_BREAKER:
            text = text.replace(value, "*")
    return _VARIES.sub("0", text)
