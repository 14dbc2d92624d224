"""Reads `engine:`, the settings of jobs for another engine than this machine, as typed.

    engine: {slurm: {partition: gpu, account: lab, qos: long, gres: a100, extra: [--mem=64G]}}

The same beside `jobs:`, in `defaults:` and in a job; what is nearer to the job wins, key by key.
It says nothing about which engine runs: that is `--engine`. Nor is it part of what would be run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from gpulaunch.jobfile import sbatch
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import keys, scalar
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted
from gpulaunch.jobfile.placeholders import compile_raw, names_in
from gpulaunch.jobfile.suggest import did_you_mean
from gpulaunch.jobfile.tree import Plain

ENGINES = ("slurm",)
NAMED = ("partition", "account", "qos")
"""Keys that are options of sbatch by the same name."""
KEYS = (*NAMED, "gres", "extra")

Settings: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Engine, key, words. A key without words cancels what is set further from the job."""

_EXPECTED = "{slurm: {partition: gpu, account: lab}}"
_TYPE = re.compile(r"(gpu:)?(?P<type>[A-Za-z][\w.-]*)", re.ASCII)


def typed(value: Plain) -> dict[str, dict[str, list[str]]]:
    """Return the settings with lists of words, placeholders unfilled. Raises FieldError."""
    if not isinstance(value, dict):
        raise FieldError(
            f"expected {_EXPECTED}, found {v.found(value)}; which engine runs the list is said"
            " with --engine"
        )
    gather = ErrorCollector()
    known = ", ".join(ENGINES)
    for name in value:
        if name not in ENGINES:
            message = f"unknown engine{did_you_mean(name, ENGINES)} (known: {known})"
            gather.bads.append(FieldError(message, (name,), key=True))
    found = {
        name: gather.take((name,), _settings, given, {})
        for name, given in value.items()
        if given is not None
    }
    gather.done()
    return found


def _settings(value: Plain) -> dict[str, list[str]]:
    if not isinstance(value, dict):
        raise FieldError(f"expected settings like {{partition: gpu}}, found {v.found(value)}")
    gather = ErrorCollector()
    keys(value, KEYS, gather)
    found = {
        key: gather.take((key,), _options if key == "extra" else _word, value[key], [])
        for key in KEYS
        if key in value
    }
    gather.done()
    return found


def _word(value: Plain) -> list[str]:
    return [] if value is None else [scalar(value)]


def _options(value: Plain) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        if names_in(compile_raw(value)):
            raise FieldError("with a placeholder, write options as a list: [--mem={{mem}}G]")
        return sbatch.options(sbatch.split(value))
    if not isinstance(value, list):
        raise FieldError(f"expected options like [--mem=64G], found {v.found(value)}")
    return sbatch.options(converted(scalar, value))


def settled(value: Any) -> Settings:
    """Return `typed`'s settings, with placeholders filled, checked. Raises FieldError."""
    gather = ErrorCollector()
    found = {
        name: {
            key: gather.take((name, key), partial(_settle, key), words, ())
            for key, words in given.items()
        }
        for name, given in value.items()
    }
    gather.done()
    return found


def _settle(key: str, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(converted(partial(_checked, key), words))


def _checked(key: str, word: str) -> str:
    if key == "extra":
        sbatch.check(word)
    elif key == "gres":
        return _type(word)
    elif not word.strip() or not word.isprintable():
        raise FieldError(f"expected its name, found {v.found(word)}")
    return word


def _type(word: str) -> str:
    """Return a type of card; accepts Slurm's own spelling, `gpu:a100`, too."""
    match = _TYPE.fullmatch(word)
    if match is None or word == "gpu":
        raise FieldError(
            f"expected a type of card like a100, found {v.found(word)}; how many is what gpus:"
            " says, and other resources go into extra: [--gres=...]"
        )
    return match["type"]


def fixed(value: Plain) -> Settings:
    """Return the file's own settings, where placeholders have no item. Raises FieldError."""
    given = typed(value)
    for name, settings in given.items():
        for key, words in settings.items():
            if any(names_in(compile_raw(word)) for word in words):
                raise FieldError(
                    "placeholders are filled in a job or in defaults:, not here", (name, key)
                )
    return settled(given)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return both settings, key by key of each engine; `above` wins."""
    names = dict.fromkeys((*below, *above))
    return {name: {**below.get(name, {}), **above.get(name, {})} for name in names}


def held(settings: Settings) -> Settings:
    """Return the settings that apply to a job: the keys with words."""
    kept = {
        name: {key: words for key, words in given.items() if words}
        for name, given in settings.items()
    }
    return {name: given for name, given in kept.items() if given}
