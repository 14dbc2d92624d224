"""What the page's script draws, as JSON, and the report's words for causes, ends and cards. Pure.

    attempts in columns, lanes, curves, the table of results, ends of logs

Owns which bars stand in which lane, and in which row of it, so that none hides another; and which
columns and rows of the table a page can hold. Times are seconds after the run's beginning, to the
hundredth; memory is in MiB. Text is made visible here: the script only ever sets it as text.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.text import clip, several
from gpulaunch.core.ledger import AttemptRecord
from gpulaunch.core.model import AttemptState, Gpu
from gpulaunch.observe.metrics.model import AttemptUse
from gpulaunch.observe.present import words
from gpulaunch.observe.report.cards import groups_of
from gpulaunch.observe.report.fold import Period, begin, cut_off, finish
from gpulaunch.observe.report.idle import Cause
from gpulaunch.observe.report.model import ReportData, ResultsOfRun
from gpulaunch.observe.results.cells import Cell
from gpulaunch.observe.results.gathering import Gathered, JobValues
from gpulaunch.observe.results.table import JOB, PARAMS, ResultColumn, ResultTable, table_of

MAX_ROWS = 10_000
MAX_COLUMNS = 40
"""Of parameters and files together; gpulaunch's own come on top."""
MAX_TEXT = 120
"""Characters of a text in a cell."""
MIB = 1 << 20

SHOWN_OWN = (
    "seconds",
    "attempts",
    "peak_gpu_memory",
    "mean_gpu_utilization",
    "peak_resident",
    "energy",
)
"""gpulaunch's own columns that are in the page, beside the job and its state."""


def results_of(gathered: Gathered, when: Period) -> ResultsOfRun | None:
    """Return a run's results for its page; None where its jobs have no values of their own."""
    rows = [_as_it_ended(row, when) for row in gathered.rows]
    table = table_of([], rows)
    theirs = [number for number, head in enumerate(table.columns) if head.source != JOB]
    if not theirs:
        return None
    own = [number for number, head in enumerate(table.columns) if _is_shown(table, number, head)]
    state = [head.name for head in table.columns].index("state")
    chosen = [state, *theirs[:MAX_COLUMNS], *own]
    left_out = len(theirs[MAX_COLUMNS:]) + gathered.cut
    picked = replace(
        table,
        columns=tuple(table.columns[number] for number in chosen),
        rows=tuple(tuple(row[number] for number in chosen) for row in table.rows),
    )
    names = tuple(row.job.name for row in rows)
    return ResultsOfRun(picked, names, tuple(_notes(gathered, left_out)))


def _as_it_ended(row: JobValues, when: Period) -> JobValues:
    last = row.job.attempts[-1] if row.job.attempts else None
    if row.job.state != "running" or last is None or not cut_off(last, when):
        return row
    return replace(row, own={**row.own, "state": "cut off"})


def _is_shown(table: ResultTable, number: int, head: ResultColumn) -> bool:
    known = (row[number] is not None for row in table.rows)
    return head.source == JOB and head.name in SHOWN_OWN and any(known)


def _notes(gathered: Gathered, columns: int) -> list[str]:
    """Return what the table lacks, a sentence each."""
    rows, more = several(len(gathered.rows), "job"), gathered.more
    unlooked, unread = gathered.unlooked, len(gathered.unread)
    said = {
        f"The first {rows}; {words.count(more)} more have no row here.": more > 0,
        f"{several(columns, 'more column')} had no room here.": columns > 0,
        f"{several(unread, 'file')} could not be read.": unread > 0,
        f"Of {several(unlooked, 'job')} no file was looked for: it took too long.": unlooked > 0,
    }
    return [sentence for sentence, holds in said.items() if holds]


def drawn(results: ResultsOfRun, number_of: Mapping[str, int]) -> dict[str, Any]:
    """Return the table as the script has it, which also plots two of its columns.

    `number_of`: jobs' numbers in the page, by name. Numbers have six digits; each text of a column
    is said once, and then meant by its number.
    """
    columns = list(zip(*results.table.rows, strict=True)) or [()] * len(results.table.columns)
    return {
        "jobs": [number_of[name] for name in results.names],
        "columns": [
            _column(head, cells) for head, cells in zip(results.table.columns, columns, strict=True)
        ],
    }


def _column(head: ResultColumn, cells: Sequence[Cell]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": words.visible(head.name),
        "own": head.source == JOB,
        "param": head.source == PARAMS,
        "kind": head.kind,
    }
    if head.kind == "text":
        texts: dict[str, int] = {}
        told["cells"] = [_numbered(cell, texts) for cell in cells]
        told["texts"] = list(texts)
    elif head.source == JOB and head.name.startswith("peak_"):
        told["cells"] = [None if cell is None else round(float(cell) / MIB) for cell in cells]
    else:
        told["cells"] = [_short(cell) for cell in cells]
    return told


def _numbered(cell: Cell, texts: dict[str, int]) -> int | None:
    if cell is None:
        return None
    return texts.setdefault(clip(words.visible(str(cell)), MAX_TEXT), len(texts))


def _short(cell: Cell) -> Cell:
    """Return a number to six digits; what JSON has not, as a text."""
    if not isinstance(cell, float):
        return cell
    if not math.isfinite(cell):
        return "NaN" if math.isnan(cell) else "∞" if cell > 0 else "−∞"
    short = float(f"{cell:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────

KINDS: tuple[AttemptState | str, ...] = (
    "succeeded",
    "failed",
    "cancelled",
    "interrupted",
    "lost",
    "running",
    "unknown",
)
"""How a bar is drawn; `unknown`: it was running when the run was cut off."""

CAUSE_WORDS: Mapping[Cause, tuple[str, str]] = {
    "busy": ("jobs", "at least one job was on the card"),
    "draining": ("memory draining", "the last job had ended, and its memory was not yet free"),
    "kept": ("held", "leased, and about to start a job or kept for a job of several cards"),
    "memory": ("waiting for memory", "jobs waited for more free memory than the card had"),
    "nothing_ready": (
        "nothing ready",
        "the jobs left waited for other jobs, a retry's delay, their time, a token or a service",
    ),
    "nothing_left": ("nothing left", "no job was waiting for a card any more"),
    "limit": ("beyond --gpus", "the run had as many cards as --gpus allowed"),
    "others": (
        "in others' use",
        "another launcher's lease, or processes that no launcher knows of",
    ),
    "given_back": ("given back", "a person gave it back (gpulaunch drain)"),
    "aside": ("set aside", "it was unfit, or jobs failed on it that succeed elsewhere"),
    "paused": ("paused", "the run started no jobs until somebody said so"),
    "hours": ("outside its hours", "the run starts jobs within certain hours alone (--between)"),
    "stopping": ("stopping", "the run was told to stop"),
    "away": ("run not alive", "before the card belonged to the run, or between two starts of it"),
    "cluster": ("not the run's", "the cluster had it for others, or for nobody"),
}
"""Where a card's time went: in a column's head, and in a line beneath the table."""


@cache
def card_name(gpu: Gpu) -> str:
    """`GPU 0`, `n1 GPU 0`; that cards are pretend ones is said once for all of them."""
    return words.card(gpu).replace("simulated ", "", 1) if gpu.simulated else words.card(gpu)


def cards_of(attempt: AttemptRecord, cards: Mapping[str, Gpu]) -> str:
    """`GPU 0, GPU 1`; `no card`, `n1, no card` on another machine; `–` of one that came nowhere."""
    if attempt.unbegun or (attempt.queued and not attempt.node):
        return "–"
    named = [card_name(cards[uuid]) for uuid in attempt.gpus if uuid in cards]
    return ", ".join(named or filter(None, [words.visible(attempt.node), "no card"]))


def ended(attempt: AttemptRecord, when: Period) -> str:
    """Return how an attempt ended, and at which step of its ladder, in words."""
    if cut_off(attempt, when):
        return "running when the run was cut off"
    return ", ".join(filter(None, [words.ending(attempt), words.step(attempt.step)]))


def percent(share: float) -> str:
    """`91 %`; what is not quite nothing, or not quite all, is not rounded to it."""
    if 0 < share < 0.005:
        return "< 1 %"
    if 0.995 <= share < 0.99999:
        return "99 %"
    return f"{share * 100:.0f} %"


# ── The drawing ───────────────────────────────────────────────────────────────────────────────────

CLOSE = 0.01
"""Seconds by which neighbours may overlap without a row of their own: clocks of two processes."""


class Lane(Struct, frozen=True):
    """`uuid` is None for jobs without cards. `bars` are numbers of attempts, each with its row."""

    uuid: str | None
    bars: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def height(self) -> int:
        """How many rows the lane has."""
        return max(self.rows, default=0) + 1


def lanes(attempts: Sequence[AttemptRecord], cards: Mapping[str, Gpu], when: Period) -> list[Lane]:
    """Return a lane for each card, and one for jobs without cards if there are any.

    An attempt with several cards has a bar on each. `attempts`: by beginning.
    """
    members: dict[str | None, list[int]] = defaultdict(list)
    for number, attempt in enumerate(attempts):
        if attempt.unbegun:
            continue  # its turn never came
        for uuid in attempt.gpus or (None,):
            members[uuid].append(number)
    order = [*cards, *([None] if None in members else [])]
    return [
        Lane(uuid, tuple(members[uuid]), _rows([attempts[n] for n in members[uuid]], when))
        for uuid in order
    ]


def _rows(attempts: Sequence[AttemptRecord], when: Period) -> tuple[int, ...]:
    """Return each attempt's row: the lowest that is free at its beginning."""
    rows: list[int] = []
    free: list[int] = []
    taken: list[tuple[float, int]] = []
    for attempt in attempts:
        while taken and taken[0][0] <= begin(attempt) + CLOSE:
            heapq.heappush(free, heapq.heappop(taken)[1])
        row = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (finish(attempt, when), row))
        rows.append(row)
    return tuple(rows)


MIB = 1 << 20
SHADED: tuple[Cause, ...] = (
    "others",
    "given_back",
    "aside",
    "paused",
    "hours",
    "stopping",
    "away",
    "memory",
)
"""Causes that a lane shows where no bar is; the rest is plain emptiness."""


def drawing(data: ReportData, zone: float, logs: str) -> dict[str, Any]:
    """Return the drawing. `zone`: seconds that clocks on the wall were ahead of UTC.

    `logs`: where the logs lie.
    """
    history, when = data.history, data.when
    attempts = history.attempts()
    texts: dict[str, int] = {}
    groups = groups_of(history.ledger)
    number_of = {name: number for number, name in enumerate(history.ledger.jobs)}
    group_of = {name: number for number, one in enumerate(groups) for name in one.jobs}
    at = {attempt.id: number for number, attempt in enumerate(attempts)}
    return {
        "start": when.start,
        "length": round(when.seconds, 2),
        "zone": zone,
        "live": when.state == "running",
        "names": [words.visible(name) for name in number_of],
        "files": _odd_names(number_of),
        "logs": logs,
        "group": [group_of[name] for name in number_of],
        "groups": [words.visible(one.label) for one in groups],
        "service": [
            number_of[job.name] for job in history.ledger.jobs.values() if job.definition.service
        ],
        "kinds": list(KINDS),
        "causes": [CAUSE_WORDS[cause][0] for cause in SHADED],
        "attempts": _columns(attempts, data, number_of, texts),
        "texts": list(texts),
        "lanes": [_lane(lane, data) for lane in lanes(attempts, history.cards, when)],
        "results": drawn(data.results, number_of) if data.results else None,
        "tails": {at[who]: list(map(words.visible, lines)) for who, lines in data.tails.items()},
    }


def _columns(
    attempts: list[AttemptRecord],
    data: ReportData,
    number_of: Mapping[str, int],
    texts: dict[str, int],
) -> dict[str, list[Any]]:
    """Return the attempts' facts, one list for each; `texts` gets each text once, by number."""
    when = data.when

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    used = [data.uses.get(attempt.id) or AttemptUse(attempt.id) for attempt in attempts]
    return {
        "job": [number_of[attempt.id.job] for attempt in attempts],
        "number": [attempt.id.number for attempt in attempts],
        "start": [round(begin(attempt) - when.start, 2) for attempt in attempts],
        "end": [round(finish(attempt, when) - when.start, 2) for attempt in attempts],
        "kind": [KINDS.index(_kind(attempt, when)) for attempt in attempts],
        "cards": [number(cards_of(attempt, data.history.cards)) for attempt in attempts],
        "how": [number(words.visible(ended(attempt, when))) for attempt in attempts],
        "shown": [number(words.visible(attempt.evidence)) for attempt in attempts],
        "memory": [_mib(use.peak_gpu_memory) for use in used],
        "resident": [_mib(use.peak_resident) for use in used],
        "busy": [_whole(use.mean_gpu_utilization) for use in used],
        "energy": [_whole(use.energy) for use in used],
    }


def _kind(attempt: AttemptRecord, when: Period) -> str:
    if cut_off(attempt, when):
        return "unknown"
    return "running" if attempt.state == "launching" else attempt.state


def _lane(lane: Lane, data: ReportData) -> dict[str, Any]:
    history, when = data.history, data.when
    idle = data.spans.get(lane.uuid, ()) if lane.uuid else ()
    said: dict[str, Any] = {
        "name": card_name(history.cards[lane.uuid]) if lane.uuid else "No card",
        "bars": lane.bars,
        "rows": lane.rows,
        "height": lane.height,
        "idle": [
            [round(s.start - when.start, 2), round(s.end - when.start, 2), SHADED.index(s.cause)]
            for s in idle
            if s.cause in SHADED
        ],
        "marks": [
            [round(remark.at - when.start, 2), words.visible(remark.text)]
            for remark in history.remarks
            if remark.gpu and remark.gpu == lane.uuid
        ],
    }
    curve = data.curves.get(lane.uuid) if lane.uuid else None
    if curve is not None and lane.uuid:
        said["curve"] = {
            "at": [round(moment - when.start, 1) for moment in curve.at],
            "busy": curve.utilization,
            "memory": [_mib(value) for value in curve.memory],
            "most": _mib(history.cards[lane.uuid].memory),
        }
    return said


def _odd_names(number_of: Mapping[str, int]) -> dict[int, str]:
    """Return how logs' addresses write the names of jobs, where that is not how they are shown."""
    return {
        number: quote(os.fsencode(name))
        for name, number in number_of.items()
        if words.visible(name) != name
    }


def _mib(amount: int | None) -> int | None:
    return None if amount is None else round(amount / MIB)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
