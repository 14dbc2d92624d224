"""Converts scalars of a job file, typed as text, to values. Raises ValueError, one line each.

Also checks services: addresses that cannot be probed, names that collide, endless waits.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping

from gpulaunch.base.localtime import parse_moment
from gpulaunch.base.text import parse_span, shortened
from gpulaunch.core.model import address_variable
from gpulaunch.core.template import Text, parts_of, shown
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.needs import Names

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CAPABILITY = re.compile(r"([0-9]{1,2})(?:\.([0-9]))?")
_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}

SHELLS = {
    "bash": ("-eo", "pipefail", "-c"),
    "zsh": ("-f", "-e", "-o", "pipefail", "-c"),
    "sh": ("-e", "-c"),
    "dash": ("-e", "-c"),
    "ash": ("-e", "-c"),
    "ksh": ("-e", "-c"),
    "mksh": ("-e", "-c"),
}
"""The shells whose quoting we know, and how each is called with a script."""


def found(value: object) -> str:
    """Return a found value for people, shortened."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    return shortened(value)


def integer(text: str, least: int, what: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) < least:
        raise ValueError(f"expected {what}, found {found(text)}")
    return int(text)


def number(text: str) -> float:
    """Return a finite number, 0 or more."""
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)) or float(text) < 0:
        raise ValueError(f"expected a number, 0 or more, found {found(text)}")
    return float(text)


def boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ValueError(f"expected true or false, found {found(text)}")
    return value


def moment(text: str) -> str:
    """Return the text of a moment, which is one whatever the time is. Raises ValueError."""
    parse_moment(text, 0.0)
    return " ".join(text.split())


def positive_duration(text: str) -> float:
    seconds = parse_span(text)
    if seconds <= 0:
        raise ValueError("expected a duration longer than 0; leave the field out for no limit")
    return seconds


def choice(text: str, *words: str) -> str:
    if text not in words:
        raise ValueError(f"expected {' or '.join(words)}, found {found(text)}")
    return text


def glob_of_names(text: str) -> str:
    """Return a glob of cards' names, as typed but for spaces around it. Raises ValueError."""
    if not text.strip():
        raise ValueError('expected a glob of cards\' names like "*A100*", found nothing')
    return text.strip()


def compute_capability(text: str) -> tuple[int, int]:
    """Return a compute capability: (8, 0) for `8.0` and for `8`. Raises ValueError."""
    match = _CAPABILITY.fullmatch(text.strip())
    if not match or not int(match[1]):
        raise ValueError(f"expected a compute capability like 8.0, found {found(text)}")
    return int(match[1]), int(match[2] or 0)


def shell_words(text: str) -> tuple[str, ...]:
    """Return the arguments to which a script is appended: `sh` becomes `sh -e -c`."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"expected a shell like bash or [zsh, -c], found {found(text)}") from error
    if not words:
        raise ValueError("expected a shell like bash or [zsh, -c], found nothing")
    if len(words) > 1:
        return words
    return words + SHELLS.get(words[0].rsplit("/", 1)[-1], ("-c",))


def dialect(shell: tuple[str, ...]) -> str | None:
    """Return which of the known shells it is, also after `env` and the like."""
    for word in shell:
        name = word.rsplit("/", 1)[-1]
        if name in SHELLS:
            return name
    return None


# ── Services ──────────────────────────────────────────────────────────────────────────────────────

_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[^\s/@]*")

_URL = re.compile(
    r"https?://([^\s/?#@]*@)?(\[[^\s/?#\]]+\]|[^\s/?#:@\[\]]+)(:(?P<port>[^\s/?#]*))?([/?#]\S*)?"
)

_END = "\0"
"""The mark of a service's end, before its name. No name can hold it."""


def check_ready(text: Text) -> None:
    """Check an address that is to be probed, whatever its placeholders are. Raises FieldError.

    `tcp:PORT`, `tcp:HOST:PORT` or `http(s)://HOST:PORT/...`; a placeholder counts as 1, which is
    a good host, port and number.
    """
    parts, where = parts_of(text), ("ready",)
    typed = shown(text)
    address = "".join(part if isinstance(part, str) else "1" for part in parts)
    expected = "expected tcp:{{port}}, tcp:HOST:{{port}} or http://HOST:{{port}}/..."
    if len(address) > 2000:
        raise FieldError("expected at most 2,000 characters", where)
    port = _port_of(address)
    if port is None:
        raise FieldError(f"{expected}, found {found(typed)}", where)
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        what = f"port {found(port)}" if port else "no port"
        raise FieldError(f"{expected}, found {what} in {found(typed)}", where)


def _port_of(address: str) -> str | None:
    """Return the port as written, empty without one; None if the text is no address."""
    if address.startswith("tcp:"):
        host, _, port = address[4:].rpartition(":")
        return port if _HOST.fullmatch(host) and _HOST.fullmatch(port) else None
    url = _URL.fullmatch(address)
    return (url.group("port") or "") if url else None


def same_addresses(services: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return services whose addresses share a variable: (name, the first such name, variable)."""
    first: dict[str, str] = {}
    clashes = []
    for name in services:
        variable = address_variable(name)
        if first.setdefault(variable, name) != name:
            clashes.append((name, first[variable], variable))
    return clashes


def with_ends(
    waits: Mapping[str, tuple[Names, Names]], services: frozenset[str]
) -> Mapping[str, tuple[Names, ...]]:
    """Return `waits` (job -> needs, after) with the ends of services as jobs of their own.

    A service starts when the first job that needs it asks, and ends when the last one is settled:
    nothing that such a job waits for may itself wait for the service's end. So a job that comes
    after a service waits for its end, and that end waits for the ends of all that need the service.
    Tuples that many jobs share stay shared.
    """
    ended: dict[int, Names] = {}
    serving: dict[int, Names] = {}
    dependants: dict[str, dict[str, None]] = {service: {} for service in services}
    graph: dict[str, tuple[Names, ...]] = {}
    for name, (needs, after) in waits.items():
        if id(after) not in ended:
            ended[id(after)] = _ends_in(after, services)
        if id(needs) not in serving:
            serving[id(needs)] = tuple(need for need in needs if need in services)
        for service in serving[id(needs)]:
            dependants[service][_END + name if name in services else name] = None
        graph[name] = (needs, ended[id(after)])
    for service, names in dependants.items():
        graph[_END + service] = ((service,), tuple(names))
    return graph


def _ends_in(names: Names, services: frozenset[str]) -> Names:
    if services.isdisjoint(names):
        return names
    return tuple(_END + name if name in services else name for name in names)


def is_end(name: str) -> bool:
    return name.startswith(_END)


def spell_end(name: str) -> str:
    return f"the end of {name[1:]}" if is_end(name) else name
