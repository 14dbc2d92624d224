"""`foreach:`, `matrix:` and `ladder:` as they are typed: their forms checked, no file touched."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec import Struct

from gpulaunch.core.model import Ladder
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import mapping, scalar, texts
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted
from gpulaunch.jobfile.placeholders import NAME, RESERVED, compile_raw, names_in
from gpulaunch.jobfile.sampling import Axes, Axis, Range, distribution
from gpulaunch.jobfile.suggest import did_you_mean, shorten
from gpulaunch.jobfile.tree import Plain

_GLOB_WORDS = frozenset({"glob", "globs", "files", "file", "paths", "path", "pattern", "patterns"})
"""Keys that people write who look for a glob."""


class ForEach(Struct, frozen=True):
    """A `foreach:`. `kind`: glob, values, lines, csv, fasta or cards.

    `values`: the patterns, the values or the file; of cards none.
    """

    kind: str
    values: tuple[str, ...] = ()

    @property
    def read(self) -> bool:
        """True where its items come from files, which may change."""
        return self.kind not in ("values", "cards")


class Matrix(Struct, frozen=True):
    """A `matrix:`. `drawn`: the keys that say what is drawn from, which takes `sample:`."""

    keys: Axes
    exclude: tuple[Mapping[str, str], ...] = ()
    drawn: tuple[str, ...] = ()


def foreach(value: Plain) -> ForEach:
    expected = "a glob, a list of globs, cards, or one of values:, lines:, csv:, fasta:"
    if value == "cards":
        return ForEach("cards")
    if isinstance(value, str | list):
        patterns = texts(value)
        if not patterns:
            raise FieldError(f"expected {expected}, found an empty list")
        converted(_no_placeholder, patterns)
        return ForEach("glob", patterns)
    if isinstance(value, dict) and (word := next(filter(_GLOB_WORDS.__contains__, value), "")):
        raise FieldError("unknown key; a glob stands alone: foreach: inputs/*.fasta", (word,))
    given = mapping(value, ("values", "lines", "csv", "fasta"), expected)
    if len(given) != 1:
        raise FieldError(f"expected {expected}; found {' and '.join(given) or 'nothing'}")
    ((kind, content),) = given.items()
    if kind == "values":
        if not isinstance(content, list) or not content:
            raise FieldError("expected a list with at least one value", (kind,))
        return ForEach(kind, tuple(converted(scalar, content, kind)))
    if not isinstance(content, str) or not content:
        raise FieldError(f"expected a file, found {v.found(content)}", (kind,))
    gather = ErrorCollector()
    gather.take((kind,), _no_placeholder, content)
    gather.done()
    return ForEach(kind, (content,))


def _no_placeholder(text: str) -> None:
    if names_in(compile_raw(text)):
        raise FieldError("placeholders do not work here: foreach is what gives them their values")


def matrix(value: Plain) -> Matrix:
    if not isinstance(value, dict) or not value:
        raise FieldError(f"expected keys with lists like {{seed: [0, 1]}}, found {v.found(value)}")
    gather = ErrorCollector()
    keys = {
        key: gather.take((), partial(_axis, key), items, ())
        for key, items in value.items()
        if key != "exclude"
    }
    if not keys:
        raise FieldError("expected a key with a list beside exclude:")
    exclude = gather.take(("exclude",), partial(_exclude, keys), value.get("exclude", []))
    gather.done()
    drawn = tuple(key for key in keys if isinstance(value[key], dict))
    return Matrix(keys, exclude, drawn)


def ladder(value: Plain) -> Ladder:
    """Return the values that change with retries; the keys move together."""
    if not isinstance(value, dict) or not value:
        raise FieldError(
            f"expected keys with lists like {{batch: [32, 16]}}, found {v.found(value)}"
        )
    gather = ErrorCollector()
    keys = {key: gather.take((), partial(_values, key), items, ()) for key, items in value.items()}
    gather.done()
    counts = {key: len(values) for key, values in keys.items()}
    first = next(iter(counts))
    for key, count in counts.items():
        if count != counts[first]:
            why = f"{count} values, {first} has {counts[first]}: they move together, step by step"
            raise FieldError(why, (key,))
    steps = tuple(zip(*keys.values(), strict=True))
    seen: dict[tuple[str, ...], int] = {}
    for number, step in enumerate(steps):
        if (before := seen.setdefault(step, number)) != number:
            raise FieldError(f"step {number + 1} is step {before + 1} again", (first, number))
    return Ladder(tuple(keys), steps)


def _values(key: str, items: Plain) -> tuple[str, ...]:
    if not NAME.fullmatch(key):
        raise FieldError("expected a name of letters, digits and _", (key,), key=True)
    check_free(key)
    if not isinstance(items, list) or len(items) < 2:
        raise FieldError(f"expected a list of two values or more, found {v.found(items)}", (key,))
    found = tuple(converted(scalar, items, key))
    for number, item in enumerate(found):
        if names_in(compile_raw(item)):
            raise FieldError("placeholders do not work here: these are values", (key, number))
    return found


def _axis(key: str, items: Plain) -> Axis:
    if not NAME.fullmatch(key):
        raise FieldError("expected a name of letters, digits and _", (key,), key=True)
    check_free(key)
    steps: tuple[str, ...] = (key,)
    if isinstance(items, dict):
        try:
            found = distribution(items)
        except FieldError as bad:
            raise bad.under(key) from None
        if isinstance(found, Range):
            return found
        steps = (key, "choice")
    else:
        items = [items] if isinstance(items, str) else items
        if not isinstance(items, list) or not items:
            raise FieldError(f"expected a list of values, found {v.found(items)}", (key,))
        found = tuple(converted(scalar, items, key))
    seen: set[str] = set()
    for i, item in enumerate(found):
        if item in seen:
            raise FieldError(f"value {v.found(item)} twice", (*steps, i))
        seen.add(item)
    return found


def check_free(name: str) -> None:
    """Raise an error if a column or key has the name of a placeholder of gpulaunch's own."""
    if name in RESERVED:
        raise FieldError(
            f"the name {name} is reserved for {{{{{name}}}}}; choose another", (name,), True
        )


def _exclude(keys: Axes, value: Plain) -> tuple[Mapping[str, str], ...]:
    if isinstance(value, dict):
        return (_rule(keys, value),)
    if not isinstance(value, list):
        raise FieldError("expected a list like [{seed: 1}]")
    return tuple(converted(partial(_rule, keys), value))


def _rule(keys: Axes, rule: Plain) -> Mapping[str, str]:
    if not isinstance(rule, dict) or not rule:
        raise FieldError(f"expected keys with values like {{seed: 1}}, found {v.found(rule)}")
    gather = ErrorCollector()
    for key, item in rule.items():
        gather.take((), partial(_part, keys, key), item)
    gather.done()
    return rule  # type: ignore[return-value]


def _part(keys: Axes, key: str, item: Plain) -> None:
    if key not in keys:
        known = ", ".join(sorted(keys))
        message = f"unknown key{did_you_mean(key, keys)} (known: {known})"
        raise FieldError(message, (key,), key=True)
    axis = keys[key]
    if isinstance(axis, Range):
        raise FieldError(f"{key} is drawn from a range: a rule names values of lists", (key,), True)
    if axis and item not in axis:
        known = shorten(", ".join(axis[:20]))
        raise FieldError(f"expected one of {known}, found {v.found(item)}", (key,))
