"""When attempts were last known to live whose end no supervisor recorded. Reads; records nothing.

Their keepers end them when the supervisor is gone, and write each end down beside the journal.
"""

from __future__ import annotations

from gpulaunch.core.ledger import AttemptRecord, Ledger
from gpulaunch.core.model import Instant
from gpulaunch.journal.rundir import RunDir
from gpulaunch.metrics.read import open_metrics
from gpulaunch.process.ends import read_end


def mark_last_seen(run: RunDir, ledger: Ledger) -> None:
    """Set `seen` of every attempt of a run without supervisor whose end is not in its journal: the
    end that the keeper wrote, else the last sign of life of the run itself."""
    if not (attempts := [one for one in ledger.open_attempts() if not one.queued]):
        return
    last = _of_the_run(run, ledger)
    for attempt in attempts:
        attempt.seen = _end(run, attempt) or last


def _of_the_run(run: RunDir, ledger: Ledger) -> Instant | None:
    """The later one of the last fact and the last sample."""
    if (last := ledger.last) is None or (reader := open_metrics(run.metrics)) is None:
        return last
    with reader:
        more = max(0.0, (reader.last_seen() or last.utc) - last.utc)
    return Instant(last.mono + more, last.utc + more)


def _end(run: RunDir, attempt: AttemptRecord) -> Instant | None:
    """None where the keeper, too, was killed, or its record cannot be read."""
    try:
        end = read_end(run.end(attempt.id))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return end.ended if end else None
