"""Resumes runs: `resume` runs all jobs that have not succeeded, `retry` runs the failed jobs.

run directory ─▶ ledger ─┐
job file again ─▶ plan ──┴─▶ what is to run (core.resume_plan) ─▶ pool ─▶ session.run_to_its_end

A live run is asked to go on, or to requeue the jobs, by its control socket.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from msgspec.structs import replace

from gpulaunch.base.errors import OK, UsageError
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.text import listing, several, shell_word
from gpulaunch.core import resume as resume_plan
from gpulaunch.core.events import Cancel, GoOn, Request, Retry, Submitted
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job, JobState
from gpulaunch.core.resume import ResumePlan, expect_again
from gpulaunch.engines import setup_of
from gpulaunch.journal import joblog
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.append import Journal
from gpulaunch.journal.choices import Choices
from gpulaunch.journal.codec import iso, now
from gpulaunch.journal.find import typed
from gpulaunch.journal.liveness import (
    origin_of,
    own_id,
    refuse_elsewhere,
    require_dead_elsewhere,
    state_of,
)
from gpulaunch.journal.ownership import require_own
from gpulaunch.journal.read import replay
from gpulaunch.journal.recorder import link_result
from gpulaunch.journal.rundir import RunDir, queue_dirs
from gpulaunch.run.control_client import call, present, wait_until_gone
from gpulaunch.run.control_protocol import AlreadySupervisedError, NoAnswerError, Requeued
from gpulaunch.run.control_server import ControlServer
from gpulaunch.run.damage import remembered_to_go_on
from gpulaunch.run.job_list import added_to, as_set, filed_of, plan_again
from gpulaunch.run.lookup import SUPERVISOR_ANSWER_TIMEOUT, jobs_of, own_directory, with_needs
from gpulaunch.run.options import DEFAULTS, NOBODY, Observer, Preview, RunEnd, RunOptions, as_before
from gpulaunch.run.preflight import (
    all_told,
    looking_at,
    pool_for,
    refuse_absent,
    refuse_uncontainable,
    warn_of_telling,
)
from gpulaunch.run.session import Session, describing, metrics_port, run_to_its_end

JOB_FILE_TIMEOUT = 600.0
"""Seconds for a live run to read its job file again: 100,000 jobs take ten."""

INPUT_LOOK_SECONDS = 2.0
"""Seconds for which inputs are looked at where nothing follows from it but a number."""

Choose: TypeAlias = Callable[[Ledger, Sequence[Job], RunOptions], ResumePlan]


def resume(
    run: str | os.PathLike[str] | None = None,
    options: RunOptions = DEFAULTS,
    observer: Observer = NOBODY,
    *,
    among: Collection[str] = (),
    changed: bool = False,
    recorded: bool = False,
    take_over: bool = False,
) -> RunEnd:
    """Run everything not yet succeeded and the file's new jobs, as `gpulaunch resume` does.

    `run` is a directory, name, id or job file, None the newest one here. `among`: of the jobs with
    these names alone, this time; unlike `--only`, nothing of it is kept with the run. `changed`:
    also what succeeded and was redefined since, or has another input now, with all that needs it.
    `recorded`: by the run's own copy of the job file. `take_over`: a run on a cluster whose
    launcher died on another machine. A live run that paused because many jobs failed alike starts
    jobs again, and the call returns at once.

    Raises UnfinishedRunError for a run that is alive, else as `run` does.
    """
    one = own_directory(run, observer)
    taken_over = take_over and not origin_of(one).here
    if taken_over:
        require_dead_elsewhere(one)
    else:
        refuse_elsewhere(one)
    paused = {} if taken_over or state_of(one) != "running" else replay(one.events).pauses
    if paused.keys() - {"hours"}:
        _note_not_taken(options, observer)
        call(one.read_manifest().run, GoOn())
        observer.note(f"goes on: {typed(one.path)}")
        return RunEnd(one, replay(one.events), OK)

    def everything(ledger: Ledger, jobs: Sequence[Job], options: RunOptions) -> ResumePlan:
        if options.standing:  # what failed there a month ago is not tried again at every boot
            over = {record.name for record in ledger.jobs.values() if record.settled}
            return resume_plan.resume(ledger, jobs, {job.name for job in jobs} - over)
        names: Collection[str] | None = among
        if not among:
            names = _among(jobs, options, ledger)
            note_left_out(jobs, names, ledger, options, one, observer)
        found = joblog.look(jobs, ledger, None if changed else INPUT_LOOK_SECONDS)
        if changed and found.missing:
            _note_missing_inputs(jobs, found.missing, observer)
        return resume_plan.resume(ledger, jobs, names, changed, found.changed)

    return _go_on(one, options, observer, everything, recorded)


def retry(
    run: str | os.PathLike[str] | None = None,
    jobs: Sequence[str] = (),
    options: RunOptions = DEFAULTS,
    observer: Observer = NOBODY,
    *,
    recorded: bool = False,
) -> RunEnd:
    """Run failed jobs again, and jobs that were skipped because of them (`gpulaunch retry`).

    `jobs`: names or patterns of the jobs to run again, instead of all that failed. `run` and
    `recorded` as for `resume`. A live run requeues the jobs, as its job file has them now, and the
    call returns at once. Raises as `resume` does.
    """
    one = own_directory(run, observer, jobs)
    refuse_elsewhere(one)
    names = tuple(jobs_of(replay(one.events), jobs)) if jobs else None
    if state_of(one) == "running":
        if observer.preview_only:
            _preview(one, names, options, observer, recorded)
        return retry_alive(one, names, options, observer, recorded)

    def failed(ledger: Ledger, jobs: Sequence[Job], options: RunOptions) -> ResumePlan:
        asked = resume_plan.retried(ledger, jobs, names)
        _note_untouched(ledger, names, asked, observer)
        return resume_plan.resume(ledger, jobs, asked)

    return _go_on(one, options, observer, failed, recorded)


def cancel_left(run: RunDir, observer: Observer) -> RunEnd:
    """Cancel the attempts that a run without a launcher left in a queue; return the run's end.

    Starts no job: jobs that are not in the queue keep their state.
    Raises UsageError for a run that another user owns or may change.
    """
    require_own(run)

    def nothing(ledger: Ledger, jobs: Sequence[Job], options: RunOptions) -> ResumePlan:
        left = several(len(ledger.open_attempts()), "attempt")
        text = f"the launcher of {typed(run.path)} is gone, and left {left} in Slurm's queue"
        observer.note(f"{text}: they are cancelled there")
        return resume_plan.resume(ledger, jobs, frozenset())

    return _go_on(run, DEFAULTS, observer, nothing, True, [Cancel(None)])


# ── A run that is over ──────────────────────────────────────────────────────────────────────────


def _go_on(
    run: RunDir,
    options: RunOptions,
    observer: Observer,
    choose: Choose,
    recorded: bool,
    asked: Sequence[Request] = (),
) -> RunEnd:
    """Resume a run with the jobs that `choose` selects; return the run's end.

    `asked`: what is asked of the run as soon as it lives.
    """
    observer.created(run)
    # The lock comes first: after it nobody changes what is read, and an error names the live run
    # itself rather than the metrics port that it holds.
    with _taken_up(run, observer) as server, metrics_port(options) as exporter:
        manifest = replace(run.read_manifest(), run=server.run)
        remembered = remembered_to_go_on(run, observer)
        ledger = remembered.ledger
        options = as_before(options, manifest, ledger, observer)
        if ledger.opening.standing == "queue" and not asked and run not in queue_dirs()[1:]:
            options = replace(options, standing=True)
        plan = plan_again(run, manifest, options, recorded, ledger.complete)
        given = added_to(run, plan, ledger)
        jobs = [as_set(job, ledger) for job in (*plan.jobs, *given)]
        chosen = choose(ledger, jobs, options)
        with looking_at(plan) as looking:
            pool, *_ = all_told(
                lambda: pool_for(plan, chosen.to_do, options, manifest.run, observer),
                lambda: refuse_uncontainable(plan, chosen.to_do, options),
                lambda: refuse_absent(plan, [j for j in chosen.to_do if not j.given], options),
                lambda: warn_of_telling(plan, looking, observer),
            )
        cards = f"{pool.echo}; " if chosen.to_do and not observer.preview_only else ""
        if not asked:
            observer.note(f"{cards}{chosen}")
        _note_what_differs(chosen, given, remembered.endless, observer)
        if observer.preview_only:
            observer.planned(Preview(plan, resume_plan.starts(ledger, chosen), pool))
        _mend(run, ledger)
        standing = options.standing or (options.choices.follow and not ledger.complete)
        idle = chosen.nothing and not ledger.open_attempts()
        if idle and ledger.state != "interrupted" and not standing:
            _note_what_is_left(run, ledger, chosen, observer)
            return RunEnd(run, ledger, ledger.exit_status)
        setup_of(pool.engine).require_here(pool, os.environ)
        epoch = manifests.this_epoch(ledger.opening.epoch + 1, iso(now().utc), sys.argv)
        kept = replace(
            manifest.again(epoch).with_images(ledger.images.values()),
            engine=pool.engine,
            slurm=options.slurm,
            choices=options.choices,
        )
        with describing(run):
            replace_file(run.next_jobs_file(plan.source.is_list), plan.text)
            manifests.write(run.manifest, kept)
        session = Session(
            run,
            manifest.run,
            replace(plan, name=manifest.name),
            pool,
            options,
            Submitted(expect_again(chosen.jobs, ledger), chosen.requeue, chosen.left),
            ledger,
            [attempt.id for attempt in ledger.open_attempts()],
            given,
            None if recorded else filed_of(manifest, options),
            asked=asked,
        )
        with Journal.reopen(run) as journal:
            journal.append([(fact, now()) for fact in remembered.found])
            return run_to_its_end(session, server, journal, exporter, observer)


def _taken_up(run: RunDir, observer: Observer) -> ControlServer:
    """Lock the run, so that no other process resumes it. Raises AlreadySupervisedError.

    One that is over, and whose launcher still writes its report, is waited for.
    """
    id = own_id(run)
    try:
        return ControlServer(id)
    except AlreadySupervisedError as error:
        if not error.admits or state_of(run) == "running":
            raise
    with suppress(NoAnswerError):  # it is gone by now; or a `clean` has the run
        present(id, SUPERVISOR_ANSWER_TIMEOUT)
        observer.note(f"waits until the report of {typed(run.path)} is written")
        wait_until_gone(id)
    return ControlServer(id)


def _note_what_differs(
    chosen: ResumePlan, given: Sequence[Job], endless: Collection[str], observer: Observer
) -> None:
    """Name the jobs that run with another environment, or once more for want of their end.

    Also those that may have used what is made anew, and are not run again.
    """
    if strange := [job.name for job in given if job.name not in chosen.over | chosen.left]:
        text = f"with this shell's environment, as theirs is not kept: {listing(strange, 5)}"
        observer.note(text, urgent=True)
    if after := chosen.changed.after:
        text = f"done, after jobs that run again, and left as they are: {listing(after, 5)}"
        observer.note(f"{text}; needs: in place of after: takes them along", urgent=True)
    if chosen.changed.count and not chosen.changed.again:
        observer.note("resume --changed runs again what is done but changed")
    if lost := [job.name for job in chosen.to_do if job.name in endless]:
        why = "again because no end of theirs can be read, be it a success"
        observer.note(f"{why}: {listing(lost, 10)}", urgent=True)


def _note_missing_inputs(jobs: Sequence[Job], missing: Collection[str], observer: Observer) -> None:
    """Name the jobs that succeeded, and of whose input nobody can tell whether it has changed."""
    names = [job.name for job in jobs if job.name in missing]
    text = f"done, and their input is gone, so they are not run again: {listing(names, 5)}"
    observer.note(text, urgent=True)


def _note_what_is_left(run: RunDir, ledger: Ledger, chosen: ResumePlan, observer: Observer) -> None:
    if chosen.left:
        where = shell_word(typed(run.path))
        left = by_state(Counter(ledger.jobs[name].state for name in chosen.left))
        observer.note(f"nothing to do; {left}, to be run with: gpulaunch resume {where}")


def _mend(run: RunDir, ledger: Ledger) -> None:
    """Make links to results that a crash prevented after the success was recorded."""
    for job in ledger.jobs.values():
        if job.state == "succeeded" and not os.path.lexists(run.result(job.name)):
            link_result(run, ledger, job.name)


# ── A live run ──────────────────────────────────────────────────────────────────────────────────


def retry_alive(
    run: RunDir,
    names: tuple[str, ...] | None = None,
    options: RunOptions = DEFAULTS,
    observer: Observer = NOBODY,
    recorded: bool = False,
) -> RunEnd:
    """Put jobs back into a live run, by name; None: all that failed. Returns the run as it stands.

    Never starts a run: raises NoAnswerError where it is over.
    """
    _note_not_taken(options, observer)
    asking = Retry(names, not recorded)
    told: Requeued = call(run.read_manifest().run, asking, JOB_FILE_TIMEOUT, Requeued)
    requeued, where = set(told.requeued), f"{typed(run.path)}, which is running"
    observer.note(f"requeued {several(len(requeued), 'job')} in {where}")
    if told.changed:
        observer.note(f"changed in the job file, run as they are now: {listing(told.changed, 5)}")
    if told.gone:
        observer.note(f"no longer in the job file, and not run: {listing(told.gone, 5)}")
    ledger = replay(run.events)
    _note_untouched(ledger, names, requeued.union(told.gone), observer)
    return RunEnd(run, ledger, OK)


def _preview(
    run: RunDir,
    names: tuple[str, ...] | None,
    options: RunOptions,
    observer: Observer,
    recorded: bool,
) -> None:
    """Tell what a retry would put back into the live run, by the job file as it is now."""
    ledger, manifest = replay(run.events), run.read_manifest()
    options = as_before(options, manifest, ledger, observer)
    plan = plan_again(run, manifest, options, recorded)
    asked = resume_plan.retried(ledger, plan.jobs, names)
    jobs = [job for job in plan.jobs if job.name in asked]
    observer.planned(Preview(plan, jobs, pool_for(plan, jobs, options, manifest.run, observer)))


def _note_untouched(
    ledger: Ledger,
    names: tuple[str, ...] | None,
    taken: frozenset[str] | set[str],
    observer: Observer,
) -> None:
    """Say of jobs that were named and are not retried why that is."""
    for name in names or ():
        if name not in taken:
            state = ledger.jobs[name].state
            observer.note(f"{name} is not retried: it has not failed ({state})")


def _note_not_taken(options: RunOptions, observer: Observer) -> None:
    """Say which options have no effect on a live run."""
    if options.metrics_port is not None:
        observer.note("--metrics-port changes nothing for a run that is alive already")
    if words := options.choices.words():
        text = f"{' '.join(words)}: not for a run that is alive already, as it was begun it goes on"
        observer.note(text, urgent=True)


# ── The jobs of a run that --only leaves out ────────────────────────────────────────────────────


def _among(jobs: Sequence[Job], options: RunOptions, ledger: Ledger) -> set[str] | None:
    """Return the names of the jobs that `--only` picks, and of those that they need; None: all.

    Raises UsageError where it picks none.
    """
    if not options.choices.only:
        return None
    try:
        return {job.name for job in with_needs(jobs, options.choices.only, ledger)}
    except UsageError as error:
        raise UsageError(f"{error}; --only '*' picks all of them") from None


def note_left_out(
    jobs: Sequence[Job],
    names: Collection[str] | None,
    ledger: Ledger,
    options: RunOptions,
    run: RunDir,
    observer: Observer,
) -> None:
    """Say how many jobs of the file, yet to succeed, `--only` leaves out, and what runs them.

    `names` are those of the jobs that it picks; None: all.
    """
    done = {record.name for record in ledger.jobs.values() if record.state == "succeeded"}
    count = sum(job.name not in names and job.name not in done for job in jobs) if names else 0
    if count:
        words = " ".join(Choices(only=options.choices.only).words())
        again = f"gpulaunch resume {shell_word(typed(run.path))} --only '*'"
        text = f"{words} leaves out {several(count, 'job')} of the file; to run all: {again}"
        observer.note(text)


def by_state(counts: Mapping[JobState, int]) -> str:
    """Return how many jobs are in which state: `2 cancelled, 1 failed`."""
    return ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
