"""`gpulaunch status` for people: a run on one screen, every job of it, or all about one job.

The run's state comes from the caller: whether a supervisor is alive is not in the journal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpulaunch.base.localtime import time_of
from gpulaunch.base.text import clock, size
from gpulaunch.base.wording import pause, run_reason, warning
from gpulaunch.core.causes import Quoted
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import JobState
from gpulaunch.core.reasons import JobReason, OutsideHours, RunReason, WaitReason
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.observe.present import words
from gpulaunch.observe.present.events import unused
from gpulaunch.observe.present.status import STATES, STYLES, Standing, told_pauses
from gpulaunch.observe.present.summary import evidence_of, failures, how, reasons
from gpulaunch.observe.present.usage import (
    doubtful,
    left_behind,
    noted,
    outdated,
    processes_left,
    stands_for_other,
    use_of_one,
)
from gpulaunch.observe.terminal.overview import (
    Section,
    code_changes,
    counted,
    grouped,
    height_of,
    listed,
    print_sections,
)
from gpulaunch.observe.terminal.terminal import fits

REASON = 30
"""Columns that a job's reason needs at least, to stand in a table beside the other cells."""
SCREEN = 24
"""Lines of a screen where standard output is no terminal."""


def print_status(console: Console, run: Standing, everything: bool = False) -> None:
    """Print counts, cards, jobs and how to go on; as much as fits a screen, or `everything`."""
    head = [*_head(run), *(_cards(run.ledger) if run.state == "running" else [])]
    foot = _foot(run, everything)
    for text in head:
        console.print(text, soft_wrap=True)
    if everything:
        _print_jobs(console, run)
    elif sections := _sections(run):
        screen = console.height if console.is_terminal else SCREEN
        # Room for a blank line and the shell's prompt.
        taken = sum(height_of(console, text) for text in (*head, *foot)) + 3
        console.print()
        print_sections(console, sections, screen - taken)
    if foot:
        console.print()
    for text in foot:
        console.print(text, soft_wrap=True)


def _sections(run: Standing) -> list[Section]:
    """Return the sections of jobs, those that a person looks for first at the top."""
    by_state: dict[JobState, list[JobRecord]] = {name: [] for name in STATES}
    gone: list[JobRecord] = []
    for job in run.ledger.jobs.values():
        (gone if job.gone else by_state[job.state]).append(job)
    sections = [
        grouped("failed", STYLES["failed"], failures(by_state["failed"])),
        listed("running", STYLES["running"], [_running(job, run) for job in by_state["running"]]),
    ]

    def why_of(job: JobRecord) -> JobReason | WaitReason | None:
        return (job.state == "waiting" and run.why.get(job.name)) or job.reason

    for state in ("waiting", "skipped", "cancelled"):
        alike = reasons(by_state[state], why_of, run.ledger)
        sections.append(grouped(state, STYLES[state], alike))
    sections.append(
        grouped("gone", "yellow", reasons(gone, lambda job: Quoted(words.gone(job)), run.ledger))
    )
    return [section for section in sections if section.items]


def _running(job: JobRecord, run: Standing) -> str:
    last = job.attempts[-1] if job.attempts else None
    about = _about(job, last, run)
    idle = words.idle(last, run.ledger) if last is not None else ""
    return "  ".join(filter(None, [words.visible(job.name), _time_of(last, run), about, idle]))


def _foot(run: Standing, everything: bool) -> list[Text]:
    lines = []
    if run.state == "running" and (waits := words.standing(run.ledger)):
        lines.append(Text(waits, "dim"))
    if command := run.next_command:
        lines.append(Text.assemble(("go on with  ", "dim"), (words.visible(command), "bold")))
    if not everything and run.ledger.jobs:
        lines.append(Text("more: status --all, status JOB", "dim"))
    return lines


def _head(run: Standing) -> list[Text]:
    ledger, state = run.ledger, run.state
    ahead = run.ahead
    style = {"succeeded": "green", "running": "cyan", "failed": "bold red"}.get(state, "yellow")
    lines = [
        Text.assemble(
            (words.visible(ledger.opening.name), "bold"),
            "  ",
            (state, style),
            f"  {clock(run.lasted)}",
            f", {words.rough_range(ahead.low, ahead.high)} to go" if ahead else "",
            "  simulated cards" if ledger.opening.simulated else "",
            (f"  {words.visible(os.fspath(run.paths.root))}", "dim"),
        ),
        counted(ledger.counts, ledger.vanished, STYLES) or Text("no jobs"),
    ]
    return lines + [Text(text, "yellow") for text in _remarks(run)]


def _remarks(run: Standing) -> list[str]:
    """Return what keeps the run from going on and what to know of its jobs, in lines."""
    left = left_behind(run.ledger)
    told = [processes_left(left)] if left else []
    if notes := doubtful(run.ledger):
        told.append(noted(notes))
    if run.state != "running" and (changed := outdated(run.ledger)):
        told.append(stands_for_other(changed, os.fspath(run.paths.root)))
    return [*_standstill(run), *told, *code_changes(run.ledger, run.now.utc)]


def _standstill(run: Standing) -> list[str]:
    ledger = run.ledger
    if run.state == "running":
        told = [run.suspended] if run.suspended else []
        told += [words.visible(_pause(run, why)) for why in told_pauses(ledger)]
        if ledger.stopping:
            told.append(f"stopping: {words.visible(run_reason(ledger.stopping))}")
        if not run.here:
            host = words.visible(ledger.opening.host)
            told.append(f"as it is written: whether it is alive shows on {host} alone")
        return told
    if ledger.reason:
        return [words.visible(run_reason(ledger.reason))]
    if run.state == "interrupted":
        on = ledger.queueing and ledger.open_attempts()
        return [words.ON_ITS_OWN if on else words.KILLED]
    return []


def _pause(run: Standing, why: RunReason) -> str:
    if isinstance(why, OutsideHours):
        return pause(why, run.now.utc)
    return f"paused: {pause(why)}"


def _cards(ledger: Ledger) -> list[Text]:
    lines = []
    for record in ledger.gpus.values():
        drained = "given back: no new starts there" if record.drained else ""
        if why := ", ".join(filter(None, [drained, unused(record)])):
            lines.append(Text(f"{words.card(record.gpu)}: {why}", "yellow"))
        if record.gpu.unified:
            lines.append(Text(f"{words.card(record.gpu)}: unified memory, the host's", "dim"))
    return lines


def _print_jobs(console: Console, run: Standing) -> None:
    """Print a line per job; several lines if one has no room for the reason."""
    table = _jobs(run)
    if not table.row_count:
        return
    console.print()
    if fits(console, table, REASON):
        console.print(table)
        return
    cells = [column.cells for column in table.columns]
    for name, state, time, about in zip(*cells, strict=True):
        console.print(Text.assemble(name, "  ", state, f"  {time}" if time else ""), soft_wrap=True)
        if about:
            console.print(Text.assemble("  ", about), soft_wrap=True)


def _jobs(run: Standing) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("job", overflow="ellipsis", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for job in run.ledger.jobs.values():
        last = job.attempts[-1] if job.attempts else None
        table.add_row(
            Text(words.visible(job.name)),
            Text(job.state, STYLES[job.state]),
            _time_of(last, run) if job.state not in ("waiting", "skipped") else "",
            Text(words.visible(_about(job, last, run))),
        )
    return table


def _time_of(attempt: AttemptRecord | None, run: Standing) -> str:
    """Return how long the attempt took, or has taken so far; empty without an attempt."""
    if attempt is None or attempt.unbegun:
        return ""
    if attempt.ended is None and attempt.seen is None:
        now = run.now if run.state == "running" else run.ledger.last or run.now
        return clock(run.ledger.so_far(attempt, now))
    return clock(attempt.seconds)


def _about(job: JobRecord, last: AttemptRecord | None, run: Standing) -> str:
    """Return where the job ran, its reason, and for a failure the line that shows it."""
    where = ""
    if last and job.state not in ("waiting", "skipped"):
        where = words.attempt_cards(last, run.ledger)
    began = last is not None and not last.taken_back
    number = f"attempt {last.id.number}" if last and began and last.id.number > 1 else ""
    step = words.further_step(job.step) if last is not None else ""
    said, shown = run.reason(job), evidence_of(job)
    if shown:
        said = f"{how(job)}: {shown}"
    left = words.left_behind(last) if last is not None and job.state == "succeeded" else ""
    parts: Sequence[str] = (where, said, number, step, left, "changed since" * job.changed)
    return ", ".join(filter(None, parts))


_LABEL = 9


def print_job(console: Console, run: Standing, job: JobRecord, command: str) -> None:
    """Print a job's facts, its reason, and each attempt. `command`: empty if unknown."""
    console.print(Text.assemble((words.visible(job.name), "bold"), f"  {job.state}"))
    parts = [_facts(run, job, command), *(_attempt(run, attempt) for attempt in job.attempts)]
    for number, part in enumerate(parts):
        if number:
            console.print()
        for label, text in part:
            console.print(Text.assemble((f"{label:>{_LABEL}}  ", "dim"), text), soft_wrap=True)


def _facts(run: Standing, job: JobRecord, command: str) -> Iterator[tuple[str, str]]:
    why = how(job) if job.state == "failed" else run.reason(job)
    if why:
        yield "why", words.visible(why)
    if evidence := evidence_of(job):
        yield "shows", words.visible(evidence)
    if text := run.ledger.noted.get(job.name):
        yield "note", words.visible(text)
    if command:
        yield "command", words.visible(command)
    if job.definition.params:
        values = ", ".join(f"{key}={value}" for key, value in job.definition.params.items())
        yield "values", words.visible(values)
    if (defined := run.definitions.get(job.name)) is not None:
        from gpulaunch.observe.terminal.plan import asked_for, shared_by

        cards = [record.gpu for record in run.ledger.gpus.values()]
        yield "asks for", asked_for(defined, run.ledger.opening.engine)
        if shared := shared_by([defined], cards):
            yield "card", shared
    else:
        yield "cards", "none" if not job.definition.gpus else f"{job.definition.gpus}"
    if due := job.definition.due:
        yield "due", f"{time_of(due.utc)} (not_before: {due.words})"
    if job.changed:
        yield "", "it was defined differently when it succeeded"
    yield "run", words.visible(os.fspath(run.paths.root))
    keep = os.fspath(run.paths.keep(job.name))
    if os.path.isdir(keep):
        yield "keep", words.visible(keep)


def _attempt(run: Standing, attempt: AttemptRecord) -> Iterator[tuple[str, str]]:
    where = words.attempt_cards(attempt, run.ledger) or "no card"
    began = attempt.started or attempt.launched
    yield (
        f"attempt {attempt.id.number}",
        f"{attempt.state}  {_time_of(attempt, run)}  {where}  began {words.local_time(began.utc)}",
    )
    if attempt.step is not None:
        yield "ladder", words.step(attempt.step)
    if attempt.promised:
        yield "shares", f"its card, of whose memory {size(attempt.promised)} is promised to it"
    if sent := attempt.warned:
        yield "warned", f"{words.local_time(sent.at.utc)}  {warning(sent)}"
    if text := words.idle(attempt, run.ledger):
        yield "idle", words.visible(text)
    if attempt.outcome is not None and attempt.failure:
        yield "ended", words.visible(words.ending(attempt))
    if text := words.left_behind(attempt):
        yield "left", text
    if attempt.evidence:
        yield "shows", words.visible(attempt.evidence)
    for number, line in enumerate(advice(attempt.advice).splitlines()):
        yield "" if number else "advice", words.visible(line)
    for report in attempt.reports:
        yield "driver", words.visible(report)
    if text := use_of_one(run.measured.uses.get(attempt.id)):
        yield "used", text
    yield "log", words.visible(os.fspath(run.paths.log(attempt.id)))
    out = os.fspath(run.paths.out(attempt.id))
    if os.path.isdir(out):
        yield "out", words.visible(out)
