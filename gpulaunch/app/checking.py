"""Checks a job file as `gpulaunch check` does: its plan, and what a person should know of it.

Starts nothing and writes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulaunch.app import near_cards
from gpulaunch.app.checks import (
    all_told,
    foreseen,
    looking_at,
    pool_for,
    short_ladders,
    warn_of,
    warn_of_telling,
    warn_of_uuids,
)
from gpulaunch.app.contained import chosen_engines
from gpulaunch.app.earlier_memory import notes as memory_notes
from gpulaunch.app.observer import NOBODY, Observer, Preview
from gpulaunch.app.options import DEFAULTS, RunOptions, with_engine
from gpulaunch.app.own_cards import cards_if_any
from gpulaunch.app.surroundings import surroundings_at_start
from gpulaunch.app.telling import targets_of
from gpulaunch.core.ledger import LOCAL
from gpulaunch.digest.plan import plan_json
from gpulaunch.engines.pool import CardPool, open_pool
from gpulaunch.jobfile import Plan, load, load_text
from gpulaunch.jobfile.cards import STAND_IN
from gpulaunch.notify.preflight import describe
from gpulaunch.text import several

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import PlanDocument


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
    for line in _notes(plan, job_file, asked, local, bool(here)):
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


def _notes(plan: Plan, job_file: Path, pool: CardPool, local: bool, here: bool) -> Iterator[str]:
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
        yield from near_cards.notes(plan.jobs, pool)
    yield from chosen_engines(plan.jobs, cluster=not local)
    yield from memory_notes(plan.jobs, job_file)
    if local and any(job.preload for job in plan.jobs):
        from gpulaunch.engines.local.preload_preview import told

        yield from told(plan.jobs, os.environ)
