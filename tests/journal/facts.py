"""Every fact there can be, as Hypothesis strategies made from the facts' own annotations."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.facts import Fact, JobAdded, Noted, RunOpened
from gpulaunch.core.model import AttemptId, Gpu, Instant
from gpulaunch.core.values import LEAST_SECONDS, MOST_ATTEMPTS, MOST_SECONDS
from gpulaunch.journal.codec import MOST_INTEGER, is_file_name

# Lone surrogates of this range stand for the bytes of names that are no UTF-8.
TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF),
    ),
    max_size=12,
)
INTEGERS = st.integers(-MOST_INTEGER, MOST_INTEGER)
FLOATS = st.floats(LEAST_SECONDS, MOST_SECONDS)
NAMES = TEXT.filter(is_file_name)
"""Names of jobs: those of files."""
INSTANTS = st.builds(
    lambda mono, utc: Instant(mono / 1_000_000, utc / 1_000_000),
    st.integers(0, 10**15),
    st.integers(0, 4_000_000_000 * 10**6),
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotated type."""
    plain = {str: TEXT, int: INTEGERS, float: FLOATS, bool: st.booleans()}
    if hint in plain:
        return plain[hint]
    if hint is AttemptId:
        return st.builds(AttemptId, NAMES, st.integers(1, MOST_ATTEMPTS))
    if hint is type(None):
        return st.none()
    if isinstance(hint, type) and issubclass(hint, Struct):
        hints = get_type_hints(hint)
        found = {name: values(each) for name, each in hints.items()}
        if hint.__name__.startswith("Job") and "name" in found:
            found["name"] = NAMES
        if hint is Noted:
            found["job"] = st.none() | NAMES
        return st.builds(hint, **found)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if origin in (Union, types.UnionType):
        return st.one_of([values(arg) for arg in args])
    raise TypeError(hint)


FACTS = st.one_of([values(cls) for cls in get_args(Fact)])


def opened(**changes: Any) -> RunOpened:
    fact = RunOpened(
        run="20261120-074215-3fa9c1",
        name="fold",
        epoch=1,
        version="0.1.0",
        host="box",
        boot="b0",
        pid=4711,
        gpus=(Gpu("GPU-0", 0, "0000:01:00.0", "H200", 1 << 37),),
    )
    return replace(fact, **changes)


def added(name: str) -> JobAdded:
    return JobAdded(name, group=0, gpus=1, digest="d", params={"stem": name})
