"""Finds the last sign of life of attempts whose end no supervisor recorded. Records nothing.

Their keepers end them when the supervisor is gone, and write each end to the run directory.
"""

from __future__ import annotations

from gpulaunch.core.ledger import AttemptRecord, Ledger
from gpulaunch.core.model import Instant
from gpulaunch.journal.rundir import RunDir
from gpulaunch.metrics.read import open_metrics
from gpulaunch.process.ends import read_end


def mark_last_seen(run: RunDir, ledger: Ledger) -> None:
    """Set `seen` of each attempt without a recorded end, in a run whose supervisor is gone.

    It is the end that the attempt's keeper wrote, else the run's own last sign of life.
    """
    if not (attempts := [one for one in ledger.open_attempts() if not one.queued]):
        return
    last = _of_the_run(run, ledger)
    for attempt in attempts:
        attempt.seen = _end(run, attempt) or last


def _of_the_run(run: RunDir, ledger: Ledger) -> Instant | None:
    """Return the time of the run's last fact or last sample, whichever is later."""
    if (last := ledger.last) is None or (reader := open_metrics(run.metrics)) is None:
        return last
    with reader:
        more = max(0.0, (reader.last_seen() or last.utc) - last.utc)
    return Instant(last.mono + more, last.utc + more)


def _end(run: RunDir, attempt: AttemptRecord) -> Instant | None:
    """Return the end that the keeper wrote; None where it was killed too, or it is unreadable."""
    try:
        record = read_end(run.end(attempt.id))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return record.end.ended if record else None
