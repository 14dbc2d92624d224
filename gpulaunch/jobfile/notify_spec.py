"""Reads `notify:`: whom a run tells, and when. Checks the form alone, and sends nothing.

An address is a secret, wherever it stands: no message here, and no `repr`, holds one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.convert import integer_field, keys, run, texts, with_on
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted, spell
from gpulaunch.jobfile.placeholders import RESERVED, numbers
from gpulaunch.jobfile.suggest import did_you_mean, shorten
from gpulaunch.jobfile.tree import Path, Plain

OCCASIONS = ("finish", "first_failure", "paused", "gpu_idle")
"""The events that `on:` may name; without `on:`, all of them."""
KEYS = ("to", "run", "on", "every")
FROM_ENV = "env:"
MAX_TARGETS = 100

_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*")
_WITH_HOST = frozenset({"mailto", "mailtos", "json", "jsons", "http", "https", "xml", "xmls"})
"""Schemes of addresses whose host is no secret; others have tokens in its place."""
_OPEN = frozenset({"dbus", "gnome", "syslog"})
_LIKE_A_TOKEN = re.compile(r"(?=[^/?&=]*[0-9])(?=[^/?&=]*[A-Za-z])[\w.~+%-]{12,}")
_EXPECTED = "{to: ADDRESS} or {run: COMMAND}, or a list of such"


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to tell: at an address (`to`), or through a command (`run`); the other is None.

    `to` may be `env:NAME`, the variable of the caller's environment that holds the address.
    `on` are names of OCCASIONS; `every` so many failed jobs as well. `path` leads to it in the
    file.
    """

    path: Path
    to: str | None = field(default=None, repr=False)
    run: str | tuple[str, ...] | None = field(default=None, repr=False)
    on: frozenset[str] = frozenset(OCCASIONS)
    every: int | None = None

    @property
    def variable(self) -> str | None:
        """The variable that holds the address."""
        named = self.to is not None and self.to.startswith(FROM_ENV)
        return self.to.removeprefix(FROM_ENV) if named and self.to else None

    def address(self, environ: Mapping[str, str]) -> str | None:
        """Return the address to tell; None for a command, and for a variable that is not set."""
        return environ.get(self.variable) if self.variable else self.to

    @property
    def name(self) -> str:
        """The target in words, without its secret: `notify[0] (mailto://example.org/…)`."""
        return f"{spell(self.path)} ({self._shown})"

    @property
    def _shown(self) -> str:
        if self.to is not None:
            return self.to if self.variable else redacted(self.to)
        first = self.run if isinstance(self.run, str) else (self.run or ("",))[0]
        word = first.split(maxsplit=1)[0]
        return shorten(word) if "=" not in word else "a command"


def redacted(address: str) -> str:
    """Return an address without its secret: `mailto://example.org/…`, `slack://…`."""
    scheme = address.partition("://")[0].lower()
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        host = ""
    return f"{scheme}://{host}/…" if host and scheme in _WITH_HOST else f"{scheme}://…"


def secret_in(address: str) -> bool:
    """Tell whether an address in the file looks like a secret."""
    scheme, _, rest = address.partition("://")
    if scheme.lower() in _OPEN or address.startswith(FROM_ENV):
        return False
    login = rest.partition("/")[0].rpartition("@")[0]
    if scheme.lower() not in _WITH_HOST or ":" in login:
        return True
    return bool(_LIKE_A_TOKEN.search(rest.partition("/")[2])) or "pass=" in rest


def targets(value: Plain) -> tuple[Target, ...]:
    """Return the targets of `notify:`. Raises FieldError with all that is wrong."""
    if isinstance(value, dict):
        return (_target(("notify",), value),)
    if not isinstance(value, list) or not value:
        raise FieldError(f"expected {_EXPECTED}, found {_kind(value)}")
    if len(value) > MAX_TARGETS:
        raise FieldError(f"expected at most {MAX_TARGETS}, found {len(value):,}")
    gather = ErrorCollector()
    found = [gather.take((i,), partial(_target, ("notify", i)), e) for i, e in enumerate(value)]
    gather.done()
    return tuple(found)


def _target(path: Path, value: Plain) -> Target:
    if not isinstance(value, dict):
        raise FieldError(f"expected {_EXPECTED}, found {_kind(value)}")
    value, gather = with_on(value), ErrorCollector()
    keys(value, KEYS, gather)
    given = {key: item for key, item in value.items() if item is not None}
    if "to" in given and "run" in given:
        why = "to: and run: exclude each other; give each an entry of its own"
        gather.bads.append(FieldError(why))
    elif not ("to" in given or "run" in given):
        gather.bads.append(FieldError("to: (an address) or run: (a command) is missing"))

    made = Target(
        path,
        gather.part(given, "to", _address),
        gather.part(given, "run", _command),
        gather.part(given, "on", _occasions, frozenset(OCCASIONS)),
        gather.part(given, "every", integer_field(1, "after how many failed jobs: 1, 2 ...")),
    )
    if not made.on and "every" not in given:
        why = f"expected at least one of {', '.join(OCCASIONS)}, or every: N beside it"
        gather.bads.append(FieldError(why, ("on",)))
    gather.done()
    return made


def _address(value: Plain) -> str:
    """Return an error that does not repeat the value, which may be a token."""
    expected = (
        "expected an address as Apprise has them, like mailto://user:password@host or"
        " slack://..., an http(s):// URL, or env:NAME"
    )
    if not isinstance(value, str):
        raise FieldError(f"{expected}; found {_kind(value)}")
    if value.startswith(FROM_ENV):
        if not _VARIABLE.fullmatch(value):
            raise FieldError("expected env: and a variable's name, like env:NTFY_URL")
        return value
    _no_placeholder(value)
    if not _ADDRESS.fullmatch(value):
        raise FieldError(expected)
    return value


def _command(value: Plain) -> str | tuple[str, ...]:
    command = run(value)
    if isinstance(command, str):
        _no_placeholder(command)
    else:
        converted(_no_placeholder, command)
    return command


def _no_placeholder(text: str) -> None:
    for number, name in numbers(text):
        if name in RESERVED:
            raise FieldError(
                f"{{{{{name}}}}} is a job's: it is not filled here; a command finds what it needs"
                " in its environment and on its standard input",
                number=number,
            )


def _occasions(value: Plain) -> frozenset[str]:
    return frozenset(converted(_occasion, texts(value)))


def _occasion(name: str) -> str:
    if name not in OCCASIONS:
        raise FieldError(
            f"expected one of {', '.join(OCCASIONS)}, found {v.found(name)}"
            f"{did_you_mean(name, OCCASIONS)}"
        )
    return name


def _kind(value: Plain) -> str:
    return "text" if isinstance(value, str) else v.found(value)
