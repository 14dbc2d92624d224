"""The end of a run for people: what came out, what failed and why, how to go on.

`summarise` folds a ledger into a Summary; `print_summary` shows one. Reads log tails through the
function it is handed, and only those of the failures that are shown.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import Instant, JobState, RunState
from gpulaunch.metrics.model import NOTHING, Measured
from gpulaunch.views import words
from gpulaunch.views.measured import use_of_all, use_of_one
from gpulaunch.views.paths import RunPaths
from gpulaunch.views.tail import read_tail
from gpulaunch.views.usage import CardUse, card_seconds, card_uses

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

SHOWN = 10
"""Failed jobs, and causes of skipping, that are shown in full."""
EACH = 4
"""Cards whose use is given one by one."""


@dataclass(frozen=True, slots=True)
class FailedJob:
    """`reason` in words; `card` is where the last attempt ran; `log` is None if there is none.

    `advice` is what a person can do about it; `reports` are the driver's of its card meanwhile.
    `use` is what was measured of the last attempt, in words.
    """

    name: str
    reason: str
    attempts: int
    card: str
    log: str | None
    tail: tuple[str, ...]
    advice: str = ""
    reports: tuple[str, ...] = ()
    use: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """`elapsed` and `cards` are of the run's latest epoch, in seconds; `gpu_hours` of all of it.

    `used` is what was measured of all attempts, in words. `nodes`: of a cluster, 0 elsewhere.
    """

    name: str
    directory: str
    state: RunState
    reason: str
    simulated: bool
    resumed: bool
    counts: Mapping[JobState, int]
    total: int
    elapsed: float
    gpu_hours: float
    cards: tuple[tuple[str, CardUse], ...]
    failed: tuple[FailedJob, ...]
    failed_more: int
    skipped: tuple[tuple[str, int], ...]
    skipped_more: int
    vanished: int
    notes: tuple[str, ...]
    next_command: str | None
    used: str = ""
    nodes: int = 0

    @property
    def busy(self) -> float | None:
        """The share of all cards' time that attempts used; None without cards."""
        if not self.cards:
            return None
        return sum(use.share for _, use in self.cards) / len(self.cards)


def summarise(
    ledger: Ledger,
    paths: RunPaths,
    now: Instant,
    state: RunState | None = None,
    tail_of: Callable[[str], Sequence[str]] = read_tail,
    exists: Callable[[str], bool] = os.path.exists,
    measured: Measured = NOTHING,
) -> Summary:
    """`state`: where the caller knows better than the ledger (a supervisor that is gone)."""
    state = state or ledger.state
    end = ledger.closed or now
    since = ledger.taken or ledger.opened or end
    failed = [job for job in ledger.jobs.values() if job.state == "failed"]
    causes = Counter(job.reason for job in ledger.jobs.values() if job.state == "skipped")
    vanished = sum(job.vanished and job.state == "waiting" for job in ledger.jobs.values())
    return Summary(
        name=ledger.name,
        directory=os.fspath(paths.root),
        state=state,
        reason=ledger.reason,
        simulated=ledger.simulated,
        resumed=ledger.epoch > 1,
        counts={s: n for s, n in ledger.counts.items() if n > 0},
        total=len(ledger.jobs),
        elapsed=max(0.0, end.utc - since.utc),
        gpu_hours=card_seconds(ledger, ledger.opened or end, end) / 3600,
        cards=tuple(
            (words.card(ledger.gpus[u.uuid].gpu), u) for u in card_uses(ledger, since, end)
        ),
        failed=tuple(
            replace(_failed(job, ledger, paths, tail_of, exists), use=_use(job, measured))
            for job in failed[:SHOWN]
        ),
        failed_more=max(0, len(failed) - SHOWN),
        skipped=tuple(causes.most_common(SHOWN)),
        skipped_more=sum(n for _, n in causes.most_common()[SHOWN:]),
        vanished=vanished,
        notes=tuple(ledger.notes),
        next_command=next_command(state, ledger, os.fspath(paths.root)),
        used=use_of_all(measured),
        nodes=len({card.gpu.node for card in ledger.gpus.values()} - {""}),
    )


def _use(job: JobRecord, measured: Measured) -> str:
    use = measured.uses.get(job.attempts[-1].id) if job.attempts else None
    return use_of_one(use) if use else ""


def _failed(
    job: JobRecord,
    ledger: Ledger,
    paths: RunPaths,
    tail_of: Callable[[str], Sequence[str]],
    exists: Callable[[str], bool],
) -> FailedJob:
    last = job.attempts[-1] if job.attempts else None
    log = os.fspath(paths.log(last.id)) if last else None
    if log and not exists(log):  # it was never started
        log = None
    return FailedJob(
        name=job.name,
        reason=job.reason or (words.ending(last) if last else "never started"),
        attempts=len(job.attempts),
        card=_where(last, ledger),
        log=log,
        tail=tuple(tail_of(log)) if log else (),
        advice=last.advice if last else "",
        reports=tuple(last.reports) if last else (),
    )


def _where(attempt: AttemptRecord | None, ledger: Ledger) -> str:
    return words.attempt_cards(attempt, ledger) if attempt else ""


def next_command(state: RunState, ledger: Ledger, directory: str) -> str | None:
    """`retry` where failures are all that is left, `resume` where there is more to do."""
    if state in ("succeeded", "running"):
        return None
    left = any(
        job.state in ("waiting", "cancelled", "running") and not job.vanished
        for job in ledger.jobs.values()
    )
    command = "resume" if left or not ledger.counts["failed"] else "retry"
    return f"gpulaunch {command} {shlex.quote(directory)}"


# ── For people ──────────────────────────────────────────────────────────────────────────────────

_LABEL = 10
_STATES: tuple[tuple[JobState, str], ...] = (
    ("succeeded", "green"),
    ("failed", "bold red"),
    ("cancelled", "yellow"),
    ("skipped", "yellow"),
    ("running", "cyan"),
    ("waiting", "cyan"),
)


def print_summary(console: Console, summary: Summary) -> None:
    """Failures first, what it came to last: the end of a long output is what people see."""
    advised: set[str] = set()
    for job in summary.failed:
        _print_failed(console, job, job.advice not in advised)
        advised.add(job.advice)
    if summary.failed_more:
        _say(console, "", f"and {words.several(summary.failed_more, 'failed job')} more")
        console.print()
    for cause, number in summary.skipped:
        _say(
            console, "skipped", f"{words.several(number, 'job')}: {words.visible(cause)}", "yellow"
        )
    if summary.skipped_more:
        _say(console, "skipped", f"{words.several(summary.skipped_more, 'job')} more", "yellow")
    if summary.vanished:
        gone = words.several(summary.vanished, "job")
        _say(console, "not run", f"{gone} no longer in the job file", "yellow")
    if summary.skipped or summary.vanished:
        console.print()
    _print_totals(console, summary)


def print_report(console: Console, path: str) -> None:
    """Where the run's report is: a line of the summary that comes once it is written."""
    from rich.text import Text

    _say(console, "report", Text(words.visible(path)), "dim")


def _print_failed(console: Console, job: FailedJob, advise: bool) -> None:
    """`advise`: its advice has not been given yet."""
    from rich.text import Text

    attempts = f"{job.attempts} attempts" if job.attempts > 1 else ""
    rest = ", ".join(filter(None, [words.visible(job.reason), attempts, job.card]))
    _say(
        console, "failed", Text.assemble((words.visible(job.name), "bold"), f"  {rest}"), "bold red"
    )
    if job.log:
        _say(console, "", Text(words.visible(job.log), "dim"))
    for line in job.tail:
        _say(console, "", Text.assemble(("│ ", "red"), words.visible(line)))
    for report in job.reports:
        _say(console, "driver", words.visible(report), "yellow")
    if job.use:
        _say(console, "used", job.use, "dim")
    if job.advice and advise:
        for number, line in enumerate(job.advice.splitlines()):
            _say(console, "" if number else "advice", words.visible(line), "cyan")
    console.print()


def _print_totals(console: Console, summary: Summary) -> None:
    from rich.text import Text

    counts = Text(", ").join(
        Text(f"{words.count(summary.counts[state])} {state}", style)
        for state, style in _STATES
        if summary.counts.get(state)
    )
    head = Text.assemble(words.several(summary.total, "job"), ": ") + (counts or Text("none"))
    style = "bold green" if summary.state == "succeeded" else "bold red"
    if summary.state in ("stopped", "interrupted"):
        style = "bold yellow"
    _say(
        console, summary.state, Text(words.visible(summary.name), "bold") + Text("  ") + head, style
    )
    if summary.reason:
        _say(console, "", words.visible(summary.reason))
    since = " since it was taken up again" if summary.resumed else ""
    _say(console, "time", f"{words.duration(summary.elapsed)}{since}", "dim")
    if summary.cards:
        _say(console, "cards", _cards_line(summary), "dim")
    if summary.used:
        _say(console, "used", summary.used, "dim")
    _say(console, "run", Text(words.visible(summary.directory)), "dim")
    if summary.next_command:
        _say(console, "go on with", Text(words.visible(summary.next_command), "bold"), "dim")


def _cards_line(summary: Summary) -> str:
    kind = "simulated card" if summary.simulated else "card"
    hours = f"{summary.gpu_hours:,.2f}" if summary.gpu_hours < 10 else f"{summary.gpu_hours:,.0f}"
    if summary.nodes:  # what else those cards did is not known
        nodes = words.several(summary.nodes, "node")
        return f"{words.several(len(summary.cards), kind)} on {nodes}, {hours} GPU-hours"
    busy = _percent(summary.busy or 0.0)
    line = f"{words.several(len(summary.cards), kind)} {busy} busy, {hours} GPU-hours"
    if len(summary.cards) > 1:
        line += f" ({_each(summary)})"
    return line


def _each(summary: Summary) -> str:
    """`GPU 0: 90 %, GPU 1: 97 %`; of many cards, the least and the most busy."""
    named = [(name.removeprefix("simulated "), use.share) for name, use in summary.cards]
    if len(named) > EACH:
        least, most = min(named, key=lambda n: n[1]), max(named, key=lambda n: n[1])
        return f"from {least[0]}: {_percent(least[1])} to {most[0]}: {_percent(most[1])}"
    return ", ".join(f"{name}: {_percent(share)}" for name, share in named)


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _say(console: Console, label: str, text: str | Text, style: str = "") -> None:
    """A line behind a right-aligned label; never cut, so that paths can be copied."""
    from rich.text import Text

    body = text if isinstance(text, Text) else Text(text)
    console.print(Text.assemble((f"{label:>{_LABEL}}  ", style)) + body, soft_wrap=True)
