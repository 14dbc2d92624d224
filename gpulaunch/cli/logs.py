"""`gpulaunch logs`: read or follow logs."""

from __future__ import annotations

import click


@click.command("logs")
@click.option("-r", "--run", metavar="RUN", help="The run; the newest one here.")
@click.option("-f", "--follow", is_flag=True, help="Go on as the logs grow, until the jobs end.")
@click.option("-n", "--lines", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="That attempt; the newest.")
@click.option("--failed", is_flag=True, help="Of these, the jobs that failed.")
@click.option("--raw", is_flag=True, help="Byte for byte: progress bars and colours as written.")
@click.argument("jobs", nargs=-1)
def command(
    run: str | None,
    follow: bool,
    lines: int | None,
    attempt: int | None,
    failed: bool,
    raw: bool,
    jobs: tuple[str, ...],
) -> None:
    """Read or follow logs. JOB may be a pattern; without one, every job that has a log.

    Of one job the whole log is shown, of several the last 10 lines each; progress bars are folded.

    \b
    gpulaunch logs fold-x2 -f
    gpulaunch logs 'fold-*' -n 3
    gpulaunch logs --failed
    """
    from gpulaunch.cli import reading
    from gpulaunch.cli.lookup import found, jobs_of
    from gpulaunch.cli.output import say, typed

    one = found(run)
    names = jobs_of(one.ledger, jobs) if jobs else None
    if failed:
        among = one.ledger.jobs if names is None else names
        names = [name for name in among if one.ledger.jobs[name].state == "failed"]
        if not names:
            say(f"{typed(one.run.path)}: nothing failed{' so far' * (one.state == 'running')}")
            return
    wanted = reading.LogSelection(one.run, one.id, names, attempt, raw)
    if follow:
        reading.follow(wanted, lines)
    else:
        reading.show(wanted, one.ledger, lines)
