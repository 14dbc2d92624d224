"""What a resume or a retry runs again: the ledger of a run against its job file as it is now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpulaunch.core.ledger import JobRecord, Ledger
from gpulaunch.core.model import Job


@dataclass(frozen=True, slots=True)
class Again:
    """Names by what becomes of them. `requeue`: settled ones that wait again.

    `left` are jobs that this round does not touch (a retry leaves what never failed).
    """

    requeue: frozenset[str]
    left: frozenset[str]
    done: int
    again: int
    new: int
    changed: int
    vanished: int

    @property
    def nothing(self) -> bool:
        return not (self.again or self.new)

    def __str__(self) -> str:
        parts = [f"{self.done:,} done", f"{self.again:,} again"]
        if self.new:
            parts.append(f"{self.new:,} new")
        if self.changed:
            parts.append(f"{self.changed:,} done but changed")
        if self.vanished:
            parts.append(f"{self.vanished:,} no longer in the file")
        if self.left:
            parts.append(f"{len(self.left):,} left as they are")
        return ", ".join(parts)


def resume(ledger: Ledger, jobs: Sequence[Job], changed_too: bool = False) -> Again:
    """Everything not yet succeeded, and what is new; `changed_too`: also what was redefined."""
    again, requeue, done, changed = 0, set(), 0, 0
    for job, record in _known(ledger, jobs):
        redefined = record.state == "succeeded" and record.digest != job.digest
        if record.state == "succeeded" and not (redefined and changed_too):
            done += 1
            changed += redefined
            continue
        again += 1
        if record.settled is not None:
            requeue.add(job.name)
    return _again(ledger, jobs, requeue, frozenset(), done, again, changed)


def retry(ledger: Ledger, jobs: Sequence[Job], named: Collection[str] | None = None) -> Again:
    """Only what failed, and what was skipped because of it; `named`: only those of them."""
    requeue = frozenset(job.name for job, _ in _known(ledger, jobs)) & failed(
        ledger, {job.name: (*job.needs, *job.after) for job in jobs}, named
    )
    left = frozenset(job.name for job in jobs) - requeue
    done = sum(ledger.jobs[n].state == "succeeded" for n in left if n in ledger.jobs)
    left = frozenset(
        name for name in left if name not in ledger.jobs or ledger.jobs[name].state != "succeeded"
    )
    return _again(ledger, (), requeue, left, done, len(requeue), 0)


def failed(
    ledger: Ledger, needs: Mapping[str, Iterable[str]], named: Collection[str] | None = None
) -> frozenset[str]:
    """Jobs that failed, and those skipped because of them, transitively."""
    roots = {
        name
        for name, record in ledger.jobs.items()
        if record.state == "failed" and (named is None or name in named)
    }
    if named is not None:
        others = ("skipped", "cancelled")
        roots |= {n for n in named if n in ledger.jobs and ledger.jobs[n].state in others}
    dependents: dict[str, list[str]] = {}
    for name, wanted in needs.items():
        for need in wanted:
            dependents.setdefault(need, []).append(name)
    found, todo = set(roots), list(roots)
    while todo:
        for name in dependents.get(todo.pop(), ()):
            if name not in found and ledger.jobs.get(name, _NONE).state == "skipped":
                found.add(name)
                todo.append(name)
    return frozenset(found)


_NONE = JobRecord("")


def _known(ledger: Ledger, jobs: Sequence[Job]) -> list[tuple[Job, JobRecord]]:
    return [(job, ledger.jobs[job.name]) for job in jobs if job.name in ledger.jobs]


def _again(
    ledger: Ledger,
    jobs: Sequence[Job],
    requeue: Collection[str],
    left: frozenset[str],
    done: int,
    again: int,
    changed: int,
) -> Again:
    names = {job.name for job in jobs}
    new = len(names - ledger.jobs.keys())
    vanished = len(ledger.jobs.keys() - names) if jobs else 0
    return Again(frozenset(requeue), left, done, again, new, changed, vanished)
