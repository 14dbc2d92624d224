"""Takes a run from its job file to its exit status; `run` and `map` start one, `resuming` goes on.

start:   job file ─▶ plan ─▶ pool ─▶ run directory ─┐
go on:   run directory ─▶ ledger + job file again ──┴─▶ supervise ─▶ summary, exit status
"""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import click

from gpulaunch import errors
from gpulaunch.attending import attended
from gpulaunch.cli.beforehand import (
    all_told,
    looking_at,
    pool_for,
    require_programs,
    runs_before,
    warn_of,
    warn_of_telling,
    with_engine,
)
from gpulaunch.cli.detach import Detached, detach
from gpulaunch.cli.kept import say_left_out
from gpulaunch.cli.lookup import alive_of, with_needs
from gpulaunch.cli.options import RunOptions
from gpulaunch.cli.output import JsonView, echo_plan, say, show_summary, typed
from gpulaunch.cli.reporting import reported
from gpulaunch.cli.serving import Served
from gpulaunch.control import ControlServer
from gpulaunch.core.events import Submitted
from gpulaunch.core.expected import expect
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import JobState
from gpulaunch.errors import NoCardsError, NotRecordedError, UnfinishedRunError, UsageError
from gpulaunch.files import replace as replace_file
from gpulaunch.jobfile import Plan
from gpulaunch.jobfile.overrides import as_chosen
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.append import Journal
from gpulaunch.journal.choices import Choices
from gpulaunch.journal.codec import iso, now
from gpulaunch.journal.earlier import durations_of
from gpulaunch.journal.finding import newest_of, working_directory
from gpulaunch.journal.liveness import state_of
from gpulaunch.journal.read import replay
from gpulaunch.journal.rundir import RUNS, RunDir, new_run_id
from gpulaunch.journal.unstarted import make_way
from gpulaunch.rereading import Filed
from gpulaunch.session import Session, held_signals, supervise
from gpulaunch.views.choose import choose_view
from gpulaunch.views.terminal import View

BREAKER = 10
"""Fast failures alike in a row that stop a run, unless --breaker says otherwise."""

Begun: TypeAlias = Callable[[], None]
"""Called once the run is being recorded."""

# ── A new run ───────────────────────────────────────────────────────────────────────────────────


def start(
    plan: Plan, job_file: Path | None, options: RunOptions, beside: Sequence[str] = ()
) -> int:
    """Run a plan for the first time; return the exit status.

    `beside`: lines about other runs of the file, printed once it is certain that this one starts.
    """
    options = with_engine(options)
    plan = as_chosen(plan, options.choices.explain, options.choices.preload)
    digests = {job.name: job.digest for job in plan.jobs}
    earlier = durations_of(runs_before(job_file), digests)
    plan = replace(plan, jobs=expect(plan.jobs, earlier))
    when = datetime.now().astimezone()
    run_id = new_run_id(when)
    with looking_at(plan) as looking:
        found = warn_of(plan, options)
        jobs = with_needs(plan.jobs, options.choices.only, Ledger())
        names = {job.name for job in jobs}
        pool, _ = all_told(
            lambda: pool_for(plan, jobs, options, run_id),
            lambda: warn_of_telling(plan, looking),
        )
    if options.dry_run:
        echo_plan(plan, jobs, pool, options.as_json, found)
        return errors.OK
    require_programs(pool)
    with Served(options, earlier) as served, held_signals():
        if options.run_dir is not None:
            make_way(RunDir(options.run_dir))
        run = RunDir.create(working_directory(), plan.name, when, options.run_dir)
        for text in filter(None, beside):
            say(text, options)
        say(f"{pool.echo}; run directory {short(run.path)}", options)
        say_left_out(plan.jobs, names, Ledger(), options, run)
        submitted = Submitted(tuple(jobs))
        session = Session(
            run,
            run_id,
            plan.name,
            pool,
            plan.limits,
            submitted,
            Ledger(),
            notify=plan.notify,
            base=plan.base,
            slurm=options.slurm,
            filed=Filed(job_file.absolute(), options.choices) if job_file else None,
        )

        def supervised(begun: Begun) -> int:
            with ControlServer(run_id) as server, closing(Journal.create(run)) as journal:
                _describe(session, plan, job_file, options.choices)
                return run_to_its_end(session, server, journal, options, begun, served, earlier)

        return here_or_detached(run, options, supervised)


def _describe(session: Session, plan: Plan, job_file: Path | None, choices: Choices) -> None:
    """Write the job file as it was read, and the manifest, into the run directory."""
    replace_file(session.run.next_jobs_file(), plan.text)
    manifest = manifests.collect(
        session.run_id,
        plan.name,
        started=iso(now().utc),
        command=sys.argv,
        job_file=job_file,
        gpus=session.pool.gpus,
        driver=session.pool.driver,
        engine=session.engine,
        slurm=session.slurm,
        choices=choices,
    )
    manifests.write(session.run.manifest, manifest)


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
    where, again = short(newest.path), f"gpulaunch run --new {shlex.quote(str(job_file))}"
    again += _typed(options.choices, options.engine, options.slurm)
    if state == "running":
        text = f"a run of this file is alive: {where}\n  watch it:     gpulaunch status {where}"
    else:
        text = f"the last run of this file was {state}: {where}"
        text += f"\n  go on with it: gpulaunch resume {where}"
    raise UnfinishedRunError(f"{text}\n  start afresh: {again}")


def alive_elsewhere(job_file: Path) -> str:
    """Return a line about live runs of this file in other directories; else "".

    They are no reason to refuse: the same list may well be meant to run twice.
    """
    alive = [shlex.quote(short(run.path)) for run in alive_of(job_file)]
    if not alive:
        return ""
    many = "a run of this file is" if len(alive) == 1 else f"{len(alive)} runs of this file are"
    return f"{many} alive already: {', '.join(alive)}; another one starts beside"


def _what_stands(run: RunDir, job_file: Path) -> str:
    """Return how that run ended, and how to go on with it instead of starting afresh."""
    try:
        counts = replay(run.events, faults=[]).counts
    except UsageError:
        return ""  # its journal cannot be read, which is no reason against another run
    where = short(run.path)
    text = f"starting all jobs anew; in the last run of this file ({where}): {_told(counts)}"
    if counts["failed"]:
        text += f"\n  only what failed:       gpulaunch retry {shlex.quote(where)}"
    text += "\n  what has not succeeded: gpulaunch run --continue "
    return text + shlex.quote(str(job_file))


def stands(ledger: Ledger, names: Collection[str]) -> str:
    """Return how many of these jobs are in which state: `2 cancelled, 1 failed`."""
    return _told(Counter(ledger.jobs[name].state for name in names))


def _told(counts: Mapping[JobState, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)


# ── Both ────────────────────────────────────────────────────────────────────────────────────────


def here_or_detached(run: RunDir, options: RunOptions, work: Callable[[Begun], int]) -> int:
    """Call `work` in this process, or in one that outlives the terminal; return the exit status."""
    if not options.detach or options.dry_run:
        return work(lambda: None)
    detached = detach(run.path / "supervisor.log")
    if isinstance(detached, Detached.Parent):
        click.echo(run.path)
        return detached.status
    return work(detached.begun)


def run_to_its_end(
    session: Session,
    server: ControlServer,
    journal: Journal,
    options: RunOptions,
    begun: Begun,
    served: Served,
    earlier: Mapping[str, float] | None = None,
) -> int:
    """Drive the run to its end and show it; return the exit status.

    `earlier`: how long jobs took in earlier runs of the same file, in seconds by name.
    """
    choices = options.choices
    session = replace(
        session,
        fail_fast=bool(choices.fail_fast),
        max_failures=choices.max_failures or None,
        breaker=(BREAKER if choices.breaker is None else choices.breaker) or None,
        watched=_watched(options),
        pinned=choices.pin != "warn",
        wait=options.wait,
        detached=options.detach,
    )
    view: View
    if options.as_json:
        view = JsonView(sys.stdout, journal.next)
    else:
        # Detached, standard error is about to become a file: no display that redraws, no colours.
        environ = {**os.environ, "NO_COLOR": "1"} if options.detach else os.environ
        lines = options.no_progress or options.detach
        view = choose_view(sys.stderr, environ, options.quiet, lines, earlier=earlier)
    ledger = session.ledger

    def recorded() -> None:
        begun()
        served.start(session.run)

    served.announce()
    try:
        unrecorded = supervise(session, server, journal, view, recorded)
    finally:
        view.close(ledger)
        served.close()
    with attended(server, session.run, ledger), reported(ledger, session.run, options):
        if not options.as_json:
            show_summary(ledger, session.run)
    if ledger.exit_status == errors.NO_CARDS:
        raise NoCardsError("no card came free in the time that --wait gave; nothing was started")
    if unrecorded:
        what_now = _what_now(session, journal)
        raise NotRecordedError(
            f"the run could not be recorded ({unrecorded}) and was stopped; {what_now}"
        )
    return ledger.exit_status


def _what_now(session: Session, journal: Journal) -> str:
    """Return how to go on after a run could not be recorded; a deleted one cannot be resumed."""
    where = shlex.quote(short(session.run.path))
    if not journal.gone:
        return f"make room there (df -h {where}), then: gpulaunch resume {where}"
    again = f": {_start_again(session, session.filed)}" if session.filed else ""
    gone = "" if session.run.path.is_dir() else f"its directory {where} is gone, and "
    return f"{gone}nothing of it can be resumed; start again{again}"


def _start_again(session: Session, filed: Filed) -> str:
    """Return the command line that starts such a run afresh, in its own directory if possible."""
    command = f"gpulaunch run {shlex.quote(short(filed.file))}"
    command += _typed(filed.choices, session.engine, session.slurm)
    if session.run.path.parent.name == RUNS or os.path.lexists(session.run.events):
        return command
    return f"{command} --run-dir {shlex.quote(short(session.run.path))}"


def _typed(choices: Choices, engine: str | None, slurm: Sequence[str]) -> str:
    """Return a run's choices as the end of a command line."""
    words = [*choices.words()]
    if engine == "slurm":
        words += ["--engine slurm", *(f"--slurm {shlex.quote(word)}" for word in slurm)]
    return "".join(f" {word}" for word in words)


def _watched(options: RunOptions) -> bool:
    return not options.detach and sys.stdin.isatty() and sys.stderr.isatty()


def short(path: Path) -> str:
    """Return the path as people would type it from here."""
    return typed(path)
