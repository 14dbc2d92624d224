"""Finds the last sign of life of attempts whose end no supervisor recorded. Records nothing.

Their keepers end them when the supervisor is gone, and write each end to the run directory.
"""

from __future__ import annotations

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant
from gpulaunch.journal.ends import Ends
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.metrics.read import open_metrics


def mark_last_seen(run: RunDir, ledger: Ledger) -> None:
    """Set `seen` of each attempt without a recorded end, in a run whose supervisor is gone.

    It is the end that the attempt's keeper wrote, else the run's own last sign of life: keepers
    end attempts when the supervisor is gone. Records nothing.
    """
    if not (attempts := [one for one in ledger.open_attempts() if not one.queued]):
        return
    last, ends = _of_the_run(run, ledger), Ends(run.ends)
    for attempt in attempts:
        record = ends.of(str(attempt.id))  # None: the keeper was killed too
        attempt.seen = record.end.ended if record else last
        if attempt.seen is not None:
            attempt.ends = ledger.clock(attempt.seen)


def _of_the_run(run: RunDir, ledger: Ledger) -> Instant | None:
    """Return the time of the run's last fact or last sample, whichever is later."""
    if (last := ledger.last) is None or (reader := open_metrics(run.metrics)) is None:
        return last
    with reader:
        more = max(0.0, (reader.last_seen() or last.utc) - last.utc)
    return Instant(last.mono + more, last.utc + more)
