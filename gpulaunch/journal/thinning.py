"""What a compacted journal keeps of the facts of an older one, and what goes to the history.

    facts of an archived job ──────────────────▶ history
    facts of all others ───────────────────────▶ the journal
    of the run and its cards, before the last end of an archived job ─▶ what is still true

Pure. INVARIANT: what is kept folds to the state that all facts made, without the archived jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core import facts as f
from gpulaunch.core.ledger import NOTES_KEPT, Ledger
from gpulaunch.core.model import AttemptId, Gpu
from gpulaunch.journal import given

Two: TypeAlias = tuple[f.Fact | None, f.Fact | None]
"""A fact as the journal keeps it and as the history has it; None: not at all."""


class Thinning(Struct, frozen=True):
    """How the facts of one journal are divided. `whole` is the state that they make together.

    `horizon`: the index of the last fact that settles an archived job; `opening`: of the last
    RunOpened before it. `still`: indices of older facts that are still true.
    """

    archived: Collection[str]
    whole: Ledger
    horizon: int
    opening: int
    still: Collection[int]
    gpus: dict[str, Gpu]
    additions: Collection[str]

    @classmethod
    def of(cls, facts: Sequence[f.Fact], whole: Ledger, names: Collection[str]) -> Thinning:
        settled = (
            index
            for index, fact in enumerate(facts)
            if isinstance(fact, f.JobSettled) and fact.name in names
        )
        horizon = max(settled, default=0)
        openings = [i for i, fact in enumerate(facts[: horizon + 1]) if _opens(fact)]
        opening = max(openings, default=0)
        gpus = {
            gpu.uuid: gpu for fact in facts if isinstance(fact, f.RunOpened) for gpu in fact.gpus
        }
        still = _still_true(facts, horizon, opening)
        left = _additions_left(facts, whole, names)
        return cls(names, whole, horizon, opening, still, gpus, left)

    def divide(self, index: int, fact: f.Fact) -> Two:
        """Return the `index`-th fact as the journal keeps it, and as the history has it."""
        if isinstance(fact, f.JobFact):
            return (None, fact) if fact.name in self.archived else (fact, None)
        if isinstance(fact, f.AttemptFact):
            fact = self._on_its_cards(fact)
            return (None, fact) if fact.attempt.job in self.archived else (fact, None)
        match fact:
            case f.RunOpened():
                kept = index in (0, self.opening) or index > self.horizon
                return fact if kept else None, fact
            case f.JobsGiven():
                return self._given(fact)
            case f.Noted(_, job) if job in self.archived:
                return None, fact
            case f.GpuReported(_, _, attempts):
                return self._reported(index, fact, attempts)
            case f.JobsArchived() | f.JournalCompacted():
                return None, None  # the new journal begins with what they say
            case f.ListClosed():
                return fact, None
        kept = index > self.horizon or index in self.still
        return (fact if kept else None), None

    def _on_its_cards(self, fact: f.AttemptFact) -> f.AttemptFact:
        """Name the cards of an attempt that began behind one which is not in the same file."""
        if not isinstance(fact, f.AttemptStarted) or fact.gpus:
            return fact
        record = self.whole.attempt(fact.attempt)
        if record.behind is None or self._together(record.behind, fact.attempt):
            return fact
        return replace(fact, gpus=tuple(self.gpus[uuid] for uuid in record.gpus))

    def _together(self, one: AttemptId, other: AttemptId) -> bool:
        return (one.job in self.archived) == (other.job in self.archived)

    def _reported(self, index: int, fact: f.GpuReported, attempts: Sequence[AttemptId]) -> Two:
        gone = tuple(attempt for attempt in attempts if attempt.job in self.archived)
        left = tuple(attempt for attempt in attempts if attempt.job not in self.archived)
        kept = bool(left) or index > self.horizon
        return (
            replace(fact, attempts=left) if kept else None,
            replace(fact, attempts=gone) if gone else None,
        )

    def _given(self, fact: f.JobsGiven) -> Two:
        """Divide the definitions. An addition counts by its last fact, which stays with others."""
        jobs = given.jobs_of(fact.jobs)
        left = [job for job in jobs if _is_left(job.name, self.whole, self.archived)]
        gone = [job for job in jobs if job.name in self.archived]
        whole = fact.addition in self.additions and (bool(left) or not fact.more)
        if whole and len(left) == len(jobs):
            return fact, None
        return (
            replace(fact, jobs=given.text_of(left)) if whole else None,
            replace(fact, jobs=given.text_of(gone), more=False) if gone else None,
        )


def _opens(fact: f.Fact) -> bool:
    return isinstance(fact, f.RunOpened)


def _is_left(name: str, whole: Ledger, archived: Collection[str]) -> bool:
    return name in whole.jobs and name not in archived


def _additions_left(
    facts: Sequence[f.Fact], whole: Ledger, archived: Collection[str]
) -> frozenset[str]:
    """Return the additions of which a job is left."""
    return frozenset(
        fact.addition
        for fact in facts
        if isinstance(fact, f.JobsGiven)
        and any(_is_left(job.name, whole, archived) for job in given.jobs_of(fact.jobs))
    )


def _still_true(facts: Sequence[f.Fact], horizon: int, opening: int) -> frozenset[int]:
    """Return the indices of the facts up to the horizon, of run and cards, that must be kept.

    An opening begins anew with the cards: only what follows the last one counts.
    """
    last: dict[object, int] = {}
    kept: set[int] = set()
    workers: dict[AttemptId, int] = {}
    for index, fact in enumerate(facts[: horizon + 1]):
        match fact:
            case f.RunClosed():
                last[f.RunClosed] = index  # its exit status is kept through an opening
            case f.Noted():
                last[f.Noted, index] = index
            case f.ImageKnown(source):
                last[f.ImageKnown, source] = index
            case f.CodeChanged(path):
                last[f.CodeChanged, path] = index
            case _ if index < opening:
                pass
            case f.GpuChanged(gpu) | f.GpuDrained(gpu):
                last[type(fact), gpu] = index
            case f.WorkerLeft(worker):
                workers[worker] = index
            case f.WorkerGone(worker):
                workers.pop(worker, None)
            case f.AdmissionPaused() | f.AdmissionContinued() | f.StopAsked():
                kept.add(index)
    notes = [key for key in last if isinstance(key, tuple) and key[0] is f.Noted]
    for key in notes[:-NOTES_KEPT]:
        del last[key]
    return frozenset(kept | set(last.values()) | set(workers.values()))
