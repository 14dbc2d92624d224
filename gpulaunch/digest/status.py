"""Makes the JSON of `gpulaunch status --json`: every job's state and its reason.

The run's state comes from the caller: whether a supervisor is alive is not in the journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import get_args

from gpulaunch import wording
from gpulaunch.contracts import (
    SCHEMA,
    Attempt,
    OnNode,
    QueuedAttempt,
    RunCard,
    RunJob,
    StatusDocument,
    Use,
)
from gpulaunch.core.ledger import AttemptRecord, GpuRecord, JobRecord, Ledger
from gpulaunch.core.model import Instant, JobState, RunState, exit_code_of, signal_of
from gpulaunch.core.reasons import WaitReason
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.digest import words
from gpulaunch.digest.estimate import Ahead, Estimate
from gpulaunch.digest.groups import evidence_of
from gpulaunch.digest.summary import RunPaths, next_command
from gpulaunch.metrics.model import NOTHING, AttemptUse, Measured

STATES: tuple[JobState, ...] = get_args(JobState)
STYLES: dict[JobState, str] = {
    "waiting": "dim",
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "skipped": "yellow",
}


def status_json(
    ledger: Ledger,
    paths: RunPaths,
    state: RunState,
    reasons: Mapping[str, WaitReason],
    measured: Measured = NOTHING,
    now: Instant | None = None,
    earlier: Callable[[], Mapping[str, float]] = dict,
) -> StatusDocument:
    """Return what `status --json` prints. `reasons`: why jobs wait, by the live run's answer.
    `earlier`: how long jobs took in an earlier run, in seconds by name; asked only of a live run.
    """
    ahead = ahead_of(ledger, state, now, earlier)
    return {
        "schema": SCHEMA,
        "run": {
            "id": ledger.opening.run,
            "name": ledger.opening.name,
            "dir": os.fspath(paths.root),
            "state": state,
            "reason": wording.run_reason(ledger.reason),
            "started": words.iso(ledger.opened.utc if ledger.opened else None),
            "ended": words.iso(ledger.closed.utc if ledger.closed else None),
            "seconds": lasted(ledger, state, now, measured) if now else None,
            "simulated": ledger.opening.simulated,
            "counts": {name: ledger.counts[name] for name in STATES},
            "vanished": ledger.vanished,
            "seconds_left": {"low": round(ahead.low), "high": round(ahead.high)} if ahead else None,
            "next_command": next_command(state, ledger, os.fspath(paths.root)),
        },
        "gpus": [_gpu_json(record) for record in ledger.gpus.values()],
        "jobs": [_job_json(job, ledger, paths, reasons, measured) for job in ledger.jobs.values()],
    }


def lasted(ledger: Ledger, state: RunState, now: Instant, measured: Measured = NOTHING) -> float:
    """Return how many seconds the run has lasted since it was started or resumed last.

    A run that was cut off lasted until its last sign of life.
    """
    since = ledger.taken or ledger.opened or now
    if state == "running":
        until = now.utc
    elif ledger.closed:
        until = ledger.closed.utc
    else:
        heard = ledger.last.utc if ledger.last else since.utc
        ends = [one.seen.utc for job in ledger.jobs.values() for one in job.attempts if one.seen]
        until = max(heard, min(max([measured.seen or heard, *ends]), now.utc))
    return max(0.0, until - since.utc)


def held_up(ledger: Ledger) -> str:
    """Return why a live run starts nothing: it is being stopped, or is paused; else empty."""
    if ledger.stopping is not None:
        why = words.visible(wording.run_reason(ledger.stopping))
        return f"stopping ({why}): running jobs are being ended"
    if ledger.paused is not None:
        return f"paused, no new starts: {words.visible(wording.pause(ledger.paused))}"
    return ""


def ahead_of(
    ledger: Ledger,
    state: RunState,
    now: Instant | None,
    earlier: Callable[[], Mapping[str, float]],
) -> Ahead | None:
    """Return how long a live run still takes; None if that is unknown."""
    if state != "running" or now is None or ledger.stopping is not None:
        return None
    # A resumed run has jobs of its own that finished.
    estimate = Estimate(earlier() if ledger.opening.epoch == 1 else None)
    estimate.seed(ledger)
    return estimate.ahead(now)


def _gpu_json(record: GpuRecord) -> RunCard:
    gpu = record.gpu
    node: OnNode = {"node": gpu.node} if gpu.node else {}
    return {
        **node,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory": gpu.memory,
        "simulated": gpu.simulated,
        "state": record.state,
        "reason": wording.card_reason(record.why),
        "drained": record.drained,
        "jobs": sorted(attempt.job for attempt in record.attempts),
    }


def _job_json(
    job: JobRecord,
    ledger: Ledger,
    paths: RunPaths,
    reasons: Mapping[str, WaitReason],
    measured: Measured,
) -> RunJob:
    last = job.attempts[-1] if job.attempts else None
    ended = last.outcome if last else None
    return {
        "name": job.name,
        "state": job.state,
        "reason": reason_of(job, reasons.get(job.name)),
        "params": dict(job.definition.params),
        "exit_code": exit_code_of(ended) if ended else None,
        "signal": signal_of(ended) if ended else None,
        "failure": last.failure if last else None,
        "evidence": evidence_of(job),
        "attempts": [_attempt_json(attempt, ledger, paths, measured) for attempt in job.attempts],
    }


def _attempt_json(
    attempt: AttemptRecord, ledger: Ledger, paths: RunPaths, measured: Measured
) -> Attempt:
    ended = attempt.outcome
    out = os.fspath(paths.out(attempt.id))
    queue: QueuedAttempt = (
        {"queue_id": attempt.queue_id, "node": attempt.node} if attempt.queued else {}
    )
    return {
        **queue,
        "number": attempt.id.number,
        "state": attempt.state,
        "gpus": [{"index": _index(uuid, ledger), "uuid": uuid} for uuid in attempt.gpus],
        "pid": attempt.pid,
        "started": words.iso(attempt.started.utc if attempt.started else None),
        "ended": words.iso(attempt.ended.utc if attempt.ended else None),
        "seconds": round(attempt.seconds, 6) if attempt.ended or attempt.seen else None,
        "exit_code": exit_code_of(ended) if ended else None,
        "signal": signal_of(ended) if ended else None,
        "failure": attempt.failure,
        "evidence": attempt.evidence,
        "advice": advice(attempt.advice),
        "reports": list(attempt.reports),
        "worker": str(attempt.worker) if attempt.worker else None,
        "log": os.fspath(paths.log(attempt.id)),
        "out": out if os.path.isdir(out) else None,
        **_use_json(attempt, measured),
    }


def _use_json(attempt: AttemptRecord, measured: Measured) -> Use:
    use = measured.uses.get(attempt.id) or AttemptUse(attempt.id)
    pin, why = measured.pins.get(attempt.id, (None, ""))
    return {
        "peak_gpu_memory": use.peak_gpu_memory,
        "mean_gpu_memory": use.mean_gpu_memory,
        "peak_card_memory": use.peak_card_memory,
        "peak_gpu_utilization": _rounded(use.peak_gpu_utilization),
        "mean_gpu_utilization": _rounded(use.mean_gpu_utilization),
        "gpu_seconds": _rounded(use.gpu_seconds),
        "cpu_seconds": _rounded(use.cpu_seconds),
        "peak_resident": use.peak_resident,
        "pin": pin,
        "pin_reason": why,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _index(uuid: str, ledger: Ledger) -> int | None:
    record = ledger.gpus.get(uuid)
    return record.gpu.index if record else None


def reason_of(job: JobRecord, live: WaitReason | None) -> str:
    """Return why the job waits (`live`: as the run says), failed or was skipped, in words."""
    if job.gone:
        return words.gone(job)
    if job.state == "waiting":
        return wording.job_reason(live or job.reason)
    if job.state == "failed" and not job.reason and job.attempts:
        return words.ending(job.attempts[-1])
    return wording.job_reason(job.reason)
