"""Makes the lines of the screen's lists from a board and a filter, only for visible ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.text import Text

from gpulaunch.base.text import clock, listing, several, size
from gpulaunch.base.wording import job_reason
from gpulaunch.core.causes import Because
from gpulaunch.core.ledger import AttemptRecord, GpuRecord, JobRecord
from gpulaunch.core.model import AttemptId, JobState
from gpulaunch.diagnose.failure.classes import advice, title_of
from gpulaunch.observe.metrics.model import SAMPLE_MAX_AGE, CardSample
from gpulaunch.observe.present import words
from gpulaunch.observe.present.events import unused
from gpulaunch.observe.present.status import STYLES
from gpulaunch.observe.top.board import Board
from gpulaunch.observe.top.draw import bar, columns, fit, sparkline

RECENT = 600.0
"""Seconds that a sparkline looks back."""
USE, CONDITION = 51, 13
"""Columns of utilisation and memory with their bars, and of a card's temperature and power."""
TIME_WIDTH = 8

_MARKS: dict[JobState, str] = {"succeeded": "✓", "failed": "✗", "cancelled": "!", "skipped": "!"}


class Rows(Protocol):
    """A list of `height` lines an item."""

    @property
    def title(self) -> str: ...

    @property
    def height(self) -> int: ...

    def __len__(self) -> int: ...

    def job(self, item: int) -> str | None:
        """Return the job of a row; None if it is of no job."""

    def find(self, job: str) -> int | None:
        """Return the job's first row; None if it has none."""

    def lines(self, item: int, width: int) -> Sequence[Text]:
        """Return an item's `height` lines, which may be longer than `width`: the list cuts them."""


class LineRows:
    """Lines that are of no job, as rows."""

    height = 1

    def __init__(self, title: str = "", lines: Sequence[str] = ()) -> None:
        self.title = title
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def job(self, item: int) -> str | None:
        return None

    def find(self, job: str) -> int | None:
        return None

    def lines(self, item: int, width: int) -> list[Text]:
        return [Text(self._lines[item])]


class Filter:
    """Picks jobs that have all its words in their name, state, failure class or values."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._words = text.casefold().split()

    def __bool__(self) -> bool:
        return bool(self._words)

    def fits(self, job: JobRecord) -> bool:
        if not self._words:
            return True
        failure = job.attempts[-1].failure if job.attempts else None
        names = (job.name, words.visible(job.name), job.state, failure or "")
        about = "\n".join([*names, *job.definition.params.values()]).casefold()
        return all(word in about for word in self._words)


class JobRows:
    """A list of jobs by name, looked up in the board when a line is drawn."""

    height = 1

    def __init__(self, board: Board, what: str, names: Sequence[str], chosen: Filter) -> None:
        self._board = board
        jobs = board.ledger.jobs
        self._names = [n for n in names if chosen.fits(jobs[n])] if chosen else names
        of = f" of {words.count(len(names))}" if len(self._names) < len(names) else ""
        self.title = f"{what} {words.count(len(self._names))}{of}"

    def __len__(self) -> int:
        return len(self._names)

    def job(self, item: int) -> str | None:
        return self._names[item]

    def find(self, job: str) -> int | None:
        try:
            return self._names.index(job)
        except ValueError:
            return None

    def _name(self, item: int, width: int) -> str:
        """Return a job's name, as wide as the names near it need."""
        near = self._names[max(0, item - item % 64) : item - item % 64 + 64]
        room = columns([words.visible(name) for name in near], width)
        return fit(words.visible(self._names[item]), room)


class QueueRows(JobRows):
    """Waiting jobs, and why each waits."""

    def __init__(self, board: Board, chosen: Filter) -> None:
        super().__init__(board, "Waiting", board.queue(), chosen)

    def lines(self, item: int, width: int) -> list[Text]:
        job = self._board.ledger.jobs[self._names[item]]
        reason = words.visible(self._board.reason(job))
        return [Text.assemble(self._name(item, width), "  ", (reason, "dim"))]


class FailedRows(JobRows):
    """Failed jobs, newest first: how, the evidence, and what to do."""

    height = 3

    def __init__(self, board: Board, chosen: Filter) -> None:
        super().__init__(board, "Failed", list(reversed(board.failed)), chosen)

    def lines(self, item: int, width: int) -> list[Text]:
        job = self._board.ledger.jobs[self._names[item]]
        last = self._board.failure_of(job)
        head = Text.assemble(("✗ ", "bold red"), words.visible(job.name))
        if last is None:
            return [head, Text(f"  {words.visible(self._board.reason(job))}"), Text()]
        head.append(f"  {last.failure}", "bold")
        head.append(f"  {self._where(last)}{_again(job)}", "dim")
        why = self._board.reason(job) if job.state == "failed" else ""  # else: why it waits
        shown = last.evidence or why or words.ending(last)
        hints = Text(f"  {words.visible(advice(last.advice))}", "dim") if last.advice else Text()
        return [head, Text(f"  {words.visible(shown)}"), hints]

    def _where(self, last: AttemptRecord) -> str:
        when = self._board.when(last.ended) if last.ended else ""
        cards = words.attempt_cards(last, self._board.ledger)
        title = title_of(last.failure or "")
        took = f"after {clock(last.seconds)}"
        step = words.further_step(last.step)
        return " · ".join(filter(None, [title, cards, step, took, when]))


def _again(job: JobRecord) -> str:
    if job.state in ("waiting", "running"):
        return " · waits to run again" if job.state == "waiting" else " · runs again"
    return "" if job.state == "failed" else f" · {job.state}"


class EndedRows(JobRows):
    """Every job that came to an end, newest first."""

    def __init__(self, board: Board, chosen: Filter) -> None:
        super().__init__(board, "Ended", list(reversed(board.ended)), chosen)

    def lines(self, item: int, width: int) -> list[Text]:
        job = self._board.ledger.jobs[self._names[item]]
        last = job.attempts[-1] if job.attempts else None
        took = clock(last.seconds) if last and last.ended else ""
        cards = words.attempt_cards(last, self._board.ledger) if last else ""
        about = ", ".join(filter(None, [cards, words.visible(self._board.reason(job))]))
        mark = _MARKS.get(job.state, "·")
        return [
            Text.assemble(
                (f"{mark} ", STYLES[job.state]),
                self._name(item, width),
                (f" {took:>{TIME_WIDTH}}  {about}", "dim"),
            )
        ]


class CardRows:
    """Each card, and under it what runs there; then the jobs without a card."""

    height = 1

    def __init__(self, board: Board, chosen: Filter) -> None:
        self._board = board
        self._items: list[tuple[GpuRecord | None, AttemptId | None, bool]] = []
        self._recent: dict[str, list[CardSample]] = {}
        self._conditions = 0
        self._load()
        for record in board.ledger.gpus.values():
            if record.gpu.node and not record.attempts:
                continue  # the card is the cluster's again
            running = [a for a in sorted(record.attempts) if self._fits(a, chosen)]
            alone = record.gpu.uuid not in self._recent
            if not alone or not running:
                self._items.append((record, None, True))
            if not alone and not record.attempts and _unused(record):
                self._items.append((record, None, False))
            for number, attempt in enumerate(running):
                self._items.append((record, attempt, alone and number == 0))
        for number, attempt in enumerate(board.without_cards):
            if self._fits(attempt, chosen):
                self._items.append((None, attempt, number == 0))
        self._labels = max((len(self._label(record)) for record, _, _ in self._items), default=3)

    @property
    def title(self) -> str:
        ledger = self._board.ledger
        if ledger.queueing:
            return f"Cards in use {sum(bool(record.attempts) for record in ledger.gpus.values())}"
        kind = "Simulated cards" if ledger.opening.simulated else "Cards"
        return f"{kind} {len(ledger.gpus)}"

    def __len__(self) -> int:
        return len(self._items)

    def job(self, item: int) -> str | None:
        attempt = self._items[item][1]
        return attempt.job if attempt else None

    def find(self, job: str) -> int | None:
        found = (n for n, (_, a, _) in enumerate(self._items) if a is not None and a.job == job)
        return next(found, None)

    def lines(self, item: int, width: int) -> list[Text]:
        record, attempt, labelled = self._items[item]
        label = f"{self._label(record) if labelled else '':<{self._labels}}  "
        if attempt is not None:
            return [self._attempt(label, attempt)]
        assert record is not None
        samples = self._recent.get(record.gpu.uuid)
        if samples is None or not labelled:
            return [Text.assemble((label, "dim"), (" " * TIME_WIDTH + "  "), _idle(record))]
        line = Text.assemble((label, "dim"))
        line.append_text(self._use(record, samples, width - len(label)))
        if not record.attempts and not _unused(record):
            line.append("  ").append_text(_idle(record))
        return [line]

    def _label(self, record: GpuRecord | None) -> str:
        # The list's title says that the cards are simulated.
        return "CPU" if record is None else words.card(record.gpu).removeprefix("simulated ")

    def _fits(self, attempt: AttemptId, chosen: Filter) -> bool:
        return chosen.fits(self._board.ledger.jobs[attempt.job])

    def _attempt(self, label: str, attempt: AttemptId) -> Text:
        record = self._board.ledger.attempt(attempt)
        also = [uuid for uuid in record.gpus if uuid in self._board.ledger.gpus]
        cards = words.cards([self._board.ledger.gpus[uuid].gpu for uuid in also])
        number = f"attempt {attempt.number}" if attempt.number > 1 else ""
        doing = "" if record.started else "starts"
        if self._board.state == "interrupted" and not record.queued:
            doing = job_reason(Because("cut_off"))
        wide = cards.removeprefix("simulated ") if len(also) > 1 else ""
        if not also:
            wide = words.visible(record.node)
        step = words.further_step(record.step)
        about = " · ".join(filter(None, [doing, self._board.ahead(record), number, step, wide]))
        return Text.assemble(
            (label, "dim"),
            (f"{clock(self._board.elapsed(record)):>{TIME_WIDTH}}  ", "cyan"),
            words.visible(attempt.job),
            (f"  {about}" if about else "", "dim"),
        )

    # ── What is measured ────────────────────────────────────────────────────────────────────────

    def _load(self) -> None:
        """Load recent samples of the cards that have any; on pretend cards nothing is measured."""
        board = self._board
        if board.samples is None or board.ledger.opening.simulated:
            return
        for uuid in board.ledger.gpus:
            near = board.samples.cards(uuid, since=board.now.utc - RECENT)
            recent = [sample for sample in near if sample.at <= board.now.utc + 1.0]
            if recent:
                self._recent[uuid] = recent
        conditions = (_condition(recent[-1]) for recent in self._recent.values())
        self._conditions = max(map(len, conditions), default=0)

    def _use(self, record: GpuRecord, samples: list[CardSample], room: int) -> Text:
        """Return utilisation and memory; with more room bars, curves, power and temperature."""
        last, total = samples[-1], record.gpu.memory
        if self._board.now.utc - last.at > SAMPLE_MAX_AGE and (
            self._board.alive or self._board.past
        ):
            return Text(f"not measured for {clock(self._board.now.utc - last.at)}", "dim")
        busy = None if last.utilization is None else last.utilization / 100
        used = None if last.memory is None or not total else last.memory / total
        percent = "" if last.utilization is None else f"{last.utilization:>3} %"
        held = "" if last.memory is None else f"{size(last.memory)} of {size(total)}"
        held += " unified" if record.gpu.unified else ""
        curves = min(30, (room - USE - self._conditions - 4) // 2)
        bars = 10 if room >= USE else 0
        text = Text()
        for share, said, style, curve in (
            (busy, percent, "green", [(s.at, _share(s.utilization, 100)) for s in samples]),
            (used, f"{held:>20}", "blue", [(s.at, _share(s.memory, total)) for s in samples]),
        ):
            if share is None:
                continue
            if bars:
                text.append(bar(share, bars), f"{style} on bright_black")
            text.append(f" {said}  ")
            if curves >= 6:
                now = self._board.now.utc
                text.append(sparkline(curve, now - RECENT, now, curves), style)
                text.append("  ")
        if room >= USE + CONDITION:
            text.append(_condition(last), "yellow" if last.throttled else "dim")
        return text


def _share(value: float | None, of: float) -> float | None:
    return None if value is None else value / of


def _condition(sample: CardSample) -> str:
    heat = None if sample.temperature is None else f"{sample.temperature} °C"
    power = None if sample.power is None else f"{sample.power:.0f} W"
    held = f"slowed: {listing(sample.throttled)}" if sample.throttled else None
    return " ".join(filter(None, [heat, power, held]))


def _unused(record: GpuRecord) -> str:
    """Return why no job is to run on the card, in words; empty if one may."""
    drained = "given back: no new starts here" if record.drained else ""
    return ", ".join(filter(None, [unused(record), drained]))


def _idle(record: GpuRecord) -> Text:
    """Return why the card shows no job: none runs there, or the filter hides it."""
    if record.attempts:
        return Text(f"{several(len(record.attempts), 'job')} not shown", "dim")
    if why := _unused(record):
        return Text(why, "yellow")
    return Text("its memory is being freed" if record.state == "draining" else "free", "dim")
