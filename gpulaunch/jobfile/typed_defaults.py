"""Fields that a command line gives jobs which do not say otherwise: `--default timeout=2h`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpulaunch.errors import JobFileError, UsageError
from gpulaunch.jobfile import tree
from gpulaunch.jobfile.fields import DEFAULTS, FIELDS
from gpulaunch.jobfile.mistakes import as_field_error
from gpulaunch.jobfile.suggest import did_you_mean_key
from gpulaunch.jobfile.tree import Plain

_NULLS = frozenset({"null", "~"})


def typed_defaults(words: Iterable[str]) -> dict[str, Any]:
    """Return the fields of `FIELD=VALUE`, converted; of one that is named twice, the last.

    A value that begins with [ or { is YAML, any other is text as typed. Raises UsageError with
    every mistake.
    """
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for word in words:
        field, equals, typed = word.partition("=")
        try:
            if any("\udc80" <= character <= "\udcff" for character in word):
                raise ValueError("expected UTF-8")
            if not equals or field not in DEFAULTS:
                raise ValueError(_why_not(field, equals))
            found[field] = DEFAULTS[field].convert(_plain(field, typed))
        except JobFileError as error:
            wrong += [one.message for one in error.found]
        except ValueError as error:
            wrong += [one.message for one in as_field_error(error).each()]
        wrong = [
            one if one.startswith("--default ") else f"--default {word}: {one}" for one in wrong
        ]
    if wrong:
        raise UsageError("\n".join(wrong))
    return found


def _why_not(field: str, equals: str) -> str:
    if field in FIELDS and field not in DEFAULTS:
        return "a job's own; it cannot be a default"
    if not equals:
        return "expected FIELD=VALUE, as in --default timeout=2h"
    near = did_you_mean_key(field, tuple(DEFAULTS))
    return f"there is no such field{near or '; gpulaunch schema defaults'}"


def _plain(field: str, typed: str) -> Plain:
    if typed in _NULLS:
        raise ValueError("null gives nothing: leave the option out")
    if not typed.startswith(("[", "{")) or typed.startswith("{{"):
        return typed
    return tree.plain_value(field, typed)
