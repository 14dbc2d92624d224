"""Checks services: addresses that cannot be probed, names that collide, endless waits.

A service starts when the first job that needs it asks, and ends when the last one is settled; so
nothing that such a job waits for may itself wait for the service's end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpulaunch.core.model import address_variable
from gpulaunch.core.template import Text, parts_of, shown
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.needs import Names
from gpulaunch.jobfile.values import found

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

    A job that comes after a service waits for its end, and that end waits for the ends of all
    that need the service. Tuples that many jobs share stay shared.
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
