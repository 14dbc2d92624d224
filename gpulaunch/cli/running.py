"""A run from its job file to its exit status: what `run`, `map`, `resume` and `retry` share.

start:   job file ─▶ plan ─▶ pool ─▶ run directory ─┐
go on:   run directory ─▶ ledger + job file again ──┴─▶ supervise ─▶ summary, exit status
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from gpulaunch import errors
from gpulaunch.cli.detach import Detached, detach
from gpulaunch.cli.output import JsonView, echo_plan, say, show_summary
from gpulaunch.cli.reporting import reported
from gpulaunch.cli.serving import Served, say_unserved
from gpulaunch.control import ControlServer, call
from gpulaunch.core import again
from gpulaunch.core.again import Again
from gpulaunch.core.events import GoOn, Retry, Submitted
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job
from gpulaunch.engines import strict
from gpulaunch.engines.pool import Pool, SelectionError, open_pool, require
from gpulaunch.errors import (
    JobFileError,
    NoCardsError,
    NotRecordedError,
    UnfinishedRunError,
    UsageError,
)
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.append import Journal
from gpulaunch.journal.codec import iso, now
from gpulaunch.journal.earlier import durations
from gpulaunch.journal.liveness import refuse_elsewhere, state_of
from gpulaunch.journal.read import replay
from gpulaunch.journal.recorder import link_result
from gpulaunch.journal.rundir import RunDir, new_run_id, newest_of
from gpulaunch.notify.looking import Looking
from gpulaunch.session import Session, held_signals, supervise
from gpulaunch.spec import Plan, load, load_text
from gpulaunch.views.choose import choose_view
from gpulaunch.views.terminal import View

if TYPE_CHECKING:
    from gpulaunch.lint import Finding


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said. `wait` in seconds; `only`: patterns of job names."""

    gpus: str | None = None
    simulate: int | None = None
    share_busy: bool = False
    run_dir: Path | None = None
    dry_run: bool = False
    fail_fast: bool = False
    max_failures: int | None = None
    breaker: int = 10
    pin: str = "fail"
    wait: float | None = None
    quiet: bool = False
    no_progress: bool = False
    as_json: bool = False
    only: Sequence[str] = ()
    detach: bool = False
    explain: bool = False
    changed: bool = False
    recorded: bool = False
    metrics_port: int | None = None


WARNINGS = 20
"""How many warnings of scripts `run` shows; `check` shows all."""

Begun: TypeAlias = Callable[[], None]
"""Called once the run is being recorded."""

# ── A new run ───────────────────────────────────────────────────────────────────────────────────


def start(plan: Plan, job_file: Path | None, options: Options) -> int:
    """Run a plan for the first time; returns the exit status."""
    plan = _explained(plan, options)
    when = datetime.now().astimezone()
    run_id = new_run_id(when)
    with looking_at(plan) as looking:
        found = warn_of(plan, options)
        jobs = _only(plan.jobs, options.only, Ledger())
        pool = pool_for(plan, jobs, options, run_id)
        warn_of_telling(plan, looking, options)
    if options.dry_run:
        echo_plan(plan, jobs, pool, options.as_json, found)
        return errors.OK
    before = None if job_file is None else newest_of(job_file, Path.cwd())
    with Served(options, before) as served, held_signals():
        run = RunDir.create(Path.cwd(), plan.name, when, options.run_dir)
        say(f"{pool.echo}; run directory {_short(run.path)}", options)
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
        )

        def supervised(begun: Begun) -> int:
            with ControlServer(run_id) as server, closing(Journal.create(run)) as journal:
                _describe(session, plan, job_file)
                earlier = partial(durations, before)
                return _supervise(session, server, journal, options, begun, served, earlier)

        return _here_or_detached(run, options, supervised)


def _describe(session: Session, plan: Plan, job_file: Path | None) -> None:
    """The job file as it was read, and the manifest."""
    session.run.jobs_file(1).write_bytes(plan.text)
    manifest = manifests.collect(
        session.run_id,
        plan.name,
        started=iso(now().utc),
        command=sys.argv,
        job_file=job_file,
        gpus=session.pool.gpus,
        driver=session.pool.driver,
    )
    manifests.write(session.run.manifest, manifest)


def refuse_unfinished(job_file: Path) -> None:
    """Raises UnfinishedRunError where the newest run of this file has more to do."""
    newest = newest_of(job_file, Path.cwd())
    if newest is None:
        return
    state = state_of(newest)
    if state in ("succeeded", "failed"):
        return
    where, again = _short(newest.path), f"gpulaunch run --new {shlex.quote(str(job_file))}"
    if state == "running":
        text = f"a run of this file is alive: {where}\n  watch it:     gpulaunch status {where}"
    else:
        text = f"the last run of this file was {state}: {where}"
        text += f"\n  go on with it: gpulaunch resume {where}"
    raise UnfinishedRunError(f"{text}\n  start afresh: {again}")


# ── Going on with a run ─────────────────────────────────────────────────────────────────────────

Choose: TypeAlias = Callable[[Ledger, Sequence[Job]], Again]


def resume(run: RunDir, options: Options) -> int:
    """Everything not yet succeeded, and what the job file has gained since.

    A live run that paused because so many jobs failed alike starts jobs again.
    """
    if state_of(run) == "running" and replay(run.events).paused is not None:
        say_unserved(options)
        call(run.read_manifest().run, GoOn())
        say(f"goes on: {_short(run.path)}", options)
        return errors.OK

    def everything(ledger: Ledger, jobs: Sequence[Job]) -> Again:
        only = options.only and {job.name for job in _only(jobs, options.only, ledger)}
        return again.resume(ledger, jobs, only or None, options.changed)

    return go_on(run, options, everything)


def retry(run: RunDir, options: Options) -> int:
    """Only what failed; on a live run it is put back into it."""
    if state_of(run) == "running":
        say_unserved(options)
        return _retry_alive(run, options)
    return go_on(run, options, again.retry)


def _retry_alive(run: RunDir, options: Options) -> int:
    failed = sum(job.state == "failed" for job in replay(run.events).jobs.values())
    where = f"{_short(run.path)}, which is running"
    if not failed or options.dry_run:
        say(f"{failed:,} failed so far in {where}", options)
        return errors.OK
    call(run.read_manifest().run, Retry(None))
    say(f"requeued {failed:,} that failed in {where}", options)
    return errors.OK


def go_on(run: RunDir, options: Options, choose: Choose) -> int:
    """Take a run up again with what `choose` picks; returns the exit status."""

    def supervised(begun: Begun) -> int:
        # The lock comes first: what is read after it changes under nobody's hands, and a port that
        # is taken by this very run is not what keeps it from going on.
        with ControlServer(run.read_manifest().run) as server, Served(options) as served:
            return _go_on(run, options, choose, server, begun, served)

    return _here_or_detached(run, options, supervised)


def _go_on(
    run: RunDir,
    options: Options,
    choose: Choose,
    server: ControlServer,
    begun: Begun,
    served: Served,
) -> int:
    manifest = run.read_manifest()
    refuse_elsewhere(run)
    ledger = replay(run.events)
    plan = _explained(_plan_again(run, manifest, options), options)
    chosen = choose(ledger, plan.jobs)
    to_run = [job for job in chosen.jobs if job.name not in chosen.left]
    with looking_at(plan) as looking:
        pool = pool_for(plan, to_run, _as_before(options, ledger), manifest.run)
        warn_of_telling(plan, looking, options)
    say(str(chosen), options)
    if options.dry_run:
        echo_plan(plan, to_run, pool, options.as_json)
        return errors.OK
    _mend(run, ledger)
    if chosen.nothing and not ledger.open_attempts() and ledger.state != "interrupted":
        if chosen.left:
            say(
                f"nothing to do; the rest goes on with: gpulaunch resume {_short(run.path)}",
                options,
            )
        return ledger.exit_status
    run.jobs_file(ledger.epoch + 1).write_bytes(plan.text)
    epoch = manifests.this_epoch(ledger.epoch + 1, iso(now().utc), sys.argv)
    manifests.write(run.manifest, manifest.again(epoch))
    session = Session(
        run,
        manifest.run,
        manifest.name,
        pool,
        plan.limits,
        Submitted(chosen.jobs, chosen.requeue, chosen.left),
        ledger,
        left=[attempt.id for attempt in ledger.open_attempts()],
        notify=plan.notify,
        base=plan.base,
    )
    with closing(Journal.reopen(run)) as journal:
        return _supervise(session, server, journal, options, begun, served)


def _plan_again(run: RunDir, manifest: manifests.Manifest, options: Options) -> Plan:
    """The job file as it is now; the run's own copy where asked for, or where there is no file."""
    file = Path(manifest.job_file)
    if manifest.job_file and not options.recorded:
        if file.exists():
            return load(file, environ=os.environ)
        raise UsageError(f"{file} is gone; --recorded goes on with the run's own copy of it")
    newest = max(
        (n for n in range(1, len(manifest.epochs) + 2) if run.jobs_file(n).exists()), default=1
    )
    text = run.jobs_file(newest).read_bytes()
    base = file.parent if manifest.job_file else Path(manifest.cwd)
    return load_text(text, name=manifest.name, base=base, environ=os.environ)


def _as_before(options: Options, ledger: Ledger) -> Options:
    """A simulated run goes on with as many pretend cards, unless told otherwise."""
    if ledger.simulated and options.simulate is None:
        return replace(options, simulate=len(ledger.gpus))
    return options


def _mend(run: RunDir, ledger: Ledger) -> None:
    """What a crash may have cut off between a fact and what follows from it."""
    for job in ledger.jobs.values():
        if job.state == "succeeded" and not os.path.lexists(run.result(job.name)):
            link_result(run, ledger, job.name)


def _here_or_detached(run: RunDir, options: Options, work: Callable[[Begun], int]) -> int:
    """Supervise in this process, or in one of its own that outlives the terminal."""
    if not options.detach:
        return work(lambda: None)
    detached = detach(run.path / "supervisor.log")
    if isinstance(detached, Detached.Parent):
        click.echo(run.path)
        return detached.status
    return work(detached.begun)


# ── Both ────────────────────────────────────────────────────────────────────────────────────────


def _explained(plan: Plan, options: Options) -> Plan:
    """`--explain` holds for this start alone: neither file nor digest knows of it."""
    if not options.explain:
        return plan
    return replace(plan, jobs=tuple(replace(job, explain=True) for job in plan.jobs))


def warn_of(plan: Plan, options: Options, most: int = WARNINGS) -> list[Finding]:
    """Say what in jobs and their scripts does not suit the cards they get; returns all of it."""
    from gpulaunch.lint import report

    if options.quiet:
        return []
    found = report(plan)
    for finding in found.findings[:most]:
        click.echo(f"warning: {finding}", err=True)
    if len(found.findings) > most:
        say(f"and {len(found.findings) - most:,} more warnings: gpulaunch check shows them all")
    if found.note:
        say(found.note)
    return list(found.findings)


def looking_at(plan: Plan) -> Looking:
    """Begins to look at whom the plan tells; `warn_of_telling` is for what comes of it."""
    return Looking(plan.notify, os.environ, plan.base)


def warn_of_telling(plan: Plan, looking: Looking, options: Options) -> None:
    """Say what would keep people from being told. Raises JobFileError for addresses that are wrong.

    Shows no line of the file: an address may be on it.
    """
    concerns = [
        (one.wrong, plan.point((*one.target.path, one.key), one.text)) for one in looking.concerns()
    ]
    if mistakes := [text for wrong, text in concerns if wrong]:
        raise JobFileError(mistakes)
    for _, text in concerns:
        if not options.quiet:
            click.echo(f"warning: {text}", err=True)


def pool_for(plan: Plan, jobs: Sequence[Job], options: Options, run_id: str) -> Pool:
    """The cards, and whether each of these jobs could run on them."""
    asked = options.gpus if options.gpus is not None else plan.selection
    try:
        pool = open_pool(asked, options.simulate, os.environ, run_id, options.share_busy)
    except SelectionError as error:
        if options.gpus is not None:
            raise
        raise JobFileError([plan.point(("gpus",), error.text)]) from None
    if not pool.gpus:
        require(pool, max((job.demand.gpus for job in jobs), default=0))
    if mistakes := replace(plan, jobs=tuple(jobs)).unplaceable(pool.gpus, pool.size):
        raise JobFileError(mistakes)
    for note in pool.notes if pool.gpus else ():
        say(note, options)
    _refuse_unisolated(plan, jobs, pool, options)
    return pool


def _refuse_unisolated(plan: Plan, jobs: Sequence[Job], pool: Pool, options: Options) -> None:
    """Raises JobFileError where a job wants strict isolation and it cannot be had here."""
    wanting = [job for job in jobs if job.isolation == "strict"]
    if not wanting:
        return
    if why := strict.refusal(pool.gpus):
        raise JobFileError([plan.point(("jobs", wanting[0].group, "isolation"), why)])
    if os.geteuid() == 0:
        say(strict.AS_ROOT, options)


def _only(jobs: Sequence[Job], patterns: Sequence[str], ledger: Ledger) -> list[Job]:
    """The jobs that a pattern names, with those they need and that have not succeeded yet."""
    if not patterns:
        return list(jobs)
    by_name = {job.name: job for job in jobs}
    todo = [n for n in by_name if any(fnmatchcase(n, pattern) for pattern in patterns)]
    if not todo:
        raise UsageError(f"--only {patterns[0]}: no job of the file has such a name")
    chosen = set(todo)
    while todo:
        for need in by_name[todo.pop()].needs:
            known = ledger.jobs.get(need)
            if need not in chosen and not (known and known.state == "succeeded"):
                chosen.add(need)
                todo.append(need)
    there = chosen | ledger.jobs.keys()
    return [
        replace(job, after=tuple(n for n in job.after if n in there))
        for job in jobs
        if job.name in chosen
    ]


def _supervise(
    session: Session,
    server: ControlServer,
    journal: Journal,
    options: Options,
    begun: Begun,
    served: Served,
    earlier: Callable[[], Mapping[str, float]] = dict,
) -> int:
    """Drive the run to its end and show it; returns the exit status.

    `earlier`: how long jobs took in an earlier run of the same file, in seconds by name.
    """
    session = replace(
        session,
        fail_fast=options.fail_fast,
        max_failures=options.max_failures,
        breaker=options.breaker or None,
        watched=_watched(options),
        pinned=options.pin == "fail",
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
    with reported(ledger, session.run, options):
        if not options.as_json:
            show_summary(ledger, session.run)
    if ledger.exit_status == errors.NO_CARDS:
        raise NoCardsError("no card came free in the time that --wait gave; nothing was started")
    if unrecorded:
        raise NotRecordedError(f"the run could not be recorded ({unrecorded}) and was stopped")
    return ledger.exit_status


def _watched(options: Options) -> bool:
    return not options.detach and sys.stdin.isatty() and sys.stderr.isatty()


def _short(path: Path) -> str:
    """As people would type it from here."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
