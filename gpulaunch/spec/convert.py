"""Converters: a field's plain value (text, lists, mappings) to what it means, or Bad.

Each says what it expected and what it found. Which field uses which is in `fields`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpulaunch.core.model import RetryPolicy
from gpulaunch.spec import values as v
from gpulaunch.spec.mistakes import Bad
from gpulaunch.spec.placeholders import NAME, RESERVED, compile_raw, names_in
from gpulaunch.spec.suggest import did_you_mean
from gpulaunch.spec.tree import Path, Plain

Convert: TypeAlias = Callable[[Any], Any]

MASKS = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ZE_AFFINITY_MASK",
        "ASCEND_RT_VISIBLE_DEVICES",
    }
)
FAILURES = frozenset(
    [
        "exit",
        "signal",
        "timeout",
        "idle_timeout",
        "not_started",
        "missing_output",
        "gpu_oom",
        "host_oom",
        "gpu_lost",
        "device_mismatch",
        "no_gpu_seen",
        "wrong_gpu",
        "disk_full",
        "lost",
        "gpu_busy",
        "assert",
        "crash",
        "driver",
        "wrong_arch",
        "port",
        "rate_limit",
        "shm",
        "secondary",
    ]
)


@dataclass(frozen=True, slots=True)
class ForEach:
    """`kind`: glob, values, lines, csv or fasta; `values`: the patterns, the values or the file."""

    kind: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    keys: Mapping[str, tuple[str, ...]]
    exclude: tuple[Mapping[str, str], ...] = ()


# ── converters: plain value -> meaning, or Bad ──────────────────────────────────────────────────


def scalar(value: Plain, what: str = "one value") -> str:
    if not isinstance(value, str):
        raise Bad(f"expected {what}, found {v.found(value)}")
    return value


def each(convert: Callable[[str], Any]) -> Convert:
    return lambda value: convert(scalar(value))


def texts(value: Plain) -> tuple[str, ...]:
    """A list of scalars; a scalar alone is a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise Bad(f"expected a list, found {v.found(value)}")
    for i, item in enumerate(value):
        if not isinstance(item, str):
            raise Bad(f"expected one value, found {v.found(item)}", (i,))
        if not item:
            raise Bad("expected a value, found an empty one", (i,))
    return tuple(value)  # type: ignore[arg-type]


def mapping(value: Plain, known: tuple[str, ...], what: str) -> dict[str, Plain]:
    if not isinstance(value, dict):
        raise Bad(f"expected {what}, found {v.found(value)}")
    for key in value:
        if key not in known:
            raise Bad(unknown_key(key, known), (key,), key=True)
    return value


def unknown_key(key: str, known: tuple[str, ...]) -> str:
    return f"unknown key{did_you_mean(key, known)} (known: {', '.join(sorted(known))})"


def integer(least: int, what: str) -> Convert:
    return each(lambda text: v.integer(text, least, what))


def not_empty(value: Plain) -> str:
    text = scalar(value)
    if not text.strip():
        raise Bad("expected a value, found an empty one")
    return text


def shell(value: Plain) -> tuple[str, ...]:
    if isinstance(value, str):
        return v.shell_words(value)
    words = texts(value)
    if not words:
        raise Bad("expected a shell like bash or [zsh, -c], found an empty list")
    return words


def codes(value: Plain) -> frozenset[int]:
    codes = texts(value)
    if not codes:
        raise Bad("expected exit codes like [0], found an empty list")
    found: set[int] = set()
    for i, code in enumerate(codes):
        where: Path = (i,) if isinstance(value, list) else ()
        try:
            found.add(v.integer(code, 0, "an exit code from 0 to 255"))
        except ValueError as error:
            raise Bad(str(error), where) from None
        if max(found) > 255:
            raise Bad(f"expected an exit code from 0 to 255, found {v.found(code)}", where)
    return frozenset(found)


def retries(value: Plain) -> RetryPolicy:
    if isinstance(value, str):
        return RetryPolicy(times=v.integer(value, 0, "how many retries"))
    known = ("times", "on", "delay")
    given = mapping(value, known, "a number, or {times: 2, on: [gpu_oom], delay: 30s}")
    times = _inside(given, "times", integer(0, "how many retries"), 1)
    on = _inside(given, "on", texts, ())
    for i, name in enumerate(on):
        if name not in FAILURES:
            raise Bad(
                f"unknown failure class {v.found(name)}{did_you_mean(name, FAILURES)}"
                f" (known: {', '.join(sorted(FAILURES))})",
                ("on", i) if isinstance(given["on"], list) else ("on",),
            )
    delay = _inside(given, "delay", each(v.duration), 0.0)
    return RetryPolicy(times, frozenset(on), delay)


def _inside(given: Mapping[str, Plain], key: str, convert: Convert, default: Any) -> Any:
    """A nested key's value, its mistakes naming the key."""
    if key not in given:
        return default
    try:
        return convert(given[key])
    except Bad as bad:
        raise Bad(bad.message, (key, *bad.path), bad.key) from None
    except ValueError as error:
        raise Bad(str(error), (key,)) from None


def foreach(value: Plain) -> ForEach:
    expected = "a glob, a list of globs, or one of values:, lines:, csv:, fasta:"
    if isinstance(value, str | list):
        patterns = texts(value)
        if not patterns:
            raise Bad(f"expected {expected}, found an empty list")
        for i, pattern in enumerate(patterns):
            _no_placeholder(pattern, (i,) if isinstance(value, list) else ())
        return ForEach("glob", patterns)
    given = mapping(value, ("values", "lines", "csv", "fasta"), expected)
    if len(given) != 1:
        raise Bad(f"expected {expected}; found {' and '.join(given) or 'nothing'}")
    ((kind, content),) = given.items()
    if kind == "values":
        if not isinstance(content, list) or not content:
            raise Bad("expected a list with at least one value", (kind,))
        for i, item in enumerate(content):
            if not isinstance(item, str):
                raise Bad(f"expected one value, found {v.found(item)}", (kind, i))
        return ForEach(kind, tuple(content))  # type: ignore[arg-type]
    if not isinstance(content, str) or not content:
        raise Bad(f"expected a file, found {v.found(content)}", (kind,))
    _no_placeholder(content, (kind,))
    return ForEach(kind, (content,))


def _no_placeholder(text: str, path: Path) -> None:
    if names_in(compile_raw(text)):
        raise Bad("placeholders do not work here: foreach is what gives them their values", path)


def matrix(value: Plain) -> Matrix:
    if not isinstance(value, dict) or not value:
        raise Bad(f"expected keys with lists like {{seed: [0, 1]}}, found {v.found(value)}")
    keys = {key: _axis(key, items) for key, items in value.items() if key != "exclude"}
    if not keys:
        raise Bad("expected a key with a list beside exclude:")
    return Matrix(keys, _exclude(value.get("exclude", []), keys))


def _axis(key: str, items: Plain) -> tuple[str, ...]:
    if not NAME.fullmatch(key):
        raise Bad("expected a name of letters, digits and _", (key,), key=True)
    check_free(key)
    items = [items] if isinstance(items, str) else items
    if not isinstance(items, list) or not items:
        raise Bad(f"expected a list of values, found {v.found(items)}", (key,))
    for i, item in enumerate(items):
        if not isinstance(item, str):
            raise Bad(f"expected one value, found {v.found(item)}", (key, i))
        if item in items[:i]:
            raise Bad(f"value {v.found(item)} twice", (key, i))
    return tuple(items)  # type: ignore[arg-type]


def check_free(name: str) -> None:
    """A column's or key's name must not be one that gpulaunch gives."""
    if name in RESERVED:
        raise Bad(f"the name {name} is reserved for {{{{{name}}}}}; choose another", (name,), True)


def _exclude(value: Plain, keys: Mapping[str, tuple[str, ...]]) -> tuple[Mapping[str, str], ...]:
    rules = [value] if isinstance(value, dict) else value
    if not isinstance(rules, list):
        raise Bad("expected a list like [{seed: 1}]", ("exclude",))
    for i, rule in enumerate(rules):
        where: Path = ("exclude", i) if isinstance(value, list) else ("exclude",)
        if not isinstance(rule, dict) or not rule:
            raise Bad(f"expected keys with values like {{seed: 1}}, found {v.found(rule)}", where)
        for key, item in rule.items():
            if key not in keys:
                raise Bad(unknown_key(key, tuple(keys)), (*where, key), key=True)
            if item not in keys[key]:
                raise Bad(
                    f"expected one of {', '.join(keys[key][:20])}, found {v.found(item)}",
                    (*where, key),
                )
    return tuple(rules)  # type: ignore[arg-type]


def env(value: Plain) -> dict[str, str | None]:
    if not isinstance(value, dict):
        raise Bad(f"expected variables like {{HF_HOME: /data/hf}}, found {v.found(value)}")
    for key, item in value.items():
        check_variable(key)
        if item is not None and not isinstance(item, str):
            raise Bad(f"expected text, or null to remove it, found {v.found(item)}", (key,))
    return value  # type: ignore[return-value]


def check_variable(name: str) -> None:
    if name in MASKS:
        raise Bad(
            f"{name} cannot be set here: gpulaunch sets it to the cards that the job was given,"
            " another value would put it on somebody else's; use gpus:",
            (name,),
            key=True,
        )
    if not re.fullmatch(r"[^\s=\0]+", name):
        raise Bad(f"expected a variable's name, found {v.found(name)}", (name,), key=True)


def run(value: Plain) -> str | tuple[str, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise Bad("expected a command, found an empty one")
        return value
    if not isinstance(value, list):
        raise Bad(f"expected a command (a string or a list), found {v.found(value)}")
    if not value:
        raise Bad("expected a command, found an empty list")
    for i, item in enumerate(value):
        if not isinstance(item, str):
            raise Bad(f"expected one argument, found {v.found(item)}; quote it", (i,))
    if not value[0]:
        raise Bad("expected a program, found an empty one", (0,))
    return tuple(value)  # type: ignore[arg-type]


def service(value: Plain) -> str:
    given = mapping(value, ("ready",), "{ready: tcp:{{port}}} or a URL")
    if "ready" not in given:
        raise Bad("ready: is missing: tcp:{{port}} or http://127.0.0.1:{{port}}/...")
    ready = scalar(given["ready"], "tcp:{{port}} or a URL")
    if not re.match(r"tcp:\S+$|https?://\S+$", re.sub(r"\{\{.*?\}\}", "0", ready)):
        raise Bad(f"expected tcp:{{{{port}}}} or http://..., found {v.found(ready)}", ("ready",))
    return ready


def isolation(value: Plain) -> str:
    text = scalar(value)
    if text == "strict":
        raise Bad("this version cannot isolate strictly yet; leave it out, or use env")
    return v.choice(text, "env")


UNFIT = re.compile("[/\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def run_name(value: Plain) -> str:
    """The run's name: it names a directory."""
    text = scalar(value)
    if not text.strip() or text.startswith((".", "-")) or UNFIT.search(text):
        raise Bad(
            f"expected a name for a directory, without / and leading ., found {v.found(text)}"
        )
    if len(text.encode()) > 200:
        raise Bad("expected a name of at most 200 bytes")
    return text


def clean_name(text: str) -> str:
    """A run's name made of a file's."""
    return UNFIT.sub("_", text).lstrip(".-")[:100]
