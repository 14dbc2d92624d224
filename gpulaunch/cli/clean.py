"""`gpulaunch clean`: remove what failed attempts left, or whole runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from gpulaunch.base.errors import OK, SOME_JOB_FAILED
from gpulaunch.base.schemas import SCHEMA
from gpulaunch.base.text import listing, several, size
from gpulaunch.cli import completion
from gpulaunch.cli.options import DURATION, as_json
from gpulaunch.cli.output import print_json, say
from gpulaunch.journal.find import typed

if TYPE_CHECKING:
    from gpulaunch.base.documents import CleanDocument, CleanedDirectory
    from gpulaunch.run.clean import CleanPlan, Removable, Removed, RunLook

_SIZE_WIDTH = 10


@click.command("clean")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completion.runs)
@click.option("--runs", "whole", is_flag=True, help="Whole runs that are over, with all they hold.")
@click.option(
    "--older", type=DURATION, metavar="TIME", help="Only runs that ended so long ago: 30d."
)
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Leave the N newest as they are.")
@click.option("--dry-run", is_flag=True, help="Say what would go, remove nothing.")
@as_json
def command(
    runs: tuple[str, ...],
    whole: bool,
    older: float | None,
    keep: int | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Remove the out/ of attempts that failed or were cut short and were tried again since.

    It says what goes and what that takes, then removes it. Without RUN it looks at all runs that
    were begun in this directory. Never touched: a live run, keep/, and what links in results/, in
    keep/ or in the out/ that stays lead to.

    With --runs, whole runs that succeeded, or in which nothing was started; one that can be gone
    on with goes only where RUN names it.

    Exits 1 where something that was asked for is left.

    \b
    gpulaunch clean --dry-run
    gpulaunch clean --runs --older 30d --keep 10
    gpulaunch clean --runs gpulaunch-runs/nanobodies-20261120-074215
    """
    from gpulaunch.cli.terminal import Terminal
    from gpulaunch.run import clean

    plan = clean.look(runs, clean.CleanOptions(whole, older, keep or 0), Terminal())
    if not as_json:
        for line in _told(plan):
            click.echo(line)
    done = [] if dry_run else list(clean.carry_out(plan))
    if as_json:
        print_json(_document(plan, done, dry_run))
    refused = [one for one in plan.runs if one.left and one.named and not one.kind]
    for text in (*_left(plan), *_ends(plan, done, dry_run)):
        say(text)
    return SOME_JOB_FAILED if refused or any(one.left for one in done) else OK


def _told(plan: CleanPlan) -> Iterator[str]:
    """Yield a line for each run of which something goes, and one for all of them."""
    found = [(sum(t.bytes for t in one.targets), _of_run(one)) for one in plan.runs if one.targets]
    if plan.leftovers:
        found.append((sum(t.bytes for t in plan.leftovers), "left over from an earlier clean"))
    for amount, text in found:
        yield f"{size(amount):>{_SIZE_WIDTH}}  {text}"
    if len(found) > 1:
        yield f"{size(plan.bytes):>{_SIZE_WIDTH}}  in all"


def _of_run(look: RunLook) -> str:
    where, attempts = typed(look.run.path), [t.attempt for t in look.targets if t.attempt]
    if attempts:
        named = listing(map(str, attempts))
        return f"{where}: out/ of {several(len(attempts), 'superseded attempt')}: {named}"
    held = [f"{look.state}", several(look.attempts, "attempt")]
    if look.keeps:
        held.append(f"keep/ of {several(look.keeps, 'job')}")
    if look.others:
        held.append(f"with what is not its own: {listing(look.others)}")
    stays = f"; what these links lead to stays: {listing(look.links)}" if look.links else ""
    return f"{where}: the whole run, {', '.join(held)}{stays}"


def _left(plan: CleanPlan) -> Iterator[str]:
    """Yield a line for each run that is left, and one for all that were not named."""
    for one in plan.runs:
        if one.left and (one.named or not one.kind):
            yield f"{typed(one.run.path)} is left: {one.left}"
    resumable = [one for one in plan.runs if one.kind == "resumable"]
    if resumable:
        states = Counter(one.state for one in resumable)
        told = ", ".join(f"{count:,} {state}" for state, count in states.items())
        which = listing((typed(one.run.path) for one in resumable), 2)
        yield (
            f"left, as each can be gone on with: {told} ({which}); named, they go too:"
            " gpulaunch clean --runs RUN ..."
        )


def _ends(plan: CleanPlan, done: Sequence[Removed], dry_run: bool) -> Iterator[str]:
    """Yield what has become of it all."""
    for one in done:
        if one.left:
            yield f"{typed(one.target.path)} is left: {one.left}"
    if dry_run:
        yield f"nothing was removed (--dry-run); {size(plan.bytes)} would be free"
    elif done:
        yield f"removed {size(sum(one.freed for one in done))}"
    else:
        yield "nothing to remove"


def _document(plan: CleanPlan, done: Sequence[Removed], dry_run: bool) -> CleanDocument:
    by_path = {one.target.path: one for one in done}

    def told(target: Removable) -> CleanedDirectory:
        end = by_path.get(target.path)
        return {
            "path": str(target.path),
            "job": target.attempt.job if target.attempt else None,
            "attempt": target.attempt.number if target.attempt else None,
            "bytes": target.bytes,
            "freed": end.freed if end else 0,
            "left": end.left if end else "",
        }

    return {
        "schema": SCHEMA,
        "dry_run": dry_run,
        "whole_runs": plan.options.whole,
        "runs": [
            {
                "id": one.id,
                "name": one.name,
                "dir": str(one.run.path),
                "state": one.state if one.id else None,
                "left": one.left,
                "removes": [told(target) for target in one.targets],
            }
            for one in plan.runs
        ],
        "leftovers": [told(target) for target in plan.leftovers],
        "bytes": plan.bytes,
        "freed": sum(one.freed for one in done),
    }
