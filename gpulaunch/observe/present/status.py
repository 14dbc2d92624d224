"""A run as it stands, and the JSON of `gpulaunch status --json`: every job and its reason.

The run's state comes from the caller: whether a supervisor is alive is not in the journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, get_args

from msgspec import Struct, field

from gpulaunch.base import wording
from gpulaunch.base.schemas import SCHEMA
from gpulaunch.core.causes import Quoted
from gpulaunch.core.ledger import AttemptRecord, GpuRecord, JobRecord, Ledger
from gpulaunch.core.model import (
    Instant,
    Job,
    JobState,
    RunState,
    SentWarning,
    exit_code_of,
    signal_of,
)
from gpulaunch.core.reasons import OutsideHours, RunReason, WaitReason
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.observe.metrics.model import NOTHING, AttemptUse, Measured
from gpulaunch.observe.present import words
from gpulaunch.observe.present.plan import definition_json
from gpulaunch.observe.present.summary import RunPaths, evidence_of, next_command
from gpulaunch.observe.present.usage import Ahead, Estimate, energy_of, touched

if TYPE_CHECKING:
    from gpulaunch.base.documents import (
        AskedJob,
        Attempt,
        AttemptWarning,
        OnNode,
        QueuedAttempt,
        RunCard,
        RunHeader,
        RunJob,
        StatusDocument,
        Use,
    )

STATES: tuple[JobState, ...] = get_args(JobState)
STYLES: dict[JobState, str] = {
    "waiting": "dim",
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "skipped": "yellow",
}


class Standing(Struct, frozen=True):
    """A run as it stands. `why`: why jobs wait, where the live run knows better than the ledger.

    `earlier`: how long jobs took in an earlier run, in seconds by name; asked only of a live run.
    `here`: the run is this machine's. `definitions` are those of the jobs that are asked for, by
    name, as far as they are known. `suspended`: that the launcher is stopped or frozen, in words.
    """

    ledger: Ledger
    paths: RunPaths
    state: RunState
    why: Mapping[str, WaitReason]
    now: Instant
    measured: Measured = NOTHING
    earlier: Callable[[], Mapping[str, float]] = dict
    here: bool = True
    definitions: Mapping[str, Job] = field(default_factory=dict)
    suspended: str = ""

    @property
    def lasted(self) -> float:
        """How many seconds the run has lasted since it was started or resumed last.

        A run that was cut off lasted until its last sign of life.
        """
        ledger = self.ledger
        since = ledger.taken or ledger.opened or self.now
        now, last = self.now, ledger.last or since
        if self.state == "running":
            until = now.mono
        elif ledger.closed:
            until = ledger.closed.mono
        else:
            attempts = (one for job in ledger.jobs.values() for one in job.attempts if one.seen)
            ends = [(one.ends or 0.0) - ledger.ahead for one in attempts]
            measured = last.mono + (self.measured.seen or last.utc) - last.utc
            until = max(last.mono, min(max([measured, *ends]), now.mono))
        return max(0.0, until - since.mono)

    @property
    def ahead(self) -> Ahead | None:
        """How long a live run still takes; None if that is unknown."""
        if self.state != "running" or self.ledger.stopping is not None:
            return None
        # A resumed run has jobs of its own that finished.
        estimate = Estimate(self.earlier() if self.ledger.opening.epoch == 1 else None)
        estimate.seed(self.ledger)
        return estimate.ahead(self.now)

    @property
    def next_command(self) -> str | None:
        """The command that goes on with the run; None if nothing is left to do."""
        return next_command(self.state, self.ledger, os.fspath(self.paths.root))

    def reason(self, job: JobRecord) -> str:
        """Return why the job waits, is in doubt, failed or was skipped, in words."""
        return reason_of(job, self.why.get(job.name))


def status_json(run: Standing) -> StatusDocument:
    """Return what `status --json` prints."""
    return {
        "schema": SCHEMA,
        "run": header_json(run),
        "gpus": [gpu_json(record) for record in run.ledger.gpus.values()],
        "jobs": [job_json(run, job) for job in run.ledger.jobs.values()],
    }


def header_json(run: Standing) -> RunHeader:
    """Return what `status --json` says of the run as a whole."""
    ledger, ahead = run.ledger, run.ahead
    return {
        "id": ledger.opening.run,
        "name": ledger.opening.name,
        "dir": os.fspath(run.paths.root),
        "state": run.state,
        "suspended": bool(run.suspended),
        "reason": wording.run_reason(ledger.reason),
        "started": words.iso(ledger.opened.utc if ledger.opened else None),
        "ended": words.iso(ledger.closed.utc if ledger.closed else None),
        "seconds": run.lasted,
        "simulated": ledger.opening.simulated,
        "counts": {name: ledger.counts[name] for name in STATES},
        "vanished": ledger.vanished,
        "images": [
            {
                "image": source.image,
                "engine": known.engine,
                "id": known.id,
                "digest": known.digest,
            }
            for source, known in ledger.images.items()
        ],
        "code_changes": [
            {
                "path": change.path,
                "at": words.iso(change.utc) or "",
                "started": change.started,
                "jobs": change.jobs,
            }
            for change in ledger.code_changes.values()
        ],
        "energy": _rounded(run.measured.energy),
        "seconds_left": {"low": round(ahead.low), "high": round(ahead.high)} if ahead else None,
        "next_command": run.next_command,
    }


def held_up(ledger: Ledger, now: Instant) -> str:
    """Return why a live run starts nothing: it is being stopped, is paused, or out of its hours.

    Empty where it starts jobs.
    """
    if ledger.stopping is not None:
        why = words.visible(wording.run_reason(ledger.stopping))
        return f"stopping ({why}): running jobs are being ended"
    return "; ".join(words.visible(pause_told(why, now)) for why in told_pauses(ledger))


def told_pauses(ledger: Ledger) -> list[RunReason]:
    """Return what a person is to know of the pauses of a run: the first one, and its hours."""
    told = [ledger.paused] if ledger.paused is not None else []
    hours = ledger.pauses.get("hours")
    return told if hours is None or hours in told else [*told, hours]


def pause_told(why: RunReason, now: Instant) -> str:
    """Return why a live run starts nothing, with how long that still is where it is known."""
    if isinstance(why, OutsideHours):
        return wording.pause(why, now.utc)
    return f"paused, no new starts: {wording.pause(why)}"


def gpu_json(record: GpuRecord) -> RunCard:
    """Return what `status --json` says of a card."""
    gpu = record.gpu
    node: OnNode = {"node": gpu.node} if gpu.node else {}
    return {
        **node,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory": gpu.memory,
        "unified": gpu.unified,
        "simulated": gpu.simulated,
        "state": record.state,
        "reason": wording.card_reason(record.why),
        "drained": record.drained,
        "jobs": sorted(attempt.job for attempt in record.attempts),
    }


def job_json(run: Standing, job: JobRecord) -> RunJob:
    """Return what `status --json` says of a job."""
    last = job.attempts[-1] if job.attempts else None
    ended = last.outcome if last else None
    keep = os.fspath(run.paths.keep(job.name))
    defined = run.definitions.get(job.name)
    asked: AskedJob = {} if defined is None else {"definition": definition_json(defined)}
    return {
        **asked,
        "name": job.name,
        "state": job.state,
        "reason": run.reason(job),
        "params": dict(job.definition.params),
        "not_before": words.iso(job.definition.due.utc if job.definition.due else None),
        "exit_code": exit_code_of(ended) if ended else None,
        "signal": signal_of(ended) if ended else None,
        "failure": last.failure if last else None,
        "evidence": evidence_of(job),
        "note": run.ledger.noted.get(job.name, ""),
        "keep": keep if os.path.isdir(keep) else None,
        "energy": _rounded(energy_of(job.attempts, run.measured)),
        "attempts": [_attempt_json(run, attempt) for attempt in job.attempts],
    }


def _attempt_json(run: Standing, attempt: AttemptRecord) -> Attempt:
    ended = attempt.outcome
    out = os.fspath(run.paths.out(attempt.id))
    queue: QueuedAttempt = (
        {"queue_id": attempt.queue_id, "node": attempt.node} if attempt.queued else {}
    )
    return {
        **queue,
        "number": attempt.id.number,
        "state": attempt.state,
        "gpus": [{"index": _index(uuid, run.ledger), "uuid": uuid} for uuid in attempt.gpus],
        "pid": attempt.pid,
        "started": words.iso(attempt.started.utc if attempt.started else None),
        "ended": words.iso(attempt.ended.utc if attempt.ended else None),
        "seconds": round(attempt.seconds, 6) if attempt.ended or attempt.seen else None,
        "exit_code": exit_code_of(ended) if ended else None,
        "signal": signal_of(ended) if ended else None,
        "failure": attempt.failure,
        "evidence": attempt.evidence,
        "advice": advice(attempt.advice),
        "left_behind": attempt.left,
        "reports": list(attempt.reports),
        "warned": _warned_json(attempt.warned),
        "idle": attempt.idle.seconds if attempt.idle else None,
        "worker": str(attempt.worker) if attempt.worker else None,
        "step": attempt.step.number if attempt.step else None,
        "ladder": dict(attempt.step.values) if attempt.step else {},
        "promised_gpu_memory": attempt.promised or None,
        "log": os.fspath(run.paths.log(attempt.id)),
        "out": out if os.path.isdir(out) else None,
        **_use_json(attempt, run.measured),
    }


def _warned_json(sent: SentWarning | None) -> AttemptWarning | None:
    if sent is None:
        return None
    name = wording.signal_name(sent.signal).removeprefix("SIG")
    at = words.iso(sent.at.utc) or ""
    return {"at": at, "signal": name, "processes": sent.processes, "why": sent.why}


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
        "energy": _rounded(use.energy),
        "touched_gpu": touched(attempt.id, measured),
        "pin": pin,
        "pin_reason": why,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _index(uuid: str, ledger: Ledger) -> int | None:
    record = ledger.gpus.get(uuid)
    return record.gpu.index if record else None


def reason_of(job: JobRecord, live: WaitReason | None) -> str:
    """Return why the job waits, failed or was skipped, or what is in doubt while it runs, in words.

    `live`: what the run says of it.
    """
    if job.gone or (job.vanished and job.state == "running"):
        return words.gone(job)
    if job.state == "running" and isinstance(live, Quoted):
        return live.text
    if job.state == "waiting":
        return wording.job_reason(live or job.reason) or wording.due(job.definition.due)
    if job.state == "failed" and not job.reason and job.attempts:
        return words.ending(job.attempts[-1])
    return wording.job_reason(job.reason)
