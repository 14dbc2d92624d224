"""The file's own keys (name, gpus, free_below, per_gpu ...), and how any mapping of fields is
checked against their kinds: right ones converted, mistakes added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulaunch.core.selection import ALL, Selection, parse_selection
from gpulaunch.free_below import EXPECTED, parse_free_below
from gpulaunch.jobfile import convert as c
from gpulaunch.jobfile import engines
from gpulaunch.jobfile.fields import (
    DEFAULT_FIELDS,
    DEFAULTS,
    FIELDS,
    LATER,
    Kind,
    engines_merged,
)
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, Mistakes, as_field_error
from gpulaunch.jobfile.notify_spec import Target, targets
from gpulaunch.jobfile.suggest import did_you_mean_key
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import Plain, YamlNode
from gpulaunch.jobfile.values import found

TOP = (
    *("name", "gpus", "free_below", "per_gpu"),
    *("limits", "notify", "engine", "defaults", "jobs"),
)


class FileKeys:
    """Return the keys beside `jobs:`, and add each mistake."""

    def __init__(self, root: YamlNode, mistakes: Mistakes) -> None:
        assert isinstance(root.value, dict)
        self.nodes = root.value
        self.mistakes = mistakes
        self.name = ""
        self.selection: Selection = ALL
        self.free_below: str | None = None
        self.per_gpu = 1
        self.limits: dict[str, int] = {}
        self.notify: tuple[Target, ...] = ()
        self.defaults: dict[str, Any] = {}
        self.wrong_defaults: frozenset[str] = frozenset()

    def read(self, stem: str) -> None:
        for key in self.nodes:
            if key in LATER:
                self.mistakes.add((key,), "this version cannot do that yet", key=True)
            elif key not in TOP:
                self.mistakes.add((key,), _unknown(key), key=True)
        self.name = self._one("name", c.run_name, None) or c.clean_name(stem) or "jobs"
        self.selection = self._one("gpus", _selection, ALL)
        self.free_below = self._one("free_below", _free_below, None)
        self.per_gpu = self._one("per_gpu", c.integer(1, "how many jobs share a card: 1, 2 ..."), 1)
        self.limits = self._one("limits", _limits, {})
        self.notify = self._one("notify", targets, ())
        engine = self._one("engine", engines.fixed, {})
        self._read_defaults()
        if engine:
            self.defaults["engine"] = engines_merged(engine, self.defaults.get("engine", {}))

    def _one(self, key: str, convert: c.Convert, default: Any) -> Any:
        node = self.nodes.get(key)
        if node is None or node.value is None:
            return default
        try:
            return convert(node.plain())
        except ValueError as error:
            self.mistakes.add_bad((key,), as_field_error(error))
        return default

    def _read_defaults(self) -> None:
        node = self.nodes.get("defaults")
        if node is None or node.value is None:
            return
        if not isinstance(node.value, dict):
            self.mistakes.add(("defaults",), "expected fields like {timeout: 2h}")
            return
        plain, _ = split(node)
        for key in [key for key in plain if key in FIELDS and key not in DEFAULT_FIELDS]:
            self.mistakes.add(("defaults", key), "a job's own; it cannot be a default", key=True)
            del plain[key]
        self.defaults, _ = validate(DEFAULTS, plain, ("defaults",), self.mistakes)
        self.wrong_defaults = frozenset(plain) - frozenset(self.defaults)


def _unknown(key: str) -> str:
    """Return why a key cannot stand beside `jobs:`."""
    if key in DEFAULT_FIELDS:
        return "a field of jobs: it goes into a job, or into defaults: for all of them"
    if key in FIELDS:
        return "a field of jobs: it goes into a job, which is an entry of the list jobs:"
    return c.unknown_key(key, TOP)


def _selection(value: Plain) -> Selection:
    if isinstance(value, list):
        return parse_selection(list(c.texts(value)))
    return parse_selection(c.scalar(value, "all, a number of cards, or a list like [0, 2]"))


def _free_below(value: Plain) -> str:
    text = c.scalar(value, EXPECTED)
    parse_free_below(text)
    return text


def _limits(value: Plain) -> dict[str, int]:
    if not isinstance(value, dict):
        raise FieldError(
            f"expected names with numbers like {{msa_server: 1}}, found {found(value)}"
        )
    gather = ErrorCollector()
    count = c.integer(1, "how many at once: 1, 2 ...")
    limits = {key: gather.take((key,), count, item) for key, item in value.items()}
    gather.done()
    return limits


# ── fields of a job, or of defaults: ────────────────────────────────────────────────────────────

OF_THE_FILE = frozenset({"free_below", "notify", "limits", "defaults", "jobs"})
"""Keys that may stand only beside `jobs:`."""


def split(node: YamlNode) -> tuple[dict[str, Plain], set[str]]:
    """Return an entry's fields, and those that are null: not given, not even by `defaults`."""
    assert isinstance(node.value, dict)
    plain: dict[str, Plain] = {}
    nulls = set()
    for key, child in node.value.items():
        if child.value is None and key in FIELDS and key != "run":
            nulls.add(key)
        else:
            plain[key] = child.plain()
    return plain, nulls


def validate(
    kinds: Mapping[str, Kind], plain: Mapping[str, Plain], where: Steps, mistakes: Mistakes
) -> tuple[dict[str, Any], bool]:
    """Return the converted fields that are right, and True if all are; add each mistake."""
    entry: dict[str, Any] = {}
    for field, value in plain.items():
        if field not in kinds:
            mistakes.add((*where, field), _not_of_job(field, kinds), key=True)
            continue
        try:
            entry[field] = kinds[field].convert(value)
        except ValueError as error:
            mistakes.add_bad((*where, field), as_field_error(error))
    return entry, len(entry) == len(plain)


def _not_of_job(key: str, kinds: Mapping[str, Kind]) -> str:
    """Return why a key cannot stand there."""
    if key in OF_THE_FILE:
        return "belongs beside jobs:, for the whole run"
    if key in LATER:
        return "this version cannot do that yet"
    return f"unknown key{did_you_mean_key(key, tuple(kinds))}"
