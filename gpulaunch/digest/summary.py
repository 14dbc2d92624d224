"""Summarises the end of a run: results, failures and reasons, how to go on. `ending` shows it.

Reads log tails by a function that is passed in, and only for the failures that are shown.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpulaunch.core.ledger import AttemptRecord, Ledger
from gpulaunch.core.model import AttemptId, Instant, JobState, RunState
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.digest import words
from gpulaunch.digest.groups import Alike, failures, reasons
from gpulaunch.digest.tail import read_tail
from gpulaunch.digest.usage import CardUse, card_seconds, card_uses, use_of_all, use_of_one
from gpulaunch.errors import NO_CARDS
from gpulaunch.metrics.model import NOTHING, Measured
from gpulaunch.wording import run_reason


class RunPaths(Protocol):
    @property
    def root(self) -> os.PathLike[str] | str:
        """The run directory, as people are to type it."""

    def log(self, attempt: AttemptId) -> os.PathLike[str] | str: ...

    def out(self, attempt: AttemptId) -> os.PathLike[str] | str: ...


MAX_FAILURES_TOLD = 10
"""Kinds of failures, and causes of skipping, that are shown one by one."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Jobs that failed alike: all their `names`, the rest about the first of them.

    `reason` in words, `evidence` the line that shows it; `card` is where the last attempt ran;
    `log` is None if there is none. `advice` is what a person can do about it; `reports` are the
    driver's of its card meanwhile. `use` is what was measured of the last attempt, in words.
    """

    names: tuple[str, ...]
    reason: str
    attempts: int
    card: str
    log: str | None
    tail: tuple[str, ...]
    evidence: str = ""
    advice: str = ""
    reports: tuple[str, ...] = ()
    use: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """A run's end. `elapsed` and `cards` are of its latest start, in seconds; `gpu_hours` of all.

    `used` is what was measured of all attempts, in words. `nodes`: of a cluster, 0 elsewhere.
    """

    name: str
    directory: str
    state: RunState
    reason: str
    simulated: bool
    resumed: bool
    counts: Mapping[JobState, int]
    total: int
    elapsed: float
    gpu_hours: float
    cards: tuple[tuple[str, CardUse], ...]
    failed: tuple[Failed, ...]
    failed_more: int
    skipped: tuple[tuple[str, int], ...]
    skipped_more: int
    vanished: int
    notes: tuple[str, ...]
    next_command: str | None
    used: str = ""
    nodes: int = 0

    @property
    def busy(self) -> float | None:
        """The share of all cards' time that attempts used; None without cards."""
        if not self.cards:
            return None
        return sum(use.share for _, use in self.cards) / len(self.cards)


def summarise(
    ledger: Ledger,
    paths: RunPaths,
    now: Instant,
    state: RunState | None = None,
    tail_of: Callable[[str], Sequence[str]] = read_tail,
    exists: Callable[[str], bool] = os.path.exists,
    measured: Measured = NOTHING,
) -> Summary:
    """Return the summary. `state`: the caller's, if it knows more than the ledger (a dead run)."""
    state = state or ledger.state
    end = ledger.closed or now
    since = ledger.taken or ledger.opened or end
    failed = failures(job for job in ledger.jobs.values() if job.state == "failed" and not job.gone)
    jobs = (job for job in ledger.jobs.values() if job.state == "skipped" and not job.gone)
    causes = [(one.text, len(one.names)) for one in reasons(jobs, lambda job: job.reason, ledger)]
    return Summary(
        name=ledger.opening.name,
        directory=os.fspath(paths.root),
        state=state,
        reason=run_reason(ledger.reason),
        simulated=ledger.opening.simulated,
        resumed=ledger.opening.epoch > 1,
        counts={s: n for s, n in ledger.counts.items() if n > 0},
        total=len(ledger.jobs),
        elapsed=max(0.0, end.utc - since.utc),
        gpu_hours=card_seconds(ledger, ledger.opened or end, end) / 3600,
        cards=tuple(
            (words.card(ledger.gpus[u.uuid].gpu), u) for u in card_uses(ledger, since, end)
        ),
        failed=tuple(
            replace(
                _failed(alike, ledger, paths, tail_of, exists), use=_use(alike, ledger, measured)
            )
            for alike in failed[:MAX_FAILURES_TOLD]
        ),
        failed_more=sum(len(one.names) for one in failed[MAX_FAILURES_TOLD:]),
        skipped=tuple(causes[:MAX_FAILURES_TOLD]),
        skipped_more=sum(n for _, n in causes[MAX_FAILURES_TOLD:]),
        vanished=ledger.vanished,
        notes=tuple(ledger.notes),
        next_command=next_command(state, ledger, os.fspath(paths.root)),
        used=use_of_all(measured),
        nodes=len({card.gpu.node for card in ledger.gpus.values()} - {""}),
    )


def _use(alike: Alike, ledger: Ledger, measured: Measured) -> str:
    job = ledger.jobs[alike.names[0]]
    use = measured.uses.get(job.attempts[-1].id) if job.attempts else None
    return use_of_one(use) if use else ""


def _failed(
    alike: Alike,
    ledger: Ledger,
    paths: RunPaths,
    tail_of: Callable[[str], Sequence[str]],
    exists: Callable[[str], bool],
) -> Failed:
    job = ledger.jobs[alike.names[0]]
    last = job.attempts[-1] if job.attempts else None
    log = os.fspath(paths.log(last.id)) if last else None
    if log and not exists(log):  # the job never started
        log = None
    return Failed(
        names=alike.names,
        reason=alike.text,
        evidence=alike.evidence,
        attempts=len(job.attempts),
        card=_where(last, ledger),
        log=log,
        tail=tuple(tail_of(log)) if log else (),
        advice=advice(last.advice) if last else "",
        reports=tuple(last.reports) if last else (),
    )


def _where(attempt: AttemptRecord | None, ledger: Ledger) -> str:
    return words.attempt_cards(attempt, ledger) if attempt else ""


def next_command(state: RunState, ledger: Ledger, directory: str) -> str | None:
    """Return the next command: `retry` if only failures are left, else `resume`; None if done."""
    if state in ("succeeded", "running"):
        return None
    if ledger.exit_status == NO_CARDS and not any(job.attempts for job in ledger.jobs.values()):
        return None  # no card came in time, and nothing was ever started
    left = any(
        job.state in ("waiting", "cancelled", "running") and not job.gone
        for job in ledger.jobs.values()
    )
    command = "resume" if left or not ledger.counts["failed"] else "retry"
    return f"gpulaunch {command} {shlex.quote(directory)}"
