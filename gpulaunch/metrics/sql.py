"""The database's schema and its queries, by name, from the .sql files beside this one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

APPLICATION = 0x67706C6D  # "gplm" in the file's header: whose database it is
VERSION = 2
_COLUMNS: Mapping[int, tuple[tuple[str, str], ...]] = {
    2: (("attempt", "energy"), ("card_now", "energy")),
}
"""By version: the columns (table, name) that it has more than the one before, each a REAL."""


def schema() -> list[str]:
    """Return the statements that make the tables."""
    lines = _text("schema.sql").splitlines()
    whole = "\n".join(line for line in lines if not line.startswith("--"))
    return [statement for statement in whole.split(";") if statement.strip()]


def upgrade(version: int) -> list[str]:
    """Return the statements that make the newest of an older version's tables."""
    return [f"ALTER TABLE {table} ADD COLUMN {name} REAL" for table, name in _lacking(version)]


def as_newest(version: int) -> list[str]:
    """Return the statements by which an older version's tables read as the newest do.

    They change no file: temporary views go before the tables whose names they have.
    """
    found: dict[str, list[str]] = {}
    for table, name in _lacking(version):
        found.setdefault(table, []).append(f"NULL AS {name}")
    return [
        f"CREATE TEMP VIEW {table} AS SELECT *, {', '.join(more)} FROM main.{table}"
        for table, more in found.items()
    ]


def _lacking(version: int) -> list[tuple[str, str]]:
    newer = range(version + 1, VERSION + 1)
    return [column for number in newer for column in _COLUMNS[number]]


@lru_cache
def queries() -> dict[str, str]:
    """Return the queries of queries.sql by name: each begins with a line `-- name: NAME`."""
    parts = re.split(r"^-- name: (\w+)\n", _text("queries.sql"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
