"""The bound on the database's size: the older samples are, the fewer of them are kept.

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

import sqlite3
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from gpulaunch.metrics.merge import merge_attempts, merge_cards
from gpulaunch.metrics.sql import queries

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
