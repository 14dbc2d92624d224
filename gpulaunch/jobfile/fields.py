"""The fields of a job, before expansion: what each accepts, for the loader and for editors.

A value that holds placeholders is kept as Deferred and converted once an item has filled them;
`run`, `env`, `outputs`, `needs`, `after`, `name` and `service` are kept as they are typed, because
their placeholders are treated by rules of their own (`expand`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpulaunch.core.template import Template, Text
from gpulaunch.jobfile import convert as c
from gpulaunch.jobfile import engines, forms, workers
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.placeholders import RESERVED, compile_raw, names_in
from gpulaunch.jobfile.tree import Plain
from gpulaunch.text import SPAN, parse_size, parse_span

Compiled: TypeAlias = "Text | list[Compiled] | dict[str, Compiled] | None"
Schema: TypeAlias = dict[str, Any]

LATER = frozenset({"tty"})
"""Keys that are reserved for later versions of the job file."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A value with placeholders, and how it is converted once they are filled."""

    value: Compiled
    convert: c.Convert


def compile_plain(value: Plain) -> Compiled:
    if isinstance(value, str):
        return compile_raw(value)
    if isinstance(value, list):
        return [compile_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: compile_plain(item) for key, item in value.items()}
    return None


def compiled_names(value: Compiled) -> list[str]:
    """Return every placeholder's name in the value."""
    if isinstance(value, Template):
        return names_in(value)
    if isinstance(value, list):
        return [name for item in value for name in compiled_names(item)]
    if isinstance(value, dict):
        return [name for item in value.values() for name in compiled_names(item)]
    return []


def filled(value: Compiled, fill: Callable[[Text], str]) -> Plain:
    """Return the plain value, with every text filled."""
    if isinstance(value, list):
        return [filled(item, fill) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, fill) for key, item in value.items()}
    return None if value is None else fill(value)


def _may_hold(value: Plain) -> bool:
    if isinstance(value, str):
        return "{{" in value
    if isinstance(value, list):
        return any(_may_hold(item) for item in value)
    return isinstance(value, dict) and any(_may_hold(item) for item in value.values())


def _deferring(convert: c.Convert) -> c.Convert:
    def validate(value: Plain) -> Any:
        if not _may_hold(value):
            return convert(value)
        compiled = compile_plain(value)
        if compiled_names(compiled):
            return Deferred(compiled, convert)
        return convert(filled(compiled, str))  # no placeholders but escaped ones

    return validate


def _engine(value: Plain) -> Any:
    return _deferring(engines.settled)(engines.typed(value))


def engines_merged(below: Any, above: Any) -> Any:
    """Return two values of `engine:`, Deferred or not, merged key by key."""
    if not (isinstance(below, Deferred) or isinstance(above, Deferred)):
        return engines.merged(below, above)
    both: Any = engines.merged(_compiled(below), _compiled(above))
    return Deferred(both, engines.settled)


def _compiled(value: Any) -> Any:
    if isinstance(value, Deferred):
        return value.value
    return {
        name: {key: list(words) for key, words in given.items()} for name, given in value.items()
    }


class Kind:
    """What a field accepts: its converter, and the JSON Schema that editors are told."""

    def __init__(self, convert: c.Convert, schema: Schema, *, defers: bool = True) -> None:
        self.convert = _deferring(convert) if defers else convert
        self.schema = {"anyOf": [schema, PLACEHOLDER]} if defers else schema


# ── what editors are told ───────────────────────────────────────────────────────────────────────

PLACEHOLDER: Schema = {"type": "string", "pattern": r"\{\{"}
SCALAR: Schema = {"type": ["string", "number", "boolean"]}
TEXT: Schema = {"anyOf": [{"type": "string", "minLength": 1}, {"type": ["number", "boolean"]}]}
LIST: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
COUNT: Schema = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+$"}]
}
SOME: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": "^0*[1-9][0-9]*$"},
    ]
}
_WHOLE: Schema = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[+-]?[0-9]+$"}]}
_NUMBER: Schema = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": "^[+0-9.eE-]+$"}]
}
_BOOLEAN: Schema = {
    "anyOf": [{"type": "boolean"}, {"enum": ["true", "false", "yes", "no", "Yes", "No"]}]
}
_TIME: Schema = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": rf"^\s*([0-9.]+|({SPAN}\s*)+)\s*$"},
    ]
}
_SIZE: Schema = {"type": "string", "pattern": r"^\s*[0-9.]+\s*([kKmMgGtT][iI]?[bB]?|[bB])\s*$"}
_CLASS: Schema = {"anyOf": [{"enum": sorted(c.FAILURES)}, PLACEHOLDER]}


def _object(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


def with_on(made: Schema) -> Schema:
    """Return an object's schema whose key `on` may also be what YAML 1.1 makes of it: true.

    An editor or a program with such a loader hands over the key as true itself, or as its text.
    """
    kept = {key: value for key, value in made.items() if key != "additionalProperties"}
    return {**kept, "propertyNames": {"enum": [*made["properties"], "true", True]}}


def _array(items: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


_RETRIES: Schema = {
    "anyOf": [
        COUNT,
        with_on(
            _object(
                {
                    "times": {"anyOf": [COUNT, PLACEHOLDER]},
                    "on": {"anyOf": [_CLASS, {"type": "array", "items": _CLASS}]},
                    "delay": {"anyOf": [_TIME, PLACEHOLDER]},
                }
            )
        ),
    ]
}
_ENV: Schema = {
    "type": "object",
    "propertyNames": {"not": {"enum": sorted(c.MASKS)}, "pattern": r"^[^\s=]+$"},
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
_FOREACH: Schema = {
    "anyOf": [
        TEXT,
        _array(TEXT),
        *(_object({kind: TEXT}, (kind,)) for kind in ("lines", "csv", "fasta")),
        _object({"values": _array(SCALAR)}, ("values",)),
    ]
}
_RULE: Schema = {"type": "object", "minProperties": 1, "additionalProperties": SCALAR}
_MATRIX: Schema = {
    "type": "object",
    "minProperties": 1,
    "properties": {"exclude": {"anyOf": [_RULE, {"type": "array", "items": _RULE}]}},
    "propertyNames": {"not": {"enum": sorted(RESERVED)}},
    "additionalProperties": {"anyOf": [SCALAR, _array(SCALAR)]},
}
_CODES: Schema = {"anyOf": [COUNT, PLACEHOLDER, _array({"anyOf": [COUNT, PLACEHOLDER]})]}
_FUNCTION: Schema = {"type": "string", "pattern": r":"}
_LOADS: Schema = {
    "load": _FUNCTION,
    "items": {"anyOf": [SOME, PLACEHOLDER]},
    "memory": {"anyOf": [_SIZE, PLACEHOLDER]},
    "load_timeout": {"anyOf": [_TIME, PLACEHOLDER]},
}
_WORKER: Schema = {
    "anyOf": [
        _FUNCTION,
        _object({"function": _FUNCTION, **_LOADS}, ("function",)),
        _object(
            {"run": _array(SCALAR), **{k: s for k, s in _LOADS.items() if k != "load"}}, ("run",)
        ),
    ]
}
_READY: Schema = {"type": "string", "pattern": r"^(tcp:|https?://|\{\{)"}

_MODULE: Schema = {"type": "string", "pattern": r"^[A-Za-z_][\w.]*$"}
_PRELOAD: Schema = {"anyOf": [{"type": "boolean"}, _MODULE, _array(_MODULE)]}
_NULL: Schema = {"type": "null"}
_SETTINGS: Schema = {
    **{key: {"anyOf": [TEXT, _NULL]} for key in ("partition", "account", "qos", "gres")},
    "extra": {"anyOf": [LIST, _NULL]},
}
ENGINE: Schema = _object({"slurm": {"anyOf": [_object(_SETTINGS), _NULL]}})

# ── the fields ──────────────────────────────────────────────────────────────────────────────────

_WORD = Kind(c.not_empty, TEXT)
_SPAN = Kind(c.each(v.positive_duration), _TIME)
_FLAG = Kind(c.each(v.boolean), _BOOLEAN)
_NAMES = Kind(c.texts, LIST, defers=False)

DEFAULTS: Mapping[str, Kind] = {
    "gpus": Kind(c.integer(0, "how many cards: 0, 1, 2 ..."), COUNT),
    "gpu_memory": Kind(c.each(parse_size), _SIZE),
    "per_gpu": Kind(c.integer(1, "how many jobs share a card: 1, 2 ..."), SOME),
    "cpus": Kind(c.integer(1, "how many CPUs: 1, 2 ..."), SOME),
    "uses": Kind(c.texts, LIST),
    "cwd": _WORD,
    "env": Kind(c.env, _ENV, defers=False),
    "env_file": _WORD,
    "python": _WORD,
    "venv": _WORD,
    "conda": _WORD,
    "shell": Kind(c.shell, LIST),
    "timeout": _SPAN,
    "idle_timeout": _SPAN,
    "grace": Kind(c.each(parse_span), _TIME),
    "retries": Kind(c.retries, _RETRIES),
    "outputs": _NAMES,
    "success_codes": Kind(c.codes, _CODES),
    "priority": Kind(c.integer(-(10**12), "a whole number, higher is earlier"), _WHOLE),
    "cost": Kind(c.each(v.number), _NUMBER),
    "visible": Kind(
        c.each(lambda text: v.choice(text, "index", "uuid")), {"enum": ["index", "uuid"]}
    ),
    "isolation": Kind(c.isolation, {"enum": ["env", "strict"]}),
    "explain": _FLAG,
    "preload": Kind(c.preload, _PRELOAD),
    "inherit_ranks": _FLAG,
    "engine": Kind(_engine, ENGINE, defers=False),
}
"""What `defaults:` may hold: the fields that make sense for many jobs at once."""

JOB: Mapping[str, Kind] = {
    **DEFAULTS,
    "name": Kind(c.not_empty, TEXT, defers=False),
    "run": Kind(c.run, {"anyOf": [TEXT, _array(SCALAR)]}, defers=False),
    "worker": Kind(workers.worker, _WORKER),
    "foreach": Kind(forms.foreach, _FOREACH, defers=False),
    "batch": Kind(c.integer(1, "how many items a job: 1, 2 ..."), SOME, defers=False),
    "matrix": Kind(forms.matrix, _MATRIX, defers=False),
    "needs": _NAMES,
    "after": _NAMES,
    "first": Kind(c.each(v.boolean), _BOOLEAN, defers=False),
    "service": Kind(c.service, _object({"ready": _READY}, ("ready",)), defers=False),
}
"""A job as it stands in the file."""

DEFAULT_FIELDS = tuple(DEFAULTS)
FIELDS = tuple(JOB)
