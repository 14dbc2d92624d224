"""Converters of a field's plain value (text, lists, mappings) to its meaning; raise FieldError.

Each says what it expected and what it found. Which field uses which is in `fields`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from gpulaunch.base.text import parse_size, parse_span
from gpulaunch.core.model import RetryPolicy, Service
from gpulaunch.core.retry import POLICIES
from gpulaunch.core.template import Text
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted
from gpulaunch.jobfile.placeholders import compile_raw
from gpulaunch.jobfile.suggest import did_you_mean, did_you_mean_key
from gpulaunch.jobfile.tree import Plain
from gpulaunch.jobfile.values import check_ready, found, integer, shell_words

Convert: TypeAlias = Callable[[Any], Any]

_VARIABLE = re.compile(r"[^\s=\0]+")

# fmt: off
MASKS = frozenset({
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "ASCEND_RT_VISIBLE_DEVICES",
})
# fmt: on
"""Variables that choose cards, and that gpulaunch alone sets."""
FAILURES = frozenset(POLICIES)
"""The failure classes of an attempt's end, which `retries: {on:}` may name."""


def scalar(value: Plain, what: str = "one value") -> str:
    if not isinstance(value, str):
        raise FieldError(f"expected {what}, found {found(value)}")
    return value


AUTO = "auto"
"""What `gpu_memory:` says where it is to be learned."""


def gpu_memory(text: str) -> Any:
    """Return bytes, or AUTO."""
    return AUTO if text.strip().lower() == AUTO else parse_size(text)


def each(convert: Callable[[str], Any]) -> Convert:
    return lambda value: convert(scalar(value))


def texts(value: Plain) -> tuple[str, ...]:
    """Return a list of scalars; a scalar alone becomes a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise FieldError(f"expected a list, found {found(value)}")
    return tuple(converted(not_empty, value))


def mapping(value: Plain, known: tuple[str, ...], what: str) -> dict[str, Plain]:
    if not isinstance(value, dict):
        raise FieldError(f"expected {what}, found {found(value)}")
    gather = ErrorCollector()
    keys(value, known, gather)
    gather.done()
    return value


def keys(value: dict[str, Plain], known: tuple[str, ...], gather: ErrorCollector) -> None:
    """Collect an error for each key that is not among `known`; does not stop at the first."""
    gather.bads += [
        FieldError(unknown_key(key, known), (key,), key=True) for key in value if key not in known
    ]


def with_on(value: dict[str, Plain]) -> dict[str, Plain]:
    """Return the mapping with its key `on` restored, which YAML 1.1 reads as true."""
    if "on" in value:
        return value
    return {"on" if key in ("true", "True") else key: item for key, item in value.items()}


def unknown_key(key: str, known: tuple[str, ...]) -> str:
    return f"unknown key{did_you_mean_key(key, known)} (known: {', '.join(sorted(known))})"


def integer_field(least: int, what: str) -> Convert:
    return each(lambda text: integer(text, least, what))


def not_empty(value: Plain) -> str:
    text = scalar(value)
    if not text.strip():
        raise FieldError("expected a value, found an empty one")
    return text


def shell(value: Plain) -> tuple[str, ...]:
    if isinstance(value, str):
        return shell_words(value)
    words = texts(value)
    if not words:
        raise FieldError("expected a shell like bash or [zsh, -c], found an empty list")
    return words


def preload(value: Plain) -> tuple[str, ...]:
    """Return names of modules; `auto` alone: those that the script imports; `no`: none."""
    if value in ("no", "off", "false", "No", "Off", "False"):
        return ()
    names = texts(value)
    if not names:
        raise FieldError("expected modules like [torch, igfold], or auto, found an empty list")
    converted(_module, names)
    if "auto" in names and len(names) > 1:
        raise FieldError("expected modules like [torch, igfold], or auto alone; found both")
    return names


def _module(name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise FieldError(f"expected the name of a module like torch, found {found(name)}")


def codes(value: Plain) -> frozenset[int]:
    given = texts(value)
    if not given:
        raise FieldError("expected exit codes like [0], found an empty list")
    return frozenset(converted(_code, given))


def _code(text: str) -> int:
    code = integer(text, 0, "an exit code from 0 to 255")
    if code > 255:
        raise FieldError(f"expected an exit code from 0 to 255, found {found(text)}")
    return code


def retries(value: Plain) -> RetryPolicy:
    if isinstance(value, str):
        return RetryPolicy(times=integer(value, 0, "how many retries"))
    if not isinstance(value, dict):
        what = "a number, or {times: 2, on: [gpu_oom], delay: 30s}"
        raise FieldError(f"expected {what}, found {found(value)}")
    given, gather = with_on(value), ErrorCollector()
    keys(given, ("times", "on", "delay"), gather)
    times = gather.take(("times",), integer_field(0, "how many retries"), given.get("times", "1"))
    on = gather.take(("on",), _classes, given.get("on", []))
    delay = gather.take(("delay",), each(parse_span), given.get("delay", "0"))
    gather.done()
    return RetryPolicy(times, on, delay)


def _classes(value: Plain) -> frozenset[str]:
    return frozenset(converted(_class, texts(value)))


def _class(name: str) -> str:
    if name not in FAILURES:
        raise FieldError(
            f"unknown failure class {found(name)}{did_you_mean(name, FAILURES)}"
            f" (known: {', '.join(sorted(FAILURES))})"
        )
    return name


def env(value: Plain) -> dict[str, str | None]:
    if not isinstance(value, dict):
        raise FieldError(f"expected variables like {{HF_HOME: /data/hf}}, found {found(value)}")
    gather = ErrorCollector()
    for key, item in value.items():
        if not _is_variable(key):
            gather.take((), check_variable, key)
        if not isinstance(item, str):
            gather.take((key,), _variable, item)
    gather.done()
    return value  # type: ignore[return-value]


@lru_cache(10_000)
def _is_variable(name: str) -> bool:
    # Hundreds of thousands of jobs set the same few variables.
    return name not in MASKS and _VARIABLE.fullmatch(name) is not None


def _variable(value: Plain) -> None:
    if value is not None and not isinstance(value, str):
        raise FieldError(f"expected text, or null to remove it, found {found(value)}")


def check_variable(name: str) -> None:
    if name in MASKS:
        raise FieldError(
            f"{name} cannot be set here: gpulaunch sets it to the cards that the job was given,"
            " another value would put it on somebody else's; use gpus:",
            (name,),
            key=True,
        )
    if not _VARIABLE.fullmatch(name):
        raise FieldError(f"expected a variable's name, found {found(name)}", (name,), key=True)


def run(value: Plain) -> str | tuple[str, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise FieldError("expected a command, found an empty one")
        return value
    if not isinstance(value, list):
        raise FieldError(f"expected a command (a string or a list), found {found(value)}")
    if not value:
        raise FieldError("expected a command, found an empty list")
    words = tuple(converted(_argument, value))
    if not words[0]:
        raise FieldError("expected a program, found an empty one", (0,))
    return words


def _argument(value: Plain) -> str:
    if not isinstance(value, str):
        raise FieldError(f"expected one argument, found {found(value)}; quote it")
    return value


def service(value: Plain) -> Service:
    given = mapping(value, ("ready", "ready_within"), "{ready: tcp:{{port}}} or a URL")
    gather = ErrorCollector()
    if "ready" not in given:
        raise FieldError("ready: is missing: tcp:{{port}} or http://127.0.0.1:{{port}}/...")
    ready = gather.take((), _address, given["ready"], "")
    within = gather.part(given, "ready_within", _within, Service("").ready_within)
    gather.done()
    return Service(ready, within)


def _address(value: Plain) -> Text:
    ready = compile_raw(scalar(value, "tcp:{{port}} or a URL"))
    check_ready(ready)
    return ready


def _within(value: Plain) -> float:
    seconds = parse_span(scalar(value, "a time like 10m"))
    if seconds <= 0:
        raise ValueError("expected a time longer than 0, like 10m")
    return seconds


UNFIT = re.compile("[/\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def run_name(value: Plain) -> str:
    """Return the run's name, which must be fit for a directory."""
    text = scalar(value)
    if not text.strip() or text.startswith((".", "-")) or UNFIT.search(text):
        raise FieldError(
            f"expected a name for a directory, without / and leading ., found {found(text)}"
        )
    if len(text.encode()) > 200:
        raise FieldError("expected a name of at most 200 bytes")
    return text


def clean_name(text: str) -> str:
    """Return a run's name made of a file's."""
    return UNFIT.sub("_", text).lstrip(".-")[:100]
