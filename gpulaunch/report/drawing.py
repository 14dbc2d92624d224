"""What the page's script draws, as JSON: attempts in columns, lanes, curves, ends of logs. Pure.

Owns which bars stand in which lane, and in which row of it, so that none hides another. Times are
seconds after the run's beginning, to the hundredth; memory is in MiB. Text is made visible here:
the script only ever sets it as text.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from gpulaunch.core.model import Gpu
from gpulaunch.core.records import AttemptRecord
from gpulaunch.digest import words
from gpulaunch.metrics.model import AttemptUse
from gpulaunch.report.cards import groups_of
from gpulaunch.report.fold import Period, begin, cut_off, finish
from gpulaunch.report.idle import Cause
from gpulaunch.report.model import ReportData
from gpulaunch.report.results import drawn
from gpulaunch.report.wording import CAUSE_WORDS, KINDS, card_name, cards_of, ended

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
