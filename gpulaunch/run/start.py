"""Starts runs: a job file's, or those of a plan made otherwise (`map`).

job file ─▶ plan ─▶ pool ─▶ run directory ─▶ session.run_to_its_end ─▶ RunEnd
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from gpulaunch.base.errors import UnfinishedRunError, UsageError
from gpulaunch.base.files import regular
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.text import shell_word
from gpulaunch.core.events import Submitted
from gpulaunch.core.ledger import LOCAL, Ledger
from gpulaunch.engines import setup_of
from gpulaunch.jobfile.load import load
from gpulaunch.jobfile.plan import Plan, as_chosen
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.append import Journal, lock
from gpulaunch.journal.codec import iso, now
from gpulaunch.journal.find import (
    counts,
    is_of,
    is_ours,
    newest_around,
    newest_of,
    typed,
    working_directory,
)
from gpulaunch.journal.liveness import origin_of, state_of
from gpulaunch.journal.ownership import require_own
from gpulaunch.journal.read import replay
from gpulaunch.journal.rundir import RunDir, new_run_id
from gpulaunch.run import resumption
from gpulaunch.run.control_server import ControlServer
from gpulaunch.run.job_list import Filed
from gpulaunch.run.lookup import alive_of, with_needs
from gpulaunch.run.options import (
    DEFAULTS,
    NOBODY,
    Observer,
    Preview,
    RunEnd,
    RunOptions,
    with_engine,
)
from gpulaunch.run.preflight import (
    all_told,
    cards_in,
    foreseen,
    looking_at,
    pool_for,
    refuse_uncontainable,
    surroundings_at_start,
    warn_of,
    warn_of_telling,
    warn_of_uuids,
)
from gpulaunch.run.session import Session, describing, held_signals, metrics_port, run_to_its_end
from gpulaunch.run.sources import first_plan


def run(
    job_file: str | os.PathLike[str],
    options: RunOptions = DEFAULTS,
    observer: Observer = NOBODY,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    new: bool = False,
    go_on: bool = False,
) -> RunEnd:
    """Run a job file to its end, as `gpulaunch run` does, and return what it came to.

    `run_dir`: where the run is kept, below gpulaunch-runs in the working directory otherwise.
    `new`: whatever became of the last run of the file; `go_on`: with that run, if there is one.

    In the main thread SIGINT, SIGTERM and SIGHUP stop the run meanwhile, each unless it is ignored:
    jobs are ended, the run is closed, and the status is 130, 143 or 129.

    Raises UnfinishedRunError where the last run of the file has more to do, JobFileError with every
    mistake of the file, NoCardsError, NotRecordedError, or UsageError.
    """
    file, kept = Path(job_file), None if run_dir is None else Path(run_dir)
    if go_on and (last := _last(file, kept, observer)) is not None:
        return resumption.resume(last.path, options, observer)
    around, choices = surroundings_at_start(options), options.choices
    if choices.follow:
        followed = lambda following: load(file, replace(around, following=following))  # noqa: E731
        plan = first_plan(followed, choices.settle)
    else:
        plan = load(file, around)
    beside = []
    if not (new or kept):
        beside = [refuse_unfinished(file, options), alive_elsewhere(file)]
    if not new:
        beside.append(refuse_in_queue(file, options, kept))
    return start(plan, file, options, observer, kept, beside)


def start(
    plan: Plan,
    job_file: Path | None,
    options: RunOptions,
    observer: Observer,
    run_dir: Path | None = None,
    beside: Sequence[str] = (),
) -> RunEnd:
    """Run a plan for the first time; return what it came to. Raises as `run` does.

    `beside`: notes about other runs of the file, made once it is certain that this one starts.
    """
    options = with_engine(options)
    plan = as_chosen(plan, options.choices.explain, options.choices.preload)
    plan, earlier = foreseen(plan, job_file)
    when = datetime.now().astimezone()
    run_id = new_run_id(when)
    with looking_at(plan) as looking:
        found = warn_of(plan, observer)
        jobs = with_needs(plan.jobs, options.choices.only, Ledger())
        pool, *_ = all_told(
            lambda: pool_for(plan, jobs, options, run_id, observer),
            lambda: refuse_uncontainable(plan, jobs, options),
            lambda: warn_of_telling(plan, looking, observer),
        )
    found = warn_of_uuids(plan, pool, found, observer)
    observer.planned(Preview(plan, jobs, pool, found))
    setup_of(pool.engine).require_here(pool, os.environ)
    with metrics_port(options) as exporter, held_signals():
        if run_dir is not None:
            _require_own_place(RunDir(run_dir))
            _make_way(RunDir(run_dir))
        cwd = working_directory()
        kept = RunDir.create(cwd, plan.name, when, run_dir)
        for text in filter(None, beside):
            observer.note(text)
        observer.note(f"{pool.echo}; run directory {typed(kept.path)}")
        names = {job.name for job in jobs}
        resumption.note_left_out(plan.jobs, names, Ledger(), options, kept, observer)
        filed = None
        if job_file:
            filed = Filed(job_file.absolute(), options.choices, cards_in(pool), cwd)
        submitted = Submitted(tuple(jobs))
        session = Session(
            kept, run_id, plan, pool, options, submitted, Ledger(), filed=filed, earlier=earlier
        )
        observer.created(kept)
        with ControlServer(run_id) as server, Journal.create(kept) as journal:
            with describing(kept):
                _describe(session, job_file)
            return run_to_its_end(session, server, journal, exporter, observer)


def _require_own_place(run: RunDir) -> None:
    """Raise UsageError if another user owns, or may change, a directory that was named for a run.

    An own directory that is empty becomes the run's alone: see `RunDir.create`.
    """
    if run.path.is_dir() and not (is_ours(run) and not os.listdir(run.path)):
        require_own(run)


def _make_way(run: RunDir) -> None:
    """Empty the journal of a run that counts as none (see `finding`); any other stays as it is.

    Removes nothing: what else lies in the directory may be the user's.
    """
    if not run.holds_run or counts(run):
        return
    with suppress(OSError):  # not to be written, or being written: the run stays, and is refused
        fd = regular(run.events, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            lock(fd)
            # A launcher that was quicker may have begun its run in between.
            if not counts(run):
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)


def _describe(session: Session, job_file: Path | None) -> None:
    """Write the job file as it was read, and the manifest, into the run directory."""
    copy = session.run.next_jobs_file(session.plan.source.is_list)
    replace_file(copy, session.plan.text)
    manifest = manifests.collect(
        session.run_id,
        session.plan.name,
        started=iso(now().utc),
        command=sys.argv,
        job_file=job_file,
        gpus=session.pool.gpus,
        driver=session.pool.driver,
        engine=session.pool.engine,
        slurm=session.options.slurm,
        choices=session.options.choices,
    )
    manifests.write(session.run.manifest, manifest)


def _last(job_file: Path, run_dir: Path | None, observer: Observer) -> RunDir | None:
    """Return the run that `go_on` goes on with; note its name if it was not begun here.

    It is found as `resume JOBS` finds it: cron and Makefiles start in other directories than
    people do.
    """
    if run_dir:
        named = RunDir(run_dir)
        return named if named.holds_run and counts(named) else None
    cwd = working_directory()
    if last := newest_of(job_file, cwd):
        return last
    last = newest_around(Path(os.path.realpath(job_file)), cwd)
    if last is None or not is_ours(last):
        return None
    observer.note(f"goes on with {typed(last.path)}, which was not begun here")
    return last


def refuse_unfinished(job_file: Path, options: RunOptions) -> str:
    """Raise UnfinishedRunError if the newest run of this file has more to do.

    Returns a line about the newest run if it is over and some of its jobs failed; else "".
    """
    newest = newest_of(job_file, working_directory())
    if newest is None:
        return ""
    state = state_of(newest)
    if state in ("succeeded", "failed"):
        return _what_stands(newest, job_file) if state == "failed" else ""
    where, again = typed(newest.path), f"gpulaunch run --new {shell_word(str(job_file))}"
    again += options.words()
    if state == "running":
        text = f"a run of this file is alive: {where}\n  watch it:     gpulaunch status {where}"
    else:
        text = f"the last run of this file was {state}: {where}"
        text += f"\n  go on with it: gpulaunch resume {where}"
    raise UnfinishedRunError(f"{text}\n  start afresh: {again}")


def refuse_in_queue(job_file: Path, options: RunOptions, run_dir: Path | None) -> str:
    """Raise UnfinishedRunError if an engine's queue has jobs of this file that no launcher follows.

    Wherever their run is kept: each job would run a second time beside them. Returns a line where
    the queue cannot be asked; else "".
    """
    found, unknown = setup_of(with_engine(options).engine or LOCAL).runs_in_queue(os.environ)
    real = os.path.realpath(job_file)
    runs = [run for run in map(RunDir, found) if run.holds_run and is_of(run, real)]
    orphan = next((run for run in runs if _is_orphan(run)), None)
    if orphan is not None:
        where = shell_word(typed(orphan.path))
        told = "" if run_dir is None else f" --run-dir {shell_word(str(run_dir))}"
        again = f"gpulaunch run --new {shell_word(str(job_file))}{told}{options.words()}"
        raise UnfinishedRunError(
            f"jobs of this file are in Slurm's queue, by a run whose launcher is gone: {where}"
            f"\n  go on with it: gpulaunch resume {where}"
            f"\n  cancel them:   gpulaunch cancel --run {where} --all"
            f"\n  start afresh:  {again}"
        )
    why = f"whether Slurm has jobs of this file already cannot be told: {unknown}"
    return why if unknown else ""


def _is_orphan(run: RunDir) -> bool:
    """Return True if the run is not over, and no launcher on this machine follows it.

    Slurm shows jobs of a run that is over for a moment. One that lives here may be meant to:
    `alive_elsewhere` notes it.
    """
    try:
        state = state_of(run)
        return state == "interrupted" or (state == "running" and not origin_of(run).here)
    except UsageError:
        return False


def alive_elsewhere(job_file: Path) -> str:
    """Return a line about live runs of this file in other directories; else "".

    They are no reason to refuse: the same list may well be meant to run twice.
    """
    alive = [shell_word(typed(run.path)) for run in alive_of(job_file)]
    if not alive:
        return ""
    many = "a run of this file is" if len(alive) == 1 else f"{len(alive)} runs of this file are"
    return f"{many} alive already: {', '.join(alive)}; another one starts beside"


def _what_stands(run: RunDir, job_file: Path) -> str:
    """Return how that run ended, and how to go on with it instead of starting afresh."""
    try:
        counted = replay(run.events, faults=[]).counts
    except UsageError:
        return ""  # its journal cannot be read, which is no reason against another run
    where = typed(run.path)
    text = f"starting all jobs anew; in the last run of this file ({where}): "
    text += resumption.by_state(counted)
    if counted["failed"]:
        text += f"\n  only what failed:       gpulaunch retry {shell_word(where)}"
    text += "\n  what has not succeeded: gpulaunch run --continue "
    return text + shell_word(str(job_file))
