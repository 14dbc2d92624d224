"""Applies what a run keeps from one start to the next, and tells people of it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace

from gpulaunch.cli.beforehand import with_engine
from gpulaunch.cli.lookup import with_needs
from gpulaunch.cli.options import RunOptions
from gpulaunch.cli.output import say, typed
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job
from gpulaunch.errors import UsageError
from gpulaunch.journal.choices import Choices
from gpulaunch.journal.manifest import Manifest
from gpulaunch.journal.rundir import RunDir
from gpulaunch.text import several


def as_before(options: RunOptions, manifest: Manifest, ledger: Ledger) -> RunOptions:
    """Return the options of this start, with those that the run was begun with where none is given.

    Prints what is kept. Raises UsageError if another engine is asked for while the run's engine
    still has attempts.
    """
    changes = options.engine not in (None, manifest.engine)
    if changes and (left := len(ledger.open_attempts())):
        raise UsageError(
            f"--engine {manifest.engine} still has {several(left, 'attempt')} of"
            " this run: resume it without --engine, and change when they have ended"
        )
    local = manifest.engine == "local" and not changes
    before = manifest.choices if local else manifest.choices.elsewhere()
    options = replace(options, choices=options.choices.over(before))
    options = with_engine(options, manifest.engine, () if changes else manifest.slurm)
    if kept := [word for word in options.choices.words() if word in before.words()]:
        say(f"as before: {' '.join(kept)}", options)
    if options.engine == "local" and ledger.simulated and options.choices.simulate is None:
        cards = replace(options.choices, simulate=len(ledger.gpus))
        return replace(options, choices=cards)
    return options


def among(jobs: Sequence[Job], options: RunOptions, ledger: Ledger) -> set[str] | None:
    """Return the names of the jobs that `--only` picks, and of those that they need; None: all.

    Raises UsageError where it picks none.
    """
    if not options.choices.only:
        return None
    try:
        return {job.name for job in with_needs(jobs, options.choices.only, ledger)}
    except UsageError as error:
        raise UsageError(f"{error}; --only '*' picks all of them") from None


def say_left_out(
    jobs: Sequence[Job],
    names: Collection[str] | None,
    ledger: Ledger,
    options: RunOptions,
    run: RunDir,
) -> None:
    """Say how many jobs of the file, yet to succeed, `--only` leaves out, and what runs them.

    `names` are those of the jobs that it picks; None: all.
    """
    done = {record.name for record in ledger.jobs.values() if record.state == "succeeded"}
    count = sum(job.name not in names and job.name not in done for job in jobs) if names else 0
    if count:
        words = " ".join(Choices(only=options.choices.only).words())
        again = f"gpulaunch resume {shlex.quote(typed(run.path))} --only '*'"
        say(f"{words} leaves out {several(count, 'job')} of the file; to run all: {again}", options)


def say_not_taken(options: RunOptions) -> None:
    """Warn of options that have no effect on a live run, for a command that only talks to one."""
    if words := options.choices.words():
        say(f"{' '.join(words)}: not for a run that is alive already, as it was begun it goes on")
