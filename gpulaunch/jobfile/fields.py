"""The fields of a job, before expansion: what each accepts, for the loader and for editors.

A value that holds placeholders is kept as Deferred and converted once an item has filled them;
`run`, `env`, `outputs`, `needs`, `after`, `name` and `service` are kept as they are typed, because
their placeholders are treated by rules of their own (`expand`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from gpulaunch.base.text import SPAN, parse_size, parse_span
from gpulaunch.core.template import Text
from gpulaunch.jobfile import containers, field_groups, sampling, schedulers
from gpulaunch.jobfile import convert as c
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.forms import foreach, ladder, matrix
from gpulaunch.jobfile.placeholders import RESERVED, compile_raw, names_in
from gpulaunch.jobfile.tree import Plain

Compiled: TypeAlias = "Text | list[Compiled] | dict[str, Compiled] | None"
Schema: TypeAlias = dict[str, Any]

LATER = frozenset({"tty"})
"""Keys that are reserved for later versions of the job file."""


class Deferred(Struct, frozen=True):
    """A value with placeholders, and how it is converted once they are filled."""

    value: Compiled
    convert: c.Convert


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value with every text in its lists and mappings changed."""
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return None if value is None else change(value)


def texts_in(value: Any) -> Iterator[Any]:
    """Yield the texts in the value's lists and mappings."""
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)
    elif value is not None:
        yield value


def compiled_names(value: Compiled) -> list[str]:
    """Return every placeholder's name in the value."""
    return [name for text in texts_in(value) for name in names_in(text)]


def _deferring(convert: c.Convert) -> c.Convert:
    def validate(value: Plain) -> Any:
        if not any("{{" in text for text in texts_in(value)):
            return convert(value)
        compiled = mapped(value, compile_raw)
        if compiled_names(compiled):
            return Deferred(compiled, convert)
        return convert(compiled)  # no placeholders but escaped ones

    return validate


def _engine(value: Plain) -> Any:
    return _deferring(schedulers.settled)(schedulers.typed(value))


def engines_merged(below: Any, above: Any) -> Any:
    """Return two values of `engine:`, Deferred or not, merged key by key."""
    if not (isinstance(below, Deferred) or isinstance(above, Deferred)):
        return schedulers.merged(below, above)
    both: Any = schedulers.merged(_compiled(below), _compiled(above))
    return Deferred(both, schedulers.settled)


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
        self.schema = _or_filled(schema) if defers else schema


# ── what editors are told ───────────────────────────────────────────────────────────────────────


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


def _or_filled(schema: Schema) -> Schema:
    """Return the schema of a part that a placeholder may stand for."""
    return any_of(schema, PLACEHOLDER)


PLACEHOLDER: Schema = _text(r"\{\{")
SCALAR: Schema = {"type": ["string", "number", "boolean"]}
TEXT: Schema = any_of({"type": "string", "minLength": 1}, {"type": ["number", "boolean"]})
LIST: Schema = any_of(TEXT, {"type": "array", "items": TEXT})
COUNT: Schema = any_of({"type": "integer", "minimum": 0}, _text("^[0-9]+$"))
SOME: Schema = any_of({"type": "integer", "minimum": 1}, _text("^0*[1-9][0-9]*$"))
_WHOLE: Schema = any_of({"type": "integer"}, _text("^[+-]?[0-9]+$"))
_NUMBER: Schema = any_of({"type": "number", "minimum": 0}, _text("^[+0-9.eE-]+$"))
_BOOLEAN: Schema = any_of(
    {"type": "boolean"}, {"enum": ["true", "false", "yes", "no", "Yes", "No"]}
)
_TIME: Schema = any_of({"type": "number", "minimum": 0}, _text(rf"^\s*([0-9.]+|({SPAN}\s*)+)\s*$"))
_MOMENT: Schema = _text(r"^\s*([0-9]{1,2}:[0-9]{2}|[0-9]{4}-[0-9]{2}-[0-9]{2})")
_SIZE: Schema = _text(r"^\s*[0-9.]+\s*([kKmMgGtT][iI]?[bB]?|[bB])\s*$")
_COMPUTE: Schema = any_of({"type": "number", "minimum": 1}, _text(r"^\s*[0-9]{1,2}(\.[0-9])?\s*$"))
_CLASS: Schema = _or_filled({"enum": sorted(c.FAILURES)})


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


def array(items: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


_RULES: Schema = {
    "times": _or_filled(COUNT),
    "on": any_of(_CLASS, {"type": "array", "items": _CLASS}),
    "delay": _or_filled(_TIME),
}
_NAMES_OF_SIGNALS = "|".join(f"{name}|{name.lower()}" for name in sorted(field_groups.NAMES))
_SIGNAL: Schema = _text(rf"^(SIG|sig)?({_NAMES_OF_SIGNALS})$")
_WARN: Schema = _object({"signal": _or_filled(_SIGNAL), "before": _or_filled(_TIME)})
_RETRIES: Schema = any_of(COUNT, with_on(_object(_RULES)))
_ENV: Schema = {
    "type": "object",
    "propertyNames": {"not": {"enum": sorted(c.MASKS)}, "pattern": r"^[^\s=]+$"},
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
_FOREACH: Schema = any_of(
    TEXT,
    array(TEXT),
    *(_object({kind: TEXT}, (kind,)) for kind in ("lines", "csv", "fasta")),
    _object({"values": array(SCALAR)}, ("values",)),
)
_RULE: Schema = {"type": "object", "minProperties": 1, "additionalProperties": SCALAR}
_BOUNDS: Schema = {"type": "array", "minItems": 2, "maxItems": 2, "items": SCALAR}
_DISTRIBUTIONS: tuple[Schema, ...] = (
    *({kind: _BOUNDS} for kind in sampling.KINDS),
    {"choice": array(SCALAR)},
)
_MATRIX: Schema = {
    "type": "object",
    "minProperties": 1,
    "properties": {"exclude": any_of(_RULE, {"type": "array", "items": _RULE})},
    "propertyNames": {"not": {"enum": sorted(RESERVED)}},
    "additionalProperties": any_of(
        SCALAR, array(SCALAR), *(_object(one, tuple(one)) for one in _DISTRIBUTIONS)
    ),
}
_SAMPLE: Schema = any_of(SOME, _object({"n": SOME, "seed": COUNT}, ("n",)))
_LADDER: Schema = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"not": {"enum": sorted(RESERVED)}},
    "additionalProperties": {"type": "array", "minItems": 2, "items": SCALAR},
}
_CODES: Schema = any_of(COUNT, PLACEHOLDER, array(_or_filled(COUNT)))
_FUNCTION: Schema = _text(":")
_LIMITS: Schema = {
    "items": _or_filled(SOME),
    "memory": _or_filled(_SIZE),
    "load_timeout": _or_filled(_TIME),
}
_WORKER: Schema = any_of(
    _FUNCTION,
    _object({"function": _FUNCTION, "load": _FUNCTION, **_LIMITS}, ("function",)),
    _object({"run": array(SCALAR), **_LIMITS}, ("run",)),
)
_READY: Schema = _text(r"^(tcp:|https?://|\{\{)")
_SERVICE: Schema = _object({"ready": _READY, "ready_within": _TIME}, ("ready",))

_MODULE: Schema = _text(r"^[A-Za-z_][\w.]*$")
_MODULES: Schema = any_of(_text(r"^\s*[^\s-]"), array(_or_filled(_text(r"^[^\s-]\S*$"))))
_PRELOAD: Schema = any_of({"type": "boolean"}, _MODULE, array(_MODULE))
NULL: Schema = {"type": "null"}
_MOUNT: Schema = any_of(
    TEXT,
    _object({"source": TEXT, "target": _text(r"^/|\{\{"), "read_only": _BOOLEAN}, ("source",)),
)
_USER: Schema = any_of(
    {"enum": ["caller", "image"]}, {"type": "integer", "minimum": 0}, _text(r"^[0-9]+(:[0-9]+)?$")
)
_CONTAINER: Schema = any_of(
    _text(r"\S"),
    _object(
        {
            "image": _text(r"\S"),
            "engine": {"enum": list(containers.ENGINES)},
            "mounts": any_of(_MOUNT, {"type": "array", "items": _MOUNT}),
            "args": any_of({"type": "string"}, {"type": "array", "items": SCALAR}),
            "user": _or_filled(_USER),
            "pull": {"enum": list(containers.PULLS)},
        },
        ("image",),
    ),
)
_SETTINGS: Schema = {
    **{key: any_of(TEXT, NULL) for key in ("partition", "account", "qos", "gres")},
    "extra": any_of(LIST, NULL),
}
ENGINE: Schema = _object({"slurm": any_of(_object(_SETTINGS), NULL)})

# ── the fields ──────────────────────────────────────────────────────────────────────────────────

_WORD = Kind(c.not_empty, TEXT)
_SPAN = Kind(c.each(v.positive_duration), _TIME)
_FLAG = Kind(c.each(v.boolean), _BOOLEAN)
_NAMES = Kind(c.texts, LIST, defers=False)


def _choice(*words: str) -> Kind:
    return Kind(c.each(lambda text: v.choice(text, *words)), {"enum": list(words)})


DEFAULTS: Mapping[str, Kind] = {
    "gpus": Kind(c.integer_field(0, "how many cards: 0, 1, 2 ..."), COUNT),
    "gpu_memory": Kind(c.each(c.gpu_memory), any_of(_SIZE, {"const": c.AUTO})),
    "card": Kind(c.each(v.glob_of_names), TEXT),
    "compute": Kind(c.each(v.compute_capability), _COMPUTE),
    "per_gpu": Kind(c.integer_field(1, "how many jobs share a card: 1, 2 ..."), SOME),
    "share": _FLAG,
    "mps": _FLAG,
    "cpus": Kind(c.integer_field(1, "how many CPUs: 1, 2 ..."), SOME),
    "memory": Kind(c.each(parse_size), _SIZE),
    "uses": Kind(c.texts, LIST),
    "cwd": _WORD,
    "env": Kind(c.env, _ENV, defers=False),
    "env_file": _WORD,
    "python": _WORD,
    "venv": _WORD,
    "conda": _WORD,
    "modules": Kind(field_groups.modules, _MODULES),
    "container": Kind(containers.container, _CONTAINER),
    "shell": Kind(c.shell, LIST),
    "timeout": _SPAN,
    "idle_timeout": _SPAN,
    "gpu_idle": _SPAN,
    "grace": Kind(c.each(parse_span), _TIME),
    "warn": Kind(field_groups.warn, _WARN),
    "preemptible": _FLAG,
    "retries": Kind(c.retries, _RETRIES),
    "not_before": Kind(c.each(v.moment), _MOMENT),
    "outputs": _NAMES,
    "success_codes": Kind(c.codes, _CODES),
    "priority": Kind(c.integer_field(-(10**12), "a whole number, higher is earlier"), _WHOLE),
    "cost": Kind(c.each(v.number), _NUMBER),
    "visible": _choice("index", "uuid"),
    "isolation": _choice("env", "strict"),
    "affinity": _choice("card", "none"),
    "explain": _FLAG,
    "preload": Kind(c.preload, _PRELOAD),
    "ladder": Kind(ladder, _LADDER, defers=False),
    "inherit_ranks": _FLAG,
    "engine": Kind(_engine, ENGINE, defers=False),
}
"""What `defaults:` may hold: the fields that make sense for many jobs at once."""

JOB: Mapping[str, Kind] = {
    **DEFAULTS,
    "name": Kind(c.not_empty, TEXT, defers=False),
    "run": Kind(c.run, any_of(TEXT, array(SCALAR)), defers=False),
    "worker": Kind(field_groups.worker, _WORKER),
    "foreach": Kind(foreach, _FOREACH, defers=False),
    "batch": Kind(c.integer_field(1, "how many items a job: 1, 2 ..."), SOME, defers=False),
    "matrix": Kind(matrix, _MATRIX, defers=False),
    "sample": Kind(sampling.sample, _SAMPLE, defers=False),
    "needs": _NAMES,
    "after": _NAMES,
    "first": Kind(c.each(v.boolean), _BOOLEAN, defers=False),
    "service": Kind(c.service, _SERVICE, defers=False),
}
"""A job as it stands in the file."""

DEFAULT_FIELDS = tuple(DEFAULTS)
FIELDS = tuple(JOB)
