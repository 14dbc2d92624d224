"""Fields of single jobs that a person set over what their definition says: `set JOB timeout=4h`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.base.text import clip
from gpulaunch.core.model import Demand, Job
from gpulaunch.jobfile import tree
from gpulaunch.jobfile.fields import JOB, Deferred
from gpulaunch.jobfile.mistakes import FieldError, as_field_error
from gpulaunch.jobfile.needs import Index, Pattern, Resolver, pattern_of
from gpulaunch.jobfile.suggest import did_you_mean

_MAX_TYPED = 1 << 17
"""Characters of a value as typed; no argument of a command may have more."""


_MAX_SHOWN = 100
"""Characters of a value as typed that an error repeats."""


NONE = frozenset({"none", "null", "~"})
"""How a person says that a job is to have no timeout, no needs."""


def with_settings(job: Job, fields: Mapping[str, str], names: Collection[str]) -> Job:
    """Return the job with these fields (`set JOB timeout=4h`) over its own; empty: none is set.

    `names` are those of all jobs, which `needs` may name. Raises UsageError with every mistake.
    """
    wrong: list[str] = []
    for name, typed in fields.items():
        if not typed:
            continue
        try:
            if name not in _SET:
                raise FieldError(f"cannot be set (what can: {', '.join(_SET)})")
            if len(typed) > _MAX_TYPED:
                raise FieldError(f"expected at most {_MAX_TYPED:,} characters")
            job = _SET[name](job, _meaning(name, typed), names)
        except ValueError as error:
            bad = as_field_error(error)
            wrong += [f"{name}={clip(typed, _MAX_SHOWN)}: {one.message}" for one in bad.each()]
    if wrong:
        raise UsageError("\n".join(wrong))
    return job


def pair_of(word: str) -> tuple[str, str]:
    """Return field and text of `timeout=4h`. Raises UsageError for what cannot be set."""
    field, equals, typed = word.partition("=")
    known = ", ".join(_SET)
    if field not in _SET:
        near = did_you_mean(field, tuple(_SET)) if equals else ""
        what = f"{field} cannot be set" if field in JOB else f"{word}: expected FIELD=VALUE"
        raise UsageError(f"{what}{near} (what can: {known})")
    if not equals:
        raise UsageError(f"{field}: expected {field}=VALUE, or {field}= for the job file's own")
    return field, typed


@lru_cache(maxsize=32)  # a hundred thousand jobs may be set at once
def _meaning(field: str, typed: str) -> Any:
    if field in ("timeout", "needs") and typed in NONE:
        return None
    if field == "needs" and not typed.startswith("["):
        return JOB[field].convert(typed.split(","))
    plain: Any = typed
    if typed[0] in "[{":
        try:
            plain = tree.plain_value(field, typed)
        except JobFileError as error:
            example = "expected one value, or YAML like {times: 2, on: [timeout]}"
            raise FieldError(f"{example}: {error.found[0].message}") from None
    value = JOB[field].convert(plain)
    if isinstance(value, Deferred):
        raise FieldError("a placeholder has no value here: the job is expanded already")
    return value


def _needs(job: Job, words: tuple[str, ...] | None, names: Collection[str]) -> Job:
    patterns: tuple[Pattern, ...] = tuple(pattern_of(word, {}, str) for word in words or ())
    found = Resolver(Index(names)).names(job.name, patterns) if patterns else ()
    return replace(job, needs=found)


def _gpus(job: Job, count: int, names: Collection[str]) -> Job:
    demand = replace(job.demand, gpus=count)
    if count > 1 and demand.mps:
        raise FieldError("mps: is for jobs of one card")
    if count > 1 and demand.kind is not None:
        raise FieldError("its gpu_memory: is learned, which only that of jobs with one card is")
    if not count:
        plain = Demand(gpus=0, cpus=demand.cpus, uses=demand.uses, worker=demand.worker)
        demand = replace(plain, memory=demand.memory)
    return replace(job, demand=demand)


def _memory(job: Job, memory: int, names: Collection[str]) -> Job:
    return replace(job, demand=replace(job.demand, memory=memory))


def _own(field: str) -> Callable[[Job, Any, Collection[str]], Job]:
    return lambda job, value, names: replace(job, **{field: value})


_SET: Mapping[str, Callable[[Job, Any, Collection[str]], Job]] = {
    "priority": _own("priority"),
    "timeout": _own("timeout"),
    "retries": _own("retry"),
    "gpus": _gpus,
    "memory": _memory,
    "needs": _needs,
}
"""The fields that can be set, and how each changes a job."""


SETTABLE = tuple(_SET)
