"""Reads `worker:` as typed, and makes a job's worker of it.

    worker: fold.py:predict                       ─▶ Worker, and the key that its jobs share
    worker: {function:, load:, items:, memory:, load_timeout:} | {run: [...], ...}

The key is all that a process has for its whole life. Jobs of one key may follow each other in one
process; what they do not share (timeouts, outputs, retries, tokens) is not in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from gpulaunch.core.model import Job, Worker
from gpulaunch.core.template import Template
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import integer, keys, run, scalar
from gpulaunch.jobfile.digest import of_container
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError
from gpulaunch.jobfile.tree import Plain
from gpulaunch.text import parse_size

KINDS = 256
"""Different workers of one entry at most; with more, each would load for a job or two."""

_KEYS = ("function", "load", "run", "items", "memory", "load_timeout")
_EXPECTED = "FILE.py:function, package.module:function, or {function: ..., load: ...}"
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_FUNCTION = re.compile(rf"(?s:.+\.py)|{_NAME.pattern}")

Command: TypeAlias = tuple[str, ...]


def worker(value: Plain) -> Worker:
    """Convert the field's value; files stay as they were typed. Raises FieldError."""
    if isinstance(value, str):
        return Worker(_function(value))
    if not isinstance(value, dict):
        raise FieldError(f"expected {_EXPECTED}, found {v.found(value)}")
    gather = ErrorCollector()
    keys(value, _KEYS, gather)
    gather.take((), _one_of_them, value)
    part = partial(gather.part, value)
    made = Worker(
        function=part("function", _function, ""),
        load=part("load", _function, ""),
        run=part("run", _command, ()),
        items=part("items", integer(1, "after how many items it is replaced: 1, 2 ..."), None),
        memory=part("memory", lambda plain: parse_size(scalar(plain)), None),
        load_timeout=part("load_timeout", lambda plain: v.positive_duration(scalar(plain)), None),
    )
    gather.done()
    return made


def _one_of_them(given: Mapping[str, Plain]) -> None:
    if ("function" in given) == ("run" in given):
        found = "both" if "function" in given else "neither"
        raise FieldError(f"expected function: or run:, one of them; found {found}")
    if "load" in given and "run" in given:
        raise FieldError(
            "load: goes with function:; a program loads before it reads its first line"
        )


def _function(value: Plain) -> str:
    text = scalar(value, _EXPECTED)
    place, colon, name = text.rpartition(":")
    if not colon or not _FUNCTION.fullmatch(place) or not _NAME.fullmatch(name):
        raise FieldError(
            f"expected FILE.py:function or package.module:function, found {v.found(text)}"
        )
    return text


def _command(value: Plain) -> Command:
    if not isinstance(value, list):
        raise FieldError(
            f"expected a program and its arguments, [python, loop.py], found {v.found(value)}"
        )
    made = run(value)
    assert isinstance(made, tuple)
    return made


def file_of(function: str) -> str:
    """Return the file that a function is in; empty for one of a module."""
    place = function.rpartition(":")[0]
    return place if place.endswith(".py") else ""


def command_of(worker: Worker) -> Command:
    """Return the worker's program as a command, for people and for the lint."""
    if worker.run:
        return worker.run
    place = worker.function.rpartition(":")[0]
    return ("python", place) if place.endswith(".py") else ("python", "-m", place)


def check_env(job: Job) -> None:
    """Raise FieldError for a variable that varies by job: a program gets its variables once."""
    assert job.worker is not None
    for name, text in job.env.items() if job.worker.run else ():
        if isinstance(text, Template):
            raise FieldError(
                "its value changes from job to job, and the worker's program is started once: it"
                " finds it in each line that it reads",
                ("env", name),
            )


def with_key(job: Job) -> Job:
    """Return the job with the key of its worker in its demand."""
    made, demand = job.worker, job.demand
    assert made is not None
    parts: list[Any] = [
        [made.function, made.load, made.run, made.items, made.memory, made.load_timeout],
        sorted((k, None if isinstance(t, Template) else t or "") for k, t in job.env.items()),
        sorted(name for name, text in job.env.items() if text is None),
        [job.env_file, job.python, job.venv, job.conda],
        [demand.gpus, demand.gpu_memory, demand.per_gpu, demand.cpus, demand.share, demand.kind],
        [job.visible, job.isolation, job.inherit_ranks, job.explain],
        None if file_of(made.function) else job.cwd,
    ]
    if demand.memory:
        parts.append(["memory", demand.memory])
    if demand.mps:
        parts.append("mps")
    if job.container is not None:
        parts.append(["container", *of_container(job.container)])
    if job.modules:
        parts.append(["modules", job.modules])
    if demand.card_kind or job.affinity:
        parts.append([demand.card, demand.compute, job.affinity])
    if demand.own_gpu:
        parts.append(["own_gpu", demand.own_gpu])
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return replace(job, demand=replace(demand, worker=key))
