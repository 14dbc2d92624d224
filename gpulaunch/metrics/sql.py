"""The database's schema and its queries, by name, from the .sql files beside this one."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

APPLICATION = 0x67706C6D  # "gplm" in the file's header: whose database it is
VERSION = 1


def schema() -> list[str]:
    """Return the statements that make the tables."""
    lines = _text("schema.sql").splitlines()
    whole = "\n".join(line for line in lines if not line.startswith("--"))
    return [statement for statement in whole.split(";") if statement.strip()]


@lru_cache
def queries() -> dict[str, str]:
    """Return the queries of queries.sql by name: each begins with a line `-- name: NAME`."""
    parts = re.split(r"^-- name: (\w+)\n", _text("queries.sql"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
