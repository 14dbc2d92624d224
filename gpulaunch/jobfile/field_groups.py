"""Fields that need more than a converter, and what identifies a job: its digest, its worker's key.

    modules: [gcc/13, cuda/12.4]
    warn: {signal: USR2, before: 3m}
    worker: fold.py:predict
    worker: {function:, load:, items:, memory:, load_timeout:} | {run: [...], ...}

Reads each field as typed, and checks what it and `preemptible:` stand beside. Opens no file.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from gpulaunch.base.text import parse_size, span
from gpulaunch.core.model import Container, Job, WarnPolicy, Worker
from gpulaunch.core.template import Template, Text
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import integer_field, keys, run, scalar
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted
from gpulaunch.jobfile.suggest import did_you_mean
from gpulaunch.jobfile.tree import Plain

_MODULE = re.compile(r"[^\s-]\S*")
_A_MODULE = "the name of a module like cuda/12.4"
_EXPECTED_MODULES = "modules like [gcc/13, cuda/12.4]"


def modules(value: Plain) -> tuple[str, ...]:
    """Return names of environment modules, in the order in which they are loaded.

    A text is read as behind `module load`. Raises FieldError.
    """
    names = value.split() if isinstance(value, str) else value
    if not names or not isinstance(names, list):
        raise FieldError(f"expected {_EXPECTED_MODULES}, found {v.found(value)}")
    return tuple(converted(_name, names))


def _name(value: Plain) -> str:
    name = scalar(value, _A_MODULE)
    if not _MODULE.fullmatch(name):
        raise FieldError(f"expected {_A_MODULE}, found {v.found(name)}")
    return name


def check_modules(fields: Mapping[str, Any], inherits: Callable[[str], bool]) -> None:
    """Raise FieldError for modules of a job that a preload server would fork.

    `inherits` tells of a field whether it comes from `defaults:`.
    """
    if not (fields.get("modules") and fields.get("preload")):
        return
    field, other = "preload", "modules"
    if inherits(field) and not inherits(other):
        field, other = other, field
    null = f", or write {other}: null in this job" if inherits(other) else ""
    raise FieldError(
        "modules: say which libraries a program finds when it starts, and a preload server starts"
        f" before any job: leave {field}: out{null}",
        (field,),
        key=True,
    )


# ── `warn:` and `preemptible:` ────────────────────────────────────────────────────────────────────

_EXPECTED_WARNING = "{signal: USR2, before: 3m}"
_UNHEARD = ("KILL", "STOP")
NAMES = {one.name.removeprefix("SIG"): int(one) for one in signal.Signals}
"""The signals that a job may be warned by: all but those that no program can handle."""
for _unheard in _UNHEARD:
    del NAMES[_unheard]


def warn(value: Plain) -> WarnPolicy:
    if not isinstance(value, dict):
        raise FieldError(f"expected {_EXPECTED_WARNING}, found {v.found(value)}")
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


def check_warning(fields: Mapping[str, Any], typed: bool) -> None:
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


# ── The digest of a job ───────────────────────────────────────────────────────────────────────────


def digest(job: Job, base: str = "") -> str:
    """Return 16 hex digits, which change if and only if what would be run changes.

    In it: the command and everything it finds around it, and what its success is measured by. Not
    in it: the name, its place in the file, when it may run, how often and for how long, and where
    the job file's directory, `base`, lies.
    """
    parts: list[Any] = [
        _digested_command(job),
        job.cwd,
        sorted((key, None if v is None else _plain(v)) for key, v in job.env.items()),
        [job.env_file, job.python, job.venv, job.conda],
        job.demand.gpus,
        [_plain(text) for text in job.outputs],
        sorted(job.success_codes),
        job.batch,
        [job.fasta.file, job.fasta.digest] if job.fasta else None,
        _plain(job.service.ready) if job.service else None,
        job.inherit_ranks,
    ]
    if job.ladder is not None:
        parts.append([job.ladder.names, job.ladder.steps])
    if job.demand.own_gpu:
        parts.append(["own_gpu", job.demand.own_gpu])
    if job.container is not None:
        parts.append(["container", *of_container(job.container)])
    if job.modules:
        parts.append(["modules", job.modules])
    if job.worker is not None:
        parts.append(_of_worker(job, job.worker))
    return hashlib.sha256(_rootless(json.dumps(parts), base).encode()).hexdigest()[:16]


def _rootless(text: str, base: str) -> str:
    """Return the text with NUL, which no JSON text holds, in place of the directory `base`."""
    directory = json.dumps(base.rstrip("/"))[1:-1]
    if not directory:
        return text
    return text.replace(f"{directory}/", "\0/").replace(f'{directory}"', '\0"')


def of_container(container: Container) -> list[Any]:
    """Return what a container says of what runs; not when its image is pulled."""
    mounts = [[mount.source, mount.target, mount.read_only] for mount in container.mounts]
    return [container.image, container.engine, mounts, container.args, container.user]


def _of_worker(job: Job, worker: Worker) -> list[Any]:
    """Return the functions and the item, without its index, which a new file before it changes."""
    item = sorted((name, value) for name, value in job.item.items() if name != "index")
    return [worker.function, worker.load, item]


def _digested_command(job: Job) -> list[Any]:
    if isinstance(job.run, tuple):
        return [_plain(text) for text in job.run]
    return [list(job.shell), _plain(job.run)]


def _plain(text: Text) -> Any:
    if isinstance(text, str):
        return text
    return [p if isinstance(p, str) else [p.name, p.quoting] for p in text.parts]


# ── `worker:` ─────────────────────────────────────────────────────────────────────────────────────

KINDS = 256
"""Different workers of one entry at most; with more, each would load for a job or two."""

_KEYS = ("function", "load", "run", "items", "memory", "load_timeout")
_EXPECTED_WORKER = "FILE.py:function, package.module:function, or {function: ..., load: ...}"
_DOTTED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_FUNCTION = re.compile(rf"(?s:.+\.py)|{_DOTTED_NAME.pattern}")

Command: TypeAlias = tuple[str, ...]


def worker(value: Plain) -> Worker:
    """Convert the field's value; files stay as they were typed. Raises FieldError."""
    if isinstance(value, str):
        return Worker(_function(value))
    if not isinstance(value, dict):
        raise FieldError(f"expected {_EXPECTED_WORKER}, found {v.found(value)}")
    gather = ErrorCollector()
    keys(value, _KEYS, gather)
    gather.take((), _one_of_them, value)
    part = partial(gather.part, value)
    made = Worker(
        function=part("function", _function, ""),
        load=part("load", _function, ""),
        run=part("run", _command, ()),
        items=part(
            "items", integer_field(1, "after how many items it is replaced: 1, 2 ..."), None
        ),
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
    text = scalar(value, _EXPECTED_WORKER)
    place, colon, name = text.rpartition(":")
    if not colon or not _FUNCTION.fullmatch(place) or not _DOTTED_NAME.fullmatch(name):
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
    """Return the job with the key of its worker in its demand.

    The key is all that a process has for its whole life. Jobs of one key may follow each other in
    one process; what they do not share (timeouts, outputs, retries, tokens) is not in it.
    """
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
