"""Summarises the end of a run: results, failures and reasons, how to go on. `ending` shows it.

Reads log tails by a function that is passed in, and only for the failures that are shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant, RunState
from gpulaunch.core.records import AttemptRecord
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.digest import words
from gpulaunch.digest.groups import Alike, failures, reasons
from gpulaunch.digest.tail import read_tail
from gpulaunch.digest.usage import (
    CardUse,
    card_seconds,
    card_uses,
    doubtful,
    left_behind,
    noted,
    outdated,
    untouched,
    use_of_all,
    use_of_one,
)
from gpulaunch.errors import NO_CARDS
from gpulaunch.metrics.model import NOTHING, Measured
from gpulaunch.text import shell_word


class RunPaths(Protocol):
    @property
    def root(self) -> os.PathLike[str] | str:
        """The run directory, as people are to type it."""

    def log(self, attempt: AttemptId) -> os.PathLike[str] | str: ...

    def out(self, attempt: AttemptId) -> os.PathLike[str] | str: ...

    def keep(self, job: str) -> os.PathLike[str] | str: ...


MAX_FAILURES_TOLD = 10
"""Kinds of failures, and causes of skipping, that are shown one by one."""


class Failed(Struct, frozen=True):
    """Jobs that failed alike; all but `alike` is about the first of them.

    `last` is its last attempt, `card` where that ran, `log` its log if there is one, `use` what was
    measured of it, in words.
    """

    alike: Alike
    last: AttemptRecord | None
    card: str = ""
    log: str | None = None
    tail: tuple[str, ...] = ()
    use: str = ""

    @property
    def advice(self) -> str:
        """What a person can do about it."""
        return advice(self.last.advice) if self.last else ""


class Summary(Struct, frozen=True):
    """A run's end. `elapsed` and `cards` are of its latest start, in seconds; `gpu_hours` of all.

    `used` is what was measured of all attempts, in words. `untouched`: the jobs that succeeded and
    were never seen on their card; `left`: those that left processes behind;
    `outdated`: those of which the job file says something else by now. `noted`: a line on those of
    which a note says more.
    """

    ledger: Ledger
    directory: str
    elapsed: float
    gpu_hours: float
    cards: tuple[tuple[str, CardUse], ...]
    failed: tuple[Failed, ...]
    failed_more: int
    skipped: tuple[Alike, ...]
    next_command: str | None
    used: str
    untouched: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    noted: str = ""

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
    tail_of: Callable[[str], Sequence[str]] = read_tail,
    exists: Callable[[str], bool] = os.path.exists,
    measured: Measured = NOTHING,
) -> Summary:
    """Return the summary of a run that has ended."""
    end = ledger.closed or now
    since = ledger.taken or ledger.opened or end
    failed = failures(job for job in ledger.jobs.values() if job.state == "failed" and not job.gone)
    jobs = (job for job in ledger.jobs.values() if job.state == "skipped" and not job.gone)

    def detailed(alike: Alike) -> Failed:
        attempts = ledger.jobs[alike.names[0]].attempts
        if not attempts:
            return Failed(alike, None)
        last = attempts[-1]
        log = os.fspath(paths.log(last.id))
        there = exists(log)  # not where the job never started
        return Failed(
            alike,
            last,
            words.attempt_cards(last, ledger),
            log if there else None,
            tuple(tail_of(log)) if there else (),
            use_of_one(measured.uses.get(last.id)),
        )

    return Summary(
        ledger=ledger,
        directory=os.fspath(paths.root),
        elapsed=max(0.0, end.mono - since.mono),
        gpu_hours=card_seconds(ledger, end) / 3600,
        cards=tuple(
            (words.card(ledger.gpus[u.uuid].gpu), u) for u in card_uses(ledger, since, end)
        ),
        failed=tuple(map(detailed, failed[:MAX_FAILURES_TOLD])),
        failed_more=sum(len(one.names) for one in failed[MAX_FAILURES_TOLD:]),
        skipped=tuple(reasons(jobs, lambda job: job.reason, ledger)),
        next_command=next_command(ledger.state, ledger, os.fspath(paths.root)),
        used=use_of_all(measured),
        untouched=tuple(untouched(ledger, measured)),
        left=tuple(left_behind(ledger)),
        outdated=tuple(outdated(ledger)),
        noted=noted(notes) if (notes := doubtful(ledger)) else "",
    )


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
    return f"gpulaunch {command} {shell_word(directory)}"
