"""The base of values that are written as JSON, in the journal and on sockets.

A member is left out where it has its default, and a member that the class does not have is refused.
Each of several classes that may stand in one place says which it is, by a name that the class is
given once and keeps when the class is renamed.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

LEAST_SECONDS, MOST_SECONDS = -62e9, 250e9
"""The bounds of numbers with a fraction: shortly within Python's first and last date."""
MOST_ATTEMPTS = 1_000_000_000
"""The largest number of an attempt."""

Seconds: TypeAlias = Annotated[float, Meta(ge=LEAST_SECONDS, le=MOST_SECONDS)]
"""A span, or a time since 1970."""


class Value(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A value of one class alone."""


class Tagged(Value, frozen=True, tag_field="kind"):
    """One of several classes that may stand in one place: `tag` is its name there."""


class Happening(Value, frozen=True, tag_field="e"):
    """A fact, an event or an instruction: `tag` is its name in the journal and in traces."""
