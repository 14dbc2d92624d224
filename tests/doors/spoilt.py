"""Spoilt messages: bytes, JSON and real messages of which one value is another.

GPULAUNCH_TEST_DOORS=500 sends so many to each door; GPULAUNCH_TEST_SEED=7 sends others.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

SEED = int(os.environ.get("GPULAUNCH_TEST_SEED", "1"))
DEEP = 100_000
_DEEP, _SURROGATE = "@deep@", "\ud800"
_MISSING = object()
ODD: Sequence[Any] = (
    _MISSING, None, True, 0, 5, -1, 2**31, 2**63, 10**400, -(10**30), 0.5, 1e300, -1e300,
    float("nan"), float("inf"), "", "x", "\0", _SURROGATE, "\udcff", "../../x", "/", ".",
    "a\nb\x1b[2J",
    "x" * 100_000, "[" * 500, "{{x}}", [], [[]], {}, {"": ""}, {"kind": 5}, [None, 5, "x"], _DEEP,
)  # fmt: skip
"""What stands in a value's place. A program that checks no type is found by one of them."""
Steps: TypeAlias = tuple["str | int", ...]


def count(usual: int) -> int:
    """How many spoilt messages go to a door, of which `usual` are enough for every change."""
    return int(os.environ.get("GPULAUNCH_TEST_DOORS", usual))


def dumped(value: Any) -> bytes:
    """The value as JSON in ASCII, with what JSON lacks."""
    text = json.dumps(value, separators=(",", ":")).replace(f'"{_DEEP}"', "[" * DEEP + "]" * DEEP)
    return text.encode()


def values(rng: random.Random, real: Sequence[Any], number: int) -> Iterator[Any]:
    """So many of the real messages, each with one value that is another."""
    for _ in range(number):
        yield spoilt(rng, rng.choice(real))


def messages(real: Sequence[Any], number: int, seed: int = SEED) -> Iterator[bytes]:
    """So many lines without their ends: of random bytes, of random JSON, most of spoilt ones."""
    rng = random.Random(seed)
    for at in range(number):
        if at % 8 == 0:
            yield rng.randbytes(rng.choice([0, 1, 30, 3000])).replace(b"\n", b"")
        elif at % 8 == 1:
            yield dumped(rng.choice([rng.choice(ODD[1:]), anything(rng, 3)]))
        elif at % 8 == 2:
            whole = bytearray(dumped(rng.choice(real)))
            whole[rng.randrange(len(whole))] = rng.randrange(256)
            yield bytes(whole).replace(b"\n", b"")
        else:
            yield dumped(spoilt(rng, rng.choice(real)))


def anything(rng: random.Random, depth: int) -> Any:
    """Some JSON value."""
    kind = rng.randrange(4) if depth else 0
    if kind == 1:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 2:
        return {rng.choice(["kind", "error", "e", ""]): anything(rng, depth - 1) for _ in range(3)}
    return rng.choice(ODD[1:])


def spoilt(rng: random.Random, value: Any) -> Any:
    """The value, but one value in it, or itself, is another, is missing or is there too."""
    whole = deepcopy(value)
    steps = rng.choice(list(_places(whole)))
    odd = rng.choice(ODD)
    if not steps:
        return None if odd is _MISSING else odd
    inside = whole
    for step in steps[:-1]:
        inside = inside[step]
    if odd is _MISSING:
        del inside[steps[-1]]
    elif isinstance(inside, dict) and rng.random() < 0.1:
        inside[rng.choice(["kind", _SURROGATE, "", "more"])] = odd
    else:
        inside[steps[-1]] = odd
    return whole


def _places(value: Any, steps: Steps = ()) -> Iterator[Steps]:
    yield steps
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _places(child, (*steps, key))
    elif isinstance(value, list):
        for at, child in enumerate(value):
            yield from _places(child, (*steps, at))
