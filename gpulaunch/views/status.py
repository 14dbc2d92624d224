"""`gpulaunch status`: every job's state and, where it is not plain, why. As JSON and for people.

The run's state comes from the caller: whether a supervisor is alive is not in the journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpulaunch.core.ledger import AttemptRecord, GpuRecord, JobRecord, Ledger
from gpulaunch.core.model import Instant, JobState, RunState, exit_code_of, signal_of
from gpulaunch.metrics.model import NOTHING, AttemptUse, Measured
from gpulaunch.views import words
from gpulaunch.views.estimate import Ahead, Estimate
from gpulaunch.views.events import unusable
from gpulaunch.views.paths import RunPaths

if TYPE_CHECKING:
    from rich.console import Console

STATES: tuple[JobState, ...] = (
    "waiting",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    "skipped",
)
SHOWN = 10


def status_json(
    ledger: Ledger,
    paths: RunPaths,
    state: RunState,
    reasons: Mapping[str, str],
    measured: Measured = NOTHING,
    now: Instant | None = None,
    earlier: Callable[[], Mapping[str, float]] = dict,
) -> dict[str, Any]:
    """What `status --json` prints. `reasons`: why jobs wait, where the live run knows better.
    `earlier`: how long jobs took in an earlier run, in seconds by name; asked only of a live run.

    Durations in seconds, memory in bytes, utilisation in per cent, times UTC ISO 8601; what is
    not known is null. Cards of a cluster have their `node`, attempts there that and `queue_id`.
    """
    ahead = _ahead(ledger, state, now, earlier)
    return {
        "run": {
            "id": ledger.run,
            "name": ledger.name,
            "dir": os.fspath(paths.root),
            "state": state,
            "reason": ledger.reason,
            "started": words.iso(ledger.opened.utc if ledger.opened else None),
            "ended": words.iso(ledger.closed.utc if ledger.closed else None),
            "simulated": ledger.simulated,
            "counts": {name: ledger.counts[name] for name in STATES},
            "seconds_left": ahead and {"low": round(ahead.low), "high": round(ahead.high)},
        },
        "gpus": [_gpu_json(record) for record in ledger.gpus.values()],
        "jobs": [_job_json(job, ledger, paths, reasons, measured) for job in ledger.jobs.values()],
    }


def _ahead(
    ledger: Ledger,
    state: RunState,
    now: Instant | None,
    earlier: Callable[[], Mapping[str, float]],
) -> Ahead | None:
    """How long a live run still takes; None where that cannot be said."""
    if state != "running" or now is None or ledger.stopping is not None:
        return None
    # One that was taken up again knows by its own past.
    estimate = Estimate(earlier() if ledger.epoch == 1 else None)
    estimate.seed(ledger)
    return estimate.ahead(now)


def _gpu_json(record: GpuRecord) -> dict[str, Any]:
    gpu = record.gpu
    node = {"node": gpu.node} if gpu.node else {}
    return node | {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory": gpu.memory,
        "simulated": gpu.simulated,
        "state": record.state,
        "reason": record.why,
        "drained": record.drained,
        "jobs": sorted(attempt.job for attempt in record.attempts),
    }


def _job_json(
    job: JobRecord,
    ledger: Ledger,
    paths: RunPaths,
    reasons: Mapping[str, str],
    measured: Measured,
) -> dict[str, Any]:
    last = job.attempts[-1] if job.attempts else None
    ended = last.outcome if last else None
    return {
        "name": job.name,
        "state": job.state,
        "reason": reason_of(job, reasons),
        "params": dict(job.params),
        "exit_code": exit_code_of(ended) if ended else None,
        "signal": signal_of(ended) if ended else None,
        "failure": last.failure if last else None,
        "attempts": [
            _attempt_json(attempt, ledger, paths) | _measured_json(attempt, measured)
            for attempt in job.attempts
        ],
    }


def _attempt_json(attempt: AttemptRecord, ledger: Ledger, paths: RunPaths) -> dict[str, Any]:
    ended = attempt.outcome
    out = os.fspath(paths.out(attempt.id))
    queue = {"queue_id": attempt.queue_id, "node": attempt.node} if attempt.queued else {}
    return queue | {
        "number": attempt.id.number,
        "state": attempt.state,
        "gpus": [{"index": _index(uuid, ledger), "uuid": uuid} for uuid in attempt.gpus],
        "pid": attempt.pid,
        "started": words.iso(attempt.started.utc if attempt.started else None),
        "ended": words.iso(attempt.ended.utc if attempt.ended else None),
        "seconds": round(attempt.seconds, 6) if attempt.ended else None,
        "exit_code": exit_code_of(ended) if ended else None,
        "signal": signal_of(ended) if ended else None,
        "failure": attempt.failure,
        "evidence": attempt.evidence,
        "advice": attempt.advice,
        "reports": list(attempt.reports),
        "worker": str(attempt.worker) if attempt.worker else None,
        "log": os.fspath(paths.log(attempt.id)),
        "out": out if os.path.isdir(out) else None,
    }


def _measured_json(attempt: AttemptRecord, measured: Measured) -> dict[str, Any]:
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


def reason_of(job: JobRecord, reasons: Mapping[str, str]) -> str:
    """Why the job waits, failed or was skipped, in words; empty where there is nothing to say."""
    if job.state == "waiting":
        if job.vanished:
            return "no longer in the job file"
        return reasons.get(job.name) or job.reason
    if job.state == "failed" and not job.reason and job.attempts:
        return words.ending(job.attempts[-1])
    return job.reason


# ── For people ──────────────────────────────────────────────────────────────────────────────────

_STYLES: dict[JobState, str] = {
    "waiting": "dim",
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "skipped": "yellow",
}


def print_status(
    console: Console,
    ledger: Ledger,
    paths: RunPaths,
    state: RunState,
    reasons: Mapping[str, str],
    now: Instant,
    everything: bool = False,
    earlier: Callable[[], Mapping[str, float]] = dict,
    here: bool = True,
) -> None:
    """Counts, cards and jobs. Without `everything`: running, failed, and the first that wait.

    `earlier` as for `status_json`; `here`: the run is this machine's.
    """
    if state != "running":  # what no supervisor has ended did not last until now
        now = ledger.closed or ledger.last or now
    _print_head(console, ledger, paths, state, now, earlier, here)
    _print_cards(console, ledger)
    if everything:
        _print_jobs(console, ledger.jobs.values(), ledger, reasons, now)
        return
    by_state: dict[JobState, list[JobRecord]] = {name: [] for name in STATES}
    for job in ledger.jobs.values():
        by_state[job.state].append(job)
    hidden = []
    shown: list[JobRecord] = []
    limits = {"running": 64, "failed": 64, "waiting": SHOWN, "skipped": SHOWN, "cancelled": SHOWN}
    for name in ("running", "failed", "cancelled", "skipped", "waiting"):
        jobs = by_state[name]
        shown += jobs[: limits[name]]
        if len(jobs) > limits[name]:
            hidden.append(f"{words.count(len(jobs) - limits[name])} more {name}")
    if by_state["succeeded"]:
        hidden.append(f"{words.count(len(by_state['succeeded']))} succeeded")
    _print_jobs(console, shown, ledger, reasons, now)
    if hidden:
        _line(console, f"not listed: {', '.join(hidden)} (--all lists every job)", "dim")


def _print_head(
    console: Console,
    ledger: Ledger,
    paths: RunPaths,
    state: RunState,
    now: Instant,
    earlier: Callable[[], Mapping[str, float]],
    here: bool,
) -> None:
    from rich.text import Text

    since = ledger.taken or ledger.opened or now
    ahead = _ahead(ledger, state, now, earlier)
    style = {"succeeded": "green", "running": "cyan", "failed": "bold red"}.get(state, "yellow")
    head = Text.assemble(
        (words.visible(ledger.name), "bold"),
        "  ",
        (state, style),
        f"  {words.duration(now.utc - since.utc)}",
        f", {words.rough_range(ahead.low, ahead.high)} to go" if ahead else "",
        "  simulated cards" if ledger.simulated else "",
        (f"  {words.visible(os.fspath(paths.root))}", "dim"),
    )
    console.print(head, soft_wrap=True)
    counts = Text(", ").join(
        Text(f"{words.count(ledger.counts[name])} {name}", _STYLES[name])
        for name in STATES
        if ledger.counts[name] > 0
    )
    console.print(counts or Text("no jobs"), soft_wrap=True)
    if state == "running":
        for what, why in (("paused", ledger.paused), ("stopping", ledger.stopping)):
            if why is not None:
                _line(console, f"{what}: {words.visible(why)}", "yellow")
        if not here:
            host = words.visible(ledger.host)
            _line(console, f"as it is written: whether it is alive shows on {host} alone", "yellow")
    elif ledger.reason:
        _line(console, words.visible(ledger.reason), "yellow")
    elif state == "interrupted" and ledger.queueing and ledger.open_attempts():
        _line(console, words.ON_ITS_OWN, "yellow")


def _print_cards(console: Console, ledger: Ledger) -> None:
    for record in ledger.gpus.values():
        why = ""
        if record.state in ("elsewhere", "occupied", "aside"):
            why = unusable(record.state, record.why)
        if record.drained:
            why = ", ".join(filter(None, ["given back: no new starts there", why]))
        if why:
            _line(console, f"{words.card(record.gpu)}: {why}", "yellow")


def _print_jobs(
    console: Console,
    jobs: Iterable[JobRecord],
    ledger: Ledger,
    reasons: Mapping[str, str],
    now: Instant,
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("job", overflow="ellipsis", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for job in jobs:
        last = job.attempts[-1] if job.attempts else None
        table.add_row(
            Text(words.visible(job.name)),
            Text(job.state, _STYLES[job.state]),
            _time(last, now) if job.state not in ("waiting", "skipped") else "",
            Text(words.visible(_about(job, last, ledger, reasons))),
        )
    if table.row_count:
        console.print()
        console.print(table)


def _time(attempt: AttemptRecord | None, now: Instant) -> str:
    if attempt is None:
        return ""
    if attempt.ended is None:
        return words.duration(now.utc - (attempt.started or attempt.launched).utc)
    return words.duration(attempt.seconds)


def _about(
    job: JobRecord, last: AttemptRecord | None, ledger: Ledger, reasons: Mapping[str, str]
) -> str:
    where = (
        words.attempt_cards(last, ledger)
        if last and job.state not in ("waiting", "skipped")
        else ""
    )
    began = last is not None and not last.taken_back
    number = f"attempt {last.id.number}" if last and began and last.id.number > 1 else ""
    parts: Sequence[str] = (
        where,
        reason_of(job, reasons),
        number,
        "changed since" if job.changed else "",
    )
    return ", ".join(filter(None, parts))


def _line(console: Console, text: str, style: str) -> None:
    from rich.text import Text

    console.print(Text(text, style), soft_wrap=True)
