"""Bounds the database's size: the older samples are, the fewer are kept, merged from several.

    age                    one sample in      of each card or live attempt, at most
    to 10 minutes          1 s                     600
    to 3 hours             10 s                  1,020
    to 7 days              60 s                  9,900
    older                  600 s                   144 a day

A week of 8 cards is 92,160 samples of the cards, and as many of the attempts where each card has
one at all times: 13 MiB in all. An attempt that is over leaves what fits its length, at least one.
Whatever happens, the file ends at `store.MAX_STORE_BYTES`.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Any, TypeAlias, TypeVar

from gpulaunch.metrics.model import CardSample
from gpulaunch.metrics.sql import queries

Number = TypeVar("Number", int, float)
CardRow: TypeAlias = tuple[float, float | None, int | None, float | None, int | None, str]
"""A row of `card_sample` without its card."""
AttemptRow: TypeAlias = tuple[float, int | None, float | None, int | None]
"""A row of `attempt_sample` without its attempt."""


def merge_cards(rows: Sequence[CardRow]) -> CardRow:
    """Merge samples: means of use and power, peaks of memory and temperature, all reasons."""
    at, utilization, memory, power, temperature, throttled = zip(*rows, strict=True)
    reasons = dict.fromkeys(chain.from_iterable(names.split(",") for names in throttled if names))
    return (
        math.fsum(at) / len(rows),
        _mean(utilization),
        _highest(memory),
        _mean(power),
        _highest(temperature),
        ",".join(reasons),
    )


def merge_attempts(rows: Sequence[AttemptRow]) -> AttemptRow:
    """Merge samples: peaks of memory; of the CPU seconds, which only grow, those at the end."""
    at, gpu_memory, cpu_seconds, resident = zip(*rows, strict=True)
    return (
        math.fsum(at) / len(rows),
        _highest(gpu_memory),
        _highest(cpu_seconds),
        _highest(resident),
    )


def card_sample(gpu: str, row: CardRow) -> CardSample:
    at, utilization, memory, power, temperature, throttled = row
    return CardSample(
        gpu=gpu,
        at=at,
        utilization=None if utilization is None else round(utilization),
        memory=memory,
        power=power,
        temperature=temperature,
        throttled=tuple(throttled.split(",")) if throttled else (),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _highest(values: Sequence[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


TIERS: tuple[tuple[float, float], ...] = ((600.0, 10.0), (3 * 3600.0, 60.0), (7 * 86400.0, 600.0))
"""From which age on (seconds), one sample in how many seconds."""


def thin(connection: sqlite3.Connection, now: float) -> None:
    """Thin what has come of age since the last time. Inside the caller's transaction."""
    query = queries()
    for age, step in TIERS:
        until = (now - age) // step * step
        found = connection.execute(query["thinned"], {"step": step}).fetchone()
        since = found[0] if found else 0.0
        if since > now:  # the clock has been set back: it may have been wrong all the time
            since = 0.0
        if since >= until:
            continue
        for kind, merge in (("card", merge_cards), ("attempt", merge_attempts)):
            _thin(connection, kind, merge, (since, until, step))
        connection.execute(query["set_thinned"], {"step": step, "until": until})


def _thin(
    connection: sqlite3.Connection,
    kind: str,
    merge: Callable[[Sequence[Any]], tuple[Any, ...]],
    span: tuple[float, float, float],
) -> None:
    query = queries()
    since, until, step = span
    bounds = {"since": since, "until": until}
    for (series,) in connection.execute(query[f"{kind}_series"], bounds).fetchall():
        rows = connection.execute(query[f"{kind}_old"], {**bounds, "series": series}).fetchall()
        for _, group in groupby(rows, key=lambda row: row[0] // step):
            several = list(group)
            if len(several) > 1:
                connection.executemany(query[f"{kind}_drop"], [(series, r[0]) for r in several])
                connection.execute(query[f"{kind}_put"], (series, *merge(several)))
