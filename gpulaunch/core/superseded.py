"""Which attempts nobody needs any more: they came to nothing, and a later one was made."""

from __future__ import annotations

from collections.abc import Iterator

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId


def superseded(ledger: Ledger) -> Iterator[AttemptId]:
    """Yield the attempts that did not succeed, and after which their job was started once more.

    An attempt of which nothing tells how it ended may have succeeded: it is none of them. Nor does
    one count as a later start that never began, in a queue or because it could not be prepared.
    """
    for job in ledger.jobs.values():
        begun = [number for number, one in enumerate(job.attempts) if one.started is not None]
        for attempt in job.attempts[: begun[-1]] if begun else ():
            if not attempt.is_open and attempt.state != "succeeded":
                yield attempt.id
