"""Checks a job file as `gpulaunch check` does: its plan, and what a person should know of it.

Starts nothing and writes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.text import listing, several, size
from gpulaunch.core.ledger import LOCAL
from gpulaunch.core.model import Job
from gpulaunch.engines.pool import CardPool, open_pool
from gpulaunch.jobfile.file_keys import STAND_IN
from gpulaunch.jobfile.load import load, load_text
from gpulaunch.jobfile.plan import Plan
from gpulaunch.journal.find import MAX_EARLIER_RUNS, runs_of, working_directory
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.notify.preflight import describe
from gpulaunch.observe.present.plan import plan_json
from gpulaunch.run.options import DEFAULTS, NOBODY, Observer, Preview, RunOptions, with_engine
from gpulaunch.run.preflight import (
    all_told,
    cards_if_any,
    chosen_engines,
    foreseen,
    looking_at,
    pool_for,
    short_ladders,
    surroundings_at_start,
    targets_of,
    warn_of,
    warn_of_telling,
    warn_of_uuids,
)

if TYPE_CHECKING:
    from gpulaunch.base.documents import PlanDocument


# ── Cards and CPUs ────────────────────────────────────────────────────────────────────────────────


def note_far_cards(jobs: Sequence[Job], pool: CardPool) -> Iterator[str]:
    """Yield a line for each thing that jobs ask for, and that these cards cannot tell or give.

    Of the cards' kinds, and of the CPUs near them.
    """
    if pool.simulated and any(job.demand.card or job.demand.compute for job in jobs):
        yield "card:, compute: pretend cards are of any model and capability"
    placement = pool.machine.placement
    bound = [job for job in jobs if job.demand.gpus and placement.applies(job)]
    unknown = [str(gpu.index) for gpu in pool.gpus if not placement.near_cards([gpu])]
    if unknown and any(job.affinity == "card" for job in bound):
        yield (
            f"affinity: which CPUs are near GPU {listing(unknown)} is not known here, or none of"
            " them is allowed: jobs there run on all that are"
        )
    most = min((len(placement.near_cards([gpu])) for gpu in pool.gpus), default=0)
    wide = [job for job in bound if most < (job.demand.cpus or 0)]
    if most and wide:
        cpus = max(job.demand.cpus or 0 for job in wide)
        yield (
            f"affinity: {listing([job.name for job in wide])}: cpus: {cpus} is more than the"
            f" {several(most, 'CPU')} near a card, so it runs on all that are allowed"
        )


# ── Memory in earlier runs ────────────────────────────────────────────────────────────────────────

LITTLE = 3
"""A job that took less than this part of its memory reserves too much of it ..."""
WORTH_SAYING = 1 << 30
"""... where others could have so many bytes more."""


class MemoryPeak(Struct, frozen=True):
    """The most resident memory that a job's attempts took in a run."""

    memory: int
    run: str


def note_earlier_memory(jobs: Sequence[Job], job_file: Path) -> Iterator[str]:
    """Yield a line for each entry whose `memory:` does not fit its jobs' peaks in earlier runs."""
    if any(job.demand.memory for job in jobs):
        yield from compared(
            jobs, peaks_in(islice(runs_of(job_file, working_directory()), MAX_EARLIER_RUNS))
        )


def peaks_in(runs: Iterable[RunDir]) -> dict[str, MemoryPeak]:
    """Return the highest peak of each job in these runs, by name."""
    from gpulaunch.observe.metrics.read import open_metrics

    found: dict[str, MemoryPeak] = {}
    for run in runs:
        reader = open_metrics(run.metrics)
        if reader is None:
            continue
        with reader:
            for attempt, use in reader.uses().items():
                most, known = use.peak_resident or 0, found.get(attempt.job)
                if most and (known is None or most > known.memory):
                    found[attempt.job] = MemoryPeak(most, run.path.name)
    return found


def compared(jobs: Sequence[Job], peaks: Mapping[str, MemoryPeak]) -> Iterator[str]:
    """Yield a line for each entry that reserves too little for one of its jobs, or much too much.

    What several processes of a job share counts for each of them in a peak.
    """
    for _, entry in groupby(jobs, key=lambda job: job.group):
        known = [(job, peaks[job.name]) for job in entry if job.demand.memory and job.name in peaks]
        if not known:
            continue
        job, peak = max(known, key=lambda pair: pair[1].memory / pair[0].demand.memory)
        memory = job.demand.memory
        of_all = f", the most of {len(known)} such jobs" if len(known) > 1 else ""
        took = f"{size(peak.memory)} in {peak.run}{of_all}"
        if peak.memory > memory:
            yield f"memory: {job.name} reserves {size(memory)}, and took up to {took}"
        elif peak.memory * LITTLE < memory and memory - peak.memory > WORTH_SAYING:
            yield f"memory: {job.name} reserves {size(memory)}, and took no more than {took}"


# ── The check ─────────────────────────────────────────────────────────────────────────────────────


def check(
    job_file: Path,
    options: RunOptions = DEFAULTS,
    observer: Observer = NOBODY,
    *,
    text: bytes | None = None,
    cwd: Path | None = None,
) -> Preview:
    """Return what a run of the job file would do here, with the warnings of its scripts.

    `text`: what the file would hold, which is not read then. `cwd`: where the commands of a list
    start, the working directory where it is None. Without a card here, what depends on the cards is
    left unchecked, `foreach: cards` is taken for one card, and a note says so. Raises JobFileError
    with every mistake of the file, UsageError.
    """
    options = with_engine(options)
    local, choices = options.engine == LOCAL, options.choices
    plan, _ = foreseen(_plan(job_file, options, text, cwd), job_file)
    with looking_at(plan) as looking:
        found = warn_of(plan, observer, most=sys.maxsize)
        pool = open_pool(choices.gpus, choices.simulate, os.environ, "check") if local else None
        here = pool is None or pool.here
        _, asked = all_told(
            lambda: warn_of_telling(plan, looking, observer),
            lambda: pool_for(plan, plan.jobs, options, "check", observer) if here else pool,
        )
        found = warn_of_uuids(plan, asked, found, observer, most=sys.maxsize)
    for line in _plan_notes(plan, job_file, asked, local, bool(here)):
        observer.note(line)
    return Preview(plan, plan.jobs, asked, found)


def plan_document(preview: Preview) -> PlanDocument:
    """Return what `check --json` prints of a plan."""
    plan, pool = preview.plan, preview.pool
    parts = (plan.name, pool.echo, pool.gpus, plan.limits, preview.jobs, pool.engine)
    return plan_json(*parts, [describe(one) for one in targets_of(plan)], preview.found)


def _plan(job_file: Path, options: RunOptions, text: bytes | None, cwd: Path | None) -> Plan:
    cards = cards_if_any(options.choices, options.engine)
    around = replace(surroundings_at_start(options, cwd), cards=cards)
    if text is None:
        return load(job_file, around)
    return load_text(text, around, name=str(job_file), base=job_file.absolute().parent)


def _plan_notes(
    plan: Plan, job_file: Path, pool: CardPool, local: bool, here: bool
) -> Iterator[str]:
    """Yield what a person should know of the plan; `here`: its cards could be looked at."""
    if not here:
        yield from (*pool.notes, *short_ladders(plan.jobs))
        own = any(job.demand.own_gpu == STAND_IN for job in plan.jobs)
        shown = ", and foreach: cards is shown for one" if own else ""
        yield (
            "no card here: whether every job fits the cards was not checked"
            f"{shown} (see --simulate N)"
        )
    else:
        yield from pool.settings
    if pool.allowance is not None:
        yield (
            f"your launchers may hold {several(pool.allowance.limit, 'card')} at once: "
            f"{pool.allowance.source}"
        )
    if local and here:
        yield from note_far_cards(plan.jobs, pool)
    yield from chosen_engines(plan.jobs, cluster=not local)
    yield from note_earlier_memory(plan.jobs, job_file)
    if local and any(job.preload for job in plan.jobs):
        from gpulaunch.engines.local.preloads import told

        yield from told(plan.jobs, os.environ)
