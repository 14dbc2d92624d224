"""Reads `warn:` and checks what it and `preemptible:` stand beside.

warn: {signal: USR2, before: 3m}
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

from gpulaunch.core.model import WarnPolicy
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import keys, scalar
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError
from gpulaunch.jobfile.suggest import did_you_mean
from gpulaunch.jobfile.tree import Plain
from gpulaunch.text import span

_EXPECTED = "{signal: USR2, before: 3m}"
_UNHEARD = ("KILL", "STOP")
NAMES = {one.name.removeprefix("SIG"): int(one) for one in signal.Signals}
"""The signals that a job may be warned by: all but those that no program can handle."""
for _name in _UNHEARD:
    del NAMES[_name]


def warn(value: Plain) -> WarnPolicy:
    if not isinstance(value, dict):
        raise FieldError(f"expected {_EXPECTED}, found {v.found(value)}")
    gather = ErrorCollector()
    keys(value, ("signal", "before"), gather)
    part = partial(gather.part, value)
    number = part("signal", _signal, NAMES["USR2"])
    before = part("before", lambda plain: v.positive_duration(scalar(plain)), 180.0)
    gather.done()
    return WarnPolicy(number, before)


def _signal(value: Plain) -> int:
    name = scalar(value, "a signal's name like USR2")
    short = name.upper().removeprefix("SIG")
    if short in NAMES:
        return NAMES[short]
    if short in _UNHEARD:
        raise FieldError(f"no program can handle {short}: choose another, like USR2")
    if name.isdigit():
        known = [each for each, number in NAMES.items() if str(number) == name]
        near = f"; did you mean {known[0]}?" if known else ""
        raise FieldError(f"expected a signal's name, found {v.found(name)}{near}")
    raise FieldError(
        f"expected a signal's name like USR2, found {v.found(name)}{did_you_mean(short, NAMES)}"
    )


def check(fields: Mapping[str, Any], typed: bool) -> None:
    """Check what a job's `warn:` and `preemptible:` stand beside. Raises FieldError.

    `typed`: `preemptible:` stands at the job itself, and not in `defaults:`.
    """
    gather = ErrorCollector()
    gather.take(("warn",), _check_warn, fields)
    gather.take(("preemptible",), partial(_check_preemptible, typed), fields)
    gather.done()


def _check_warn(fields: Mapping[str, Any]) -> None:
    told, timeout = fields.get("warn"), fields.get("timeout")
    if not isinstance(told, WarnPolicy):
        return
    if "worker" in fields:
        raise FieldError(
            "a worker's process stays from job to job, and a signal would be for whichever it has"
            " then: leave it out, or write run:"
        )
    if isinstance(timeout, float) and told.before >= timeout:
        raise FieldError(
            f"expected a time shorter than the timeout of {span(timeout)},"
            f" found {span(told.before)}",
            ("before",),
        )


def _check_preemptible(typed: bool, fields: Mapping[str, Any]) -> None:
    if fields.get("preemptible") is not True:
        return
    if "service" in fields:
        raise FieldError("a service is there for the jobs that need it: make those preemptible")
    if typed and fields.get("gpus") == 0:
        raise FieldError("a job without cards has none to give up: leave it out")
