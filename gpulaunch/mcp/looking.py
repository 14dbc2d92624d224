"""The tools that only look: check, status, why, logs, results and gpus."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import end_of
from gpulaunch.base.schemas import SCHEMA
from gpulaunch.base.text import clip, listing
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import SETTLED_STATES, JobState
from gpulaunch.journal.choices import Choices
from gpulaunch.journal.read import Follower
from gpulaunch.mcp.arguments import (
    Caller,
    CheckArguments,
    GpusArguments,
    LogsArguments,
    NoteTaker,
    ResultsArguments,
    StatusArguments,
    WhyArguments,
    directory_of,
    job_file_of,
)
from gpulaunch.observe.present.status import Standing, gpu_json, header_json, job_json
from gpulaunch.observe.present.tail import fold, read_tail
from gpulaunch.observe.results.table import results_json
from gpulaunch.run import lookup
from gpulaunch.run.check import check as check_file
from gpulaunch.run.check import plan_document
from gpulaunch.run.lookup import FoundRun, LogSelection, attempts_of, is_silent, jobs_of, pulse
from gpulaunch.run.options import RunOptions
from gpulaunch.run.outputs import results as table_of_results
from gpulaunch.run.settings import cards_here
from gpulaunch.run.standing import command_in, standing_of

if TYPE_CHECKING:
    from gpulaunch.base.documents import (
        CardsPage,
        JobDocument,
        JobLine,
        LogEnd,
        LogsDocument,
        PlanPage,
        ResultsPage,
        StatusPage,
    )

MAX_WARNINGS = 20
"""Places that the lint found, at most, in one answer."""
MAX_LOGS = 10
"""Logs, at most, in one answer."""
MAX_LOG_BYTES = 48 << 10
"""Bytes, at most, of all logs in one answer."""
MAX_LOG_TEXT = 4 * MAX_LOG_BYTES
"""Characters, at most, in which they are shown: `\\x00` is one byte."""
MAX_LINE = 2000
"""Characters, at most, of a log's line."""
MAX_ATTEMPTS = 3
"""Attempts of a job, at most, in one answer."""
LOG_END = 20
"""Lines of a job's log that `why` shows."""

URGENCY: Sequence[JobState] = (
    "failed",
    "running",
    "waiting",
    "skipped",
    "cancelled",
    "succeeded",
)
"""In this order jobs are told: what is cut off is what needs nobody."""


def check(asked: CheckArguments, notes: NoteTaker, _: Caller) -> PlanPage:
    """Return the plan of a job file, its first jobs, and what is doubtful in its scripts."""
    path, text = job_file_of(asked.job_file, asked.text, asked.cwd)
    options = RunOptions(Choices(gpus=asked.gpus, simulate=asked.simulate), asked.engine)
    preview = check_file(path, options, notes, text=text, cwd=directory_of(asked.cwd))
    jobs, found = preview.jobs, preview.found
    told = {f"warning: {finding}" for finding in found}
    notes.taken = [line for line in notes.taken if line not in told]
    shown = replace(preview, jobs=jobs[: asked.limit], found=found[:MAX_WARNINGS])
    return {
        **plan_document(shown),
        "total_jobs": len(jobs),
        "total_warnings": len(found),
        "notes": notes.lines,
    }


def status(asked: StatusArguments, notes: NoteTaker, caller: Caller) -> StatusPage:
    """Return a run as it stands, with the jobs that are meant; with `wait`, as it ends."""
    one = lookup.status(asked.run, notes, asked.jobs)
    if asked.wait and one.state == "running":
        _wait(one, asked.wait, caller)
        one = lookup.status(one.run.path)
    names = jobs_of(one.ledger, asked.jobs) if asked.jobs else list(one.ledger.jobs)
    records = [one.ledger.jobs[name] for name in names]
    meant = [job for job in records if job.state in (asked.states or URGENCY)]
    standing = standing_of(one, base="/")
    return {
        "schema": SCHEMA,
        "run": header_json(standing),
        "gpus": [gpu_json(record) for record in one.ledger.gpus.values()],
        "jobs": [_line(standing, job) for job in _urgent(meant)[: asked.limit]],
        "total": len(meant),
        "notes": notes.lines,
    }


def why(asked: WhyArguments, notes: NoteTaker, _: Caller) -> JobDocument:
    """Return all about one job: why it waits or failed, its command, how its log ends."""
    one = lookup.status(asked.run, notes, [asked.job])
    names = jobs_of(one.ledger, [asked.job])
    if len(names) > 1:
        raise UsageError(f"{asked.job} fits {len(names):,} jobs, name one: {listing(names, 10)}")
    (name,) = names
    standing, job = standing_of(one, names, "/"), one.ledger.jobs[name]
    told = job_json(standing, job)
    newest = told["attempts"][-MAX_ATTEMPTS:]
    return {
        "schema": SCHEMA,
        "run": str(one.run.path),
        "state": one.state,
        "command": command_in(standing, name),
        "job": {**told, "attempts": newest},
        "total_attempts": len(told["attempts"]),
        "log_end": list(read_tail(newest[-1]["log"], LOG_END)) if newest else [],
        "notes": notes.lines,
    }


def logs(asked: LogsArguments, notes: NoteTaker, _: Caller) -> LogsDocument:
    """Return the last lines of jobs' logs, those of failed jobs first."""
    one = lookup.status(asked.run, notes, asked.jobs)
    named = bool(asked.jobs) or asked.failed
    among = jobs_of(one.ledger, asked.jobs) if asked.jobs else list(one.ledger.jobs)
    jobs = _urgent([one.ledger.jobs[name] for name in among])
    names = [job.name for job in jobs if job.state == "failed" or not asked.failed]
    if asked.failed and not names:
        raise UsageError(f"{one.run.path}: nothing failed{' so far' * (one.state == 'running')}")
    wanted = LogSelection(one.run, one.id, names if named else None, asked.attempt, raw=False)
    attempts = attempts_of(wanted, one.ledger)
    place = {name: at for at, name in enumerate(names)}
    attempts.sort(key=lambda attempt: place[attempt.id.job])
    shown = attempts[:MAX_LOGS]
    window = MAX_LOG_BYTES // len(shown)
    return {
        "schema": SCHEMA,
        "run": str(one.run.path),
        "logs": [_log(wanted, attempt, asked.lines, window, notes) for attempt in shown],
        "total": len(attempts),
        "notes": notes.lines,
    }


def results(asked: ResultsArguments, notes: NoteTaker, _: Caller) -> ResultsPage:
    """Return a row for each job of these runs: its values, what it left, what it took."""
    table = table_of_results(
        asked.runs,
        asked.files or None,
        notes,
        states=asked.states,
        only=asked.jobs,
        sort=asked.sort,
    )
    shown = results_json(table.first(asked.limit))
    return {**shown, "total": len(table.rows), "notes": notes.lines}


def gpus(_: GpusArguments, notes: NoteTaker, __: Caller) -> CardsPage:
    """Return the machine's cards: who uses them, who holds their leases, their health."""
    rows = cards_here(notes)
    return {"schema": SCHEMA, "gpus": rows, "notes": notes.lines}


# ── A run's jobs ────────────────────────────────────────────────────────────────────────────────


def _urgent(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs in the order of URGENCY, and in the run's own within that."""
    return sorted(jobs, key=lambda job: URGENCY.index(job.state))


def _line(run: Standing, job: JobRecord) -> JobLine:
    told = job_json(run, job)
    last = told["attempts"][-1] if told["attempts"] else None
    return {
        "name": job.name,
        "state": job.state,
        "reason": told["reason"],
        "failure": told["failure"],
        "exit_code": told["exit_code"],
        "attempts": len(job.attempts),
        "gpus": [card["index"] for card in last["gpus"]] if last else [],
        "seconds": last["seconds"] if last else None,
        "log": last["log"] if last else None,
    }


def _wait(one: FoundRun, seconds: float, caller: Caller) -> None:
    """Wait for the run's end, so long at most, or until nobody waits for the answer any more.

    Tells the caller how many of its jobs are over: some hundred times at most, and always more.
    """
    until, ledger, told = time.monotonic() + seconds, Ledger(), -1
    with Follower(one.run.events) as follower:
        while (left := until - time.monotonic()) > 0 and not caller.gone:
            supervisor = pulse(one.run, one.id)
            follower.fold(ledger)
            over = sum(ledger.counts[state] for state in SETTLED_STATES)
            total = ledger.counts.total()
            if over > told and (over >= told + total // 100 or over == total):
                caller.progress(over, total)
                told = over
            if supervisor is None:
                return
            with supervisor:
                follower.wait(left, also=[supervisor, caller])


# ── Logs ────────────────────────────────────────────────────────────────────────────────────────


def _log(
    wanted: LogSelection, attempt: AttemptRecord, lines: int, window: int, notes: NoteTaker
) -> LogEnd:
    """Return the end of a log: so many lines, and of so many bytes of the file, at most."""
    path, data, cut = wanted.run.log(attempt.id), b"", False
    try:
        if not is_silent(wanted, attempt):
            data, cut = end_of(path, window)
    except OSError as error:
        notes.note(f"{path} cannot be read: {error.strerror}")
    if cut:
        data = data.partition(b"\n")[2] or data
    shown = "".join(fold([data])).splitlines()
    return {
        "job": attempt.id.job,
        "attempt": attempt.id.number,
        "state": attempt.state,
        "path": str(path),
        "text": "\n".join(clip(line, MAX_LINE) for line in shown[-lines:]),
        "cut": cut or len(shown) > lines,
    }
