"""The JSON that commands print: what each object holds.

Types alone, in `documents`: `digest` fills them in, and nothing here knows a run, a card or a
terminal.

Seconds for durations, bytes for memory, per cent for utilisation, UTC (ISO 8601) for times; null is
what is not known, never 0. A document's `schema` goes up when a member goes or changes its meaning,
not when one is added.
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = 1
"""The version of every document."""
