"""`sample:` over a matrix: combinations that are drawn, from lists and from ranges of numbers.

    matrix: {lr: {log: [1e-5, 1e-2]}, batch: [16, 32]}, sample: {n: 40, seed: 1} ─▶ 40 combinations

The same on every machine and Python: no generator of random numbers is asked, but SHA-256, and all
arithmetic is decimal. What is drawn first stays so when more is drawn. With ranges, the n-th value
depends on nothing but the seed, its key and n, so that another key changes none; of lists alone,
every combination has its place in the order by the seed and its own values.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache, partial
from typing import TypeAlias

from msgspec import Struct

from gpulaunch.base.text import several
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import keys as check_keys
from gpulaunch.jobfile.convert import scalar
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted
from gpulaunch.jobfile.tree import Plain

MAX_SAMPLES = 50_000
MAX_VALUES = 200_000
"""Values that are drawn at most, over all samples and keys: each costs some microseconds."""
MAX_LISTED = 500_000
"""Combinations of lists that are all put in order; of more, or of ranges, some are drawn."""
MAX_FRUITLESS_DRAWS = 1000
"""Draws in a row that give nothing new, after which there is nothing new."""
_MAX_CHARACTERS = 30
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
KINDS = ("uniform", "log", "integer")
EXPECTED = "a list of values, {uniform: [0, 1]}, {log: [1e-5, 1e-2]} or {integer: [2, 8]}"
_DIGITS = 4
"""Significant digits of what is drawn: of the value in `log`, of the range in `uniform`."""
_EXACT = Context(prec=34, rounding=ROUND_HALF_EVEN, Emin=-(10**6), Emax=10**6, traps=[])
_SHORT = Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN, Emin=-(10**6), Emax=10**6, traps=[])
_DRAWS = Decimal(1 << 64)


class Range(Struct, frozen=True):
    """An axis of numbers from `low` to `high`, both as typed; `kind` is one of KINDS."""

    kind: str
    low: str
    high: str

    def value(self, draw: int) -> str:
        """Return the number that a draw, 0 to 2^64 - 1, means, as short text."""
        if self.kind == "integer":
            first = int(self.low)
            return str(first + (draw * (int(self.high) - first + 1) >> 64))
        low, high = Decimal(self.low), Decimal(self.high)
        start, span = _start_and_span(self)
        part = _EXACT.divide(Decimal(draw), _DRAWS)
        found = _EXACT.add(start, _EXACT.multiply(span, part))
        if self.kind == "log":
            found = _SHORT.plus(_EXACT.exp(found))
        else:
            found = _EXACT.quantize(found, Decimal((0, (1,), span.adjusted() - _DIGITS)))
        # What is rounded may be beyond the bound.
        return _spelled(min(max(low, found), high))


Axis: TypeAlias = "tuple[str, ...] | Range"
Axes: TypeAlias = Mapping[str, Axis]
Combination: TypeAlias = dict[str, str]


class Sample(Struct, frozen=True):
    """How many combinations are drawn, and what tells one series of draws from another."""

    count: int
    seed: int = 0


def sample(value: Plain) -> Sample:
    if isinstance(value, str):
        return Sample(_count(value))
    if not isinstance(value, dict) or "n" not in value:
        raise FieldError(f"expected how many, or {{n: 40, seed: 1}}, found {v.found(value)}")
    gather = ErrorCollector()
    check_keys(value, ("n", "seed"), gather)
    count = gather.part(value, "n", _count, 1)
    seed = gather.part(value, "seed", partial(_whole, what="a seed: 0, 1 ..."), 0)
    gather.done()
    return Sample(count, seed)


def distribution(value: Mapping[str, Plain]) -> Axis:
    """Return what `{log: [1e-5, 1e-2]}`, `{choice: [16, 32]}` and the like are drawn from."""
    if len(value) != 1 or not {*value} <= {*KINDS, "choice"}:
        raise FieldError(f"expected {EXPECTED}, found {v.found(dict(value))}")
    ((kind, bounds),) = value.items()
    if kind == "choice":
        if not isinstance(bounds, list) or not bounds:
            raise FieldError(f"expected a list of values, found {v.found(bounds)}", (kind,))
        return tuple(converted(scalar, bounds, kind))
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise FieldError(f"expected [lowest, highest], found {v.found(bounds)}", (kind,))
    low, high = converted(_integer if kind == "integer" else _number, bounds, kind)
    if kind == "log" and Decimal(low) <= 0:
        raise FieldError(f"expected more than 0, found {v.found(low)}", (kind, 0))
    if Decimal(low) >= Decimal(high):
        raise FieldError(f"expected more than {low}, found {v.found(high)}", (kind, 1))
    return Range(kind, low, high)


def drawn(axes: Axes, exclude: Collection[Mapping[str, str]], sample: Sample) -> list[Combination]:
    """Return so many combinations, no two alike and none that a rule of `exclude` names.

    The first of them are those of a smaller sample. Raises FieldError where there are not so many.
    """
    size = math.prod(map(_size, axes.values()))
    rules = [rule.items() for rule in exclude]
    found: dict[tuple[str, ...], Combination] = {}
    if sample.count * len(axes) > MAX_VALUES:
        raise FieldError(f"more than {MAX_VALUES:,} values, over all samples and keys")
    few, fruitless = size <= MAX_LISTED, 0
    for values in (_all_in_turn if few else _draws)(axes, sample.seed):
        before = len(found)
        if before == sample.count or (fruitless > MAX_FRUITLESS_DRAWS and not few):
            break
        if not any(rule <= values.items() for rule in rules):
            found.setdefault(tuple(values.values()), values)
        fruitless = 0 if len(found) > before else fruitless + 1
    if len(found) < sample.count:
        there = "no combination" if not found else f"only {several(len(found), 'combination')}"
        raise FieldError(f"{several(sample.count, 'sample')}, and the matrix has {there}")
    return list(found.values())


# ── draws ───────────────────────────────────────────────────────────────────────────────────────


def _all_in_turn(axes: Axes, seed: int) -> Iterator[Combination]:
    """Yield every combination once, in an order that is drawn."""
    every = itertools.product(*map(_values, axes.values()))
    for values in sorted(every, key=lambda values: (_draw(seed, *axes, *values), values)):
        yield dict(zip(axes, values, strict=True))


def _draws(axes: Axes, seed: int) -> Iterator[Combination]:
    """Yield combinations without end, some of them again and again."""
    for number in itertools.count():
        yield {key: _drawn(axis, _draw(seed, key, str(number))) for key, axis in axes.items()}


def _draw(seed: int, *words: str) -> int:
    text = "\0".join((str(seed), *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _drawn(axis: Axis, draw: int) -> str:
    return axis.value(draw) if isinstance(axis, Range) else axis[draw * len(axis) >> 64]


def _size(axis: Axis) -> int:
    """Return how many values an axis has; those of a range that is not of integers are many."""
    if not isinstance(axis, Range):
        return len(axis)
    return int(axis.high) - int(axis.low) + 1 if axis.kind == "integer" else MAX_LISTED + 1


def _values(axis: Axis) -> Collection[str]:
    if isinstance(axis, Range):
        return [str(number) for number in range(int(axis.low), int(axis.high) + 1)]
    return axis


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────


@lru_cache(1000)
def _start_and_span(axis: Range) -> tuple[Decimal, Decimal]:
    """Return where the range begins and how long it is; of `log`, as logarithms.

    Those of Decimal, and its powers, are exactly rounded, which a machine's own need not be.
    """
    low, high = Decimal(axis.low), Decimal(axis.high)
    if axis.kind == "log":
        low, high = _EXACT.ln(low), _EXACT.ln(high)
    return low, _EXACT.subtract(high, low)


def _spelled(number: Decimal) -> str:
    """Return a number as text: 0.0347, 3.472e-5, 1200."""
    if not number:
        return "0"
    power = number.adjusted()
    if not -5 < power < 7:
        number = _EXACT.scaleb(number, -power)
    text = format(number, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text if -5 < power < 7 else f"{text}e{power}"


def _count(value: Plain) -> int:
    count = _whole(value, least=1, what="how many samples: 1, 2 ...")
    if count > MAX_SAMPLES:
        raise FieldError(f"expected at most {MAX_SAMPLES:,} samples, found {count:,}")
    return count


def _whole(value: Plain, what: str, least: int = 0) -> int:
    return v.integer(scalar(value, what), least, what)


def _integer(value: Plain) -> str:
    return str(v.integer(scalar(value), -(10**18), "a whole number"))


def _number(value: Plain) -> str:
    text = scalar(value)
    fits = _NUMBER.fullmatch(text) and len(text) <= _MAX_CHARACTERS and math.isfinite(float(text))
    # Too small for a program's numbers: 1e-400 would be 0 to it.
    if not fits or (Decimal(text) and not float(text)):
        raise FieldError(f"expected a number, found {v.found(text)}")
    return text
