"""`gpulaunch cancel`: stop jobs, or a whole run, from another terminal."""

from __future__ import annotations

import click


@click.command("cancel")
@click.option("-r", "--run", metavar="RUN", help="The run; the only one alive here.")
@click.option("--all", "everything", is_flag=True, help="Every job of the run.")
@click.argument("jobs", nargs=-1)
def command(run: str | None, everything: bool, jobs: tuple[str, ...]) -> None:
    """Stop single jobs, or a whole run with --all. JOB may be a pattern.

    \b
    gpulaunch cancel 'fold-x*'
    gpulaunch cancel -r nanobodies-20261120-074215 --all
    """
    from gpulaunch.cli.lookup import alive, jobs_of
    from gpulaunch.cli.output import say
    from gpulaunch.control import call
    from gpulaunch.core.events import Cancel
    from gpulaunch.core.model import SETTLED
    from gpulaunch.errors import UsageError

    if bool(jobs) == everything:
        raise UsageError("name the jobs to cancel, or --all of the run")
    one = alive(run)
    names = None if everything else jobs_of(one.ledger, jobs)
    if names is not None:
        left = [n for n in names if one.ledger.jobs[n].state not in SETTLED]
        if not left:
            state = one.ledger.jobs[names[0]].state
            raise UsageError(f"nothing to cancel: {names[0]} is over already ({state})")
        names = left
    call(one.id, Cancel(None if names is None else tuple(names)))
    say(f"cancelled {'every job' if names is None else ', '.join(names)} of {one.run.path}")
