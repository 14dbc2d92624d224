"""Goes on with a run, for `resume`, `retry` and `run --continue`.

run directory ─▶ ledger ─┐
job file again ─▶ plan ──┴─▶ what is to run (core.resume_plan) ─▶ pool ─▶ supervise ─▶ exit status
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from gpulaunch import errors
from gpulaunch.cli.beforehand import (
    all_told,
    looking_at,
    pool_for,
    refuse_absent,
    require_programs,
    warn_of_telling,
)
from gpulaunch.cli.damage import remembered_to_go_on
from gpulaunch.cli.kept import among, as_before, say_left_out, say_not_taken
from gpulaunch.cli.options import RunOptions
from gpulaunch.cli.output import echo_plan, say
from gpulaunch.cli.running import Begun, here_or_detached, run_to_its_end, short, stands
from gpulaunch.cli.serving import Served, say_unserved
from gpulaunch.control import ControlServer, call
from gpulaunch.core import resume_plan
from gpulaunch.core.events import GoOn, Submitted
from gpulaunch.core.expected import expect_again
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job
from gpulaunch.core.resume_plan import ResumePlan
from gpulaunch.errors import UsageError
from gpulaunch.files import read_bytes
from gpulaunch.files import replace as replace_file
from gpulaunch.jobfile import Plan, load, load_text
from gpulaunch.jobfile.overrides import as_chosen
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.append import Journal
from gpulaunch.journal.codec import iso, now
from gpulaunch.journal.liveness import (
    origin_of,
    own_id,
    refuse_elsewhere,
    require_dead_elsewhere,
    state_of,
)
from gpulaunch.journal.read import replay
from gpulaunch.journal.recorder import link_result
from gpulaunch.journal.rundir import RunDir
from gpulaunch.rereading import Filed
from gpulaunch.session import Session
from gpulaunch.text import listing

Choose: TypeAlias = Callable[[Ledger, Sequence[Job], RunOptions], ResumePlan]


def resume(run: RunDir, options: RunOptions) -> int:
    """Run everything not yet succeeded, and the file's new jobs; return the exit status.

    A live run that paused because many jobs failed alike starts jobs again.
    """
    taken_over = options.take_over and not origin_of(run).here
    if taken_over:
        require_dead_elsewhere(run)
    else:
        refuse_elsewhere(run)
    if not taken_over and state_of(run) == "running" and replay(run.events).paused is not None:
        say_unserved(options)
        say_not_taken(options)
        call(run.read_manifest().run, GoOn())
        say(f"goes on: {short(run.path)}", options)
        return errors.OK

    def everything(ledger: Ledger, jobs: Sequence[Job], options: RunOptions) -> ResumePlan:
        names = among(jobs, options, ledger)
        say_left_out(jobs, names, ledger, options, run)
        return resume_plan.resume(ledger, jobs, names, options.changed)

    return go_on(run, options, everything)


def go_on(run: RunDir, options: RunOptions, choose: Choose) -> int:
    """Go on with a run with the jobs that `choose` picks; return the exit status."""

    def supervised(begun: Begun) -> int:
        # The lock comes first: after it nobody changes what is read, and an error names the live
        # run itself rather than the metrics port that it holds.
        with ControlServer(own_id(run)) as server, Served(options) as served:
            return _go_on(run, options, choose, server, begun, served)

    return here_or_detached(run, options, supervised)


def _go_on(
    run: RunDir,
    options: RunOptions,
    choose: Choose,
    server: ControlServer,
    begun: Begun,
    served: Served,
) -> int:
    manifest = replace(run.read_manifest(), run=server.run)
    ledger, endless = remembered_to_go_on(run)
    options = as_before(options, manifest, ledger)
    plan = plan_again(run, manifest, options)
    chosen = choose(ledger, plan.jobs, options)
    with looking_at(plan) as looking:
        pool, *_ = all_told(
            lambda: pool_for(plan, chosen.to_do, options, manifest.run),
            lambda: refuse_absent(plan, chosen.to_do, options),
            lambda: warn_of_telling(plan, looking),
        )
    cards = f"{pool.echo}; " if chosen.to_do and not options.dry_run else ""
    say(f"{cards}{chosen}", options)
    if lost := [job.name for job in chosen.to_do if job.name in endless]:
        say(f"again because no end of theirs can be read, be it a success: {listing(lost, 10)}")
    if options.dry_run:
        echo_plan(plan, resume_plan.starts(ledger, chosen), pool, options.as_json)
        return errors.OK
    _mend(run, ledger)
    if chosen.nothing and not ledger.open_attempts() and ledger.state != "interrupted":
        if chosen.left:
            where = shlex.quote(short(run.path))
            left = stands(ledger, chosen.left)
            say(f"nothing to do; {left}, to be run with: gpulaunch resume {where}", options)
        return ledger.exit_status
    require_programs(pool)
    replace_file(run.next_jobs_file(), plan.text)
    epoch = manifests.this_epoch(ledger.epoch + 1, iso(now().utc), sys.argv)
    again_with = replace(
        manifest.again(epoch), engine=pool.engine, slurm=options.slurm, choices=options.choices
    )
    manifests.write(run.manifest, again_with)
    session = Session(
        run,
        manifest.run,
        manifest.name,
        pool,
        plan.limits,
        Submitted(expect_again(chosen.jobs, ledger), chosen.requeue, chosen.left),
        ledger,
        left=[attempt.id for attempt in ledger.open_attempts()],
        notify=plan.notify,
        base=plan.base,
        slurm=options.slurm,
        filed=_filed(manifest, options),
    )
    with closing(Journal.reopen(run)) as journal:
        return run_to_its_end(session, server, journal, options, begun, served)


def plan_again(run: RunDir, manifest: manifests.Manifest, options: RunOptions) -> Plan:
    """Return the plan of the job file as it is now, under the run's choices.

    Of the run's own copy, if that is asked for or there is no file.
    """
    plan = _read_again(run, manifest, options)
    return as_chosen(plan, options.choices.explain, options.choices.preload)


def _read_again(run: RunDir, manifest: manifests.Manifest, options: RunOptions) -> Plan:
    file = Path(manifest.job_file)
    if manifest.job_file and not options.recorded:
        if file.exists():
            return load(file, environ=os.environ, per_gpu=options.choices.per_gpu)
        raise UsageError(f"{file} is gone; --recorded goes on with the run's own copy of it")
    copy = run.newest_jobs_file()
    try:
        text = read_bytes(copy)
    except OSError as error:
        raise UsageError(f"{copy}, the run's own copy, cannot be read: {error.strerror}") from None
    base = file.parent if manifest.job_file else Path(manifest.cwd)
    return load_text(
        text,
        name=manifest.name,
        base=base,
        environ=os.environ,
        per_gpu=options.choices.per_gpu,
    )


def _filed(manifest: manifests.Manifest, options: RunOptions) -> Filed | None:
    """Return the file from which a live run reads its jobs again; None if there is none."""
    if not manifest.job_file or options.recorded:
        return None
    return Filed(Path(manifest.job_file), options.choices)


def _mend(run: RunDir, ledger: Ledger) -> None:
    """Make links to results that a crash prevented after the success was recorded."""
    for job in ledger.jobs.values():
        if job.state == "succeeded" and not os.path.lexists(run.result(job.name)):
            link_result(run, ledger, job.name)
