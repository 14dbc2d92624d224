"""Checks a mapping of fields against their kinds: converts right ones, adds mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulaunch.jobfile.fields import FIELDS, LATER, Kind
from gpulaunch.jobfile.mistakes import FieldError, Mistakes
from gpulaunch.jobfile.suggest import did_you_mean_key
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import Plain, YamlNode

OF_THE_FILE = frozenset({"notify", "limits", "defaults", "jobs"})
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
            mistakes.add((*where, field), _unknown(field, kinds), key=True)
            continue
        try:
            entry[field] = kinds[field].convert(value)
        except FieldError as bad:
            mistakes.add_bad((*where, field), bad)
        except ValueError as error:
            mistakes.add((*where, field), str(error))
    return entry, len(entry) == len(plain)


def _unknown(key: str, kinds: Mapping[str, Kind]) -> str:
    """Return why a key cannot stand there."""
    if key in OF_THE_FILE:
        return "belongs beside jobs:, for the whole run"
    if key in LATER:
        return "this version cannot do that yet"
    return f"unknown key{did_you_mean_key(key, tuple(kinds))}"
