"""`gpulaunch status JOB`: everything about one job, for people."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from gpulaunch.core.ledger import AttemptRecord, JobRecord
from gpulaunch.diagnose.failure.advice import advice
from gpulaunch.digest import words
from gpulaunch.digest.groups import evidence_of, how
from gpulaunch.digest.measured import use_of_one
from gpulaunch.views.standing import Standing, time_of

_LABEL = 9


def print_job(console: Console, run: Standing, job: JobRecord, command: str) -> None:
    """Print a job's facts, its reason, and each attempt. `command`: empty if unknown."""
    console.print(Text.assemble((words.visible(job.name), "bold"), f"  {job.state}"))
    for label, text in _facts(run, job, command):
        console.print(Text.assemble((f"{label:>{_LABEL}}  ", "dim"), text), soft_wrap=True)
    for attempt in job.attempts:
        console.print()
        for label, text in _attempt(run, attempt):
            console.print(Text.assemble((f"{label:>{_LABEL}}  ", "dim"), text), soft_wrap=True)


def _facts(run: Standing, job: JobRecord, command: str) -> Iterator[tuple[str, str]]:
    why = how(job) if job.state == "failed" else run.reason(job)
    if why:
        yield "why", words.visible(why)
    if evidence := evidence_of(job):
        yield "shows", words.visible(evidence)
    if command:
        yield "command", words.visible(command)
    if job.definition.params:
        values = ", ".join(f"{key}={value}" for key, value in job.definition.params.items())
        yield "values", words.visible(values)
    yield "cards", "none" if not job.definition.gpus else f"{job.definition.gpus}"
    if job.changed:
        yield "", "it was defined differently when it succeeded"
    yield "run", words.visible(os.fspath(run.paths.root))


def _attempt(run: Standing, attempt: AttemptRecord) -> Iterator[tuple[str, str]]:
    where = words.attempt_cards(attempt, run.ledger) or "no card"
    began = attempt.started or attempt.launched
    yield (
        f"attempt {attempt.id.number}",
        f"{attempt.state}  {time_of(attempt, run.clock)}  {where}"
        f"  began {words.local_time(began.utc)}",
    )
    if attempt.outcome is not None and attempt.failure:
        yield "ended", words.visible(words.ending(attempt))
    if attempt.evidence:
        yield "shows", words.visible(attempt.evidence)
    for number, line in enumerate(advice(attempt.advice).splitlines()):
        yield "" if number else "advice", words.visible(line)
    for report in attempt.reports:
        yield "driver", words.visible(report)
    use = run.measured.uses.get(attempt.id)
    if use is not None and (text := use_of_one(use)):
        yield "used", text
    yield "log", words.visible(os.fspath(run.paths.log(attempt.id)))
    out = os.fspath(run.paths.out(attempt.id))
    if os.path.isdir(out):
        yield "out", words.visible(out)
