"""The paths that the configuration names: `~` and variables in them, and which of two counts."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping

from gpulaunch.config.model import CardSettings, Configuration
from gpulaunch.errors import Mistake

LEASE_DIR = "GPULAUNCH_LEASE_DIR"
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
"""A variable in a path: `$NAME` or `${NAME}`."""


class UnsetVariableError(ValueError):
    """A path names a variable that is not set."""


def home(environ: Mapping[str, str]) -> str:
    """Return the user's home directory: $HOME, else as the user database has it."""
    return environ.get("HOME") or os.path.expanduser("~")


def expanded(path: str, environ: Mapping[str, str]) -> str:
    """Return the path with `~`, `$NAME` and `${NAME}` replaced. Raises UnsetVariableError."""
    if path == "~" or path.startswith("~/"):
        path = home(environ) + path[1:]
    return VARIABLE.sub(lambda match: _value(match[1] or match[2], environ), path)


def _value(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name) or (_own_name() if name == "USER" else "")  # cron sets no USER
    if not value:
        raise UnsetVariableError(f"${name} is not set here")
    return value


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user without a name
        return ""


def wrong_runs(config: Configuration, environ: Mapping[str, str]) -> Iterator[Mistake]:
    """Yield the mistake that `runs:` leads to no absolute path in this environment, if so."""
    if config.runs is None:
        return
    try:
        found = expanded(config.runs, environ)
    except UnsetVariableError as error:
        message = str(error)
    else:
        if os.path.isabs(found):
            return
        message = f"leads to {found!r} here, which is no absolute path"
    source = config.sources["runs"]
    file, _, line = source.rpartition(":")
    yield Mistake(f"{source}: runs: {message}", message, file, int(line), None, "runs")


def lease_dir(config: CardSettings, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the directory of the locks beside leases, if any, and what says so.

    The environment goes first: who enters a container says there what is mounted in it.
    """
    if given := environ.get(LEASE_DIR):
        return given, LEASE_DIR
    return config.lease_dir, config.sources.get("lease_dir", "")


def setting_of(source: str) -> str:
    """Return the words before `=DIRECTORY` for what `lease_dir` names as its source."""
    return source if source == LEASE_DIR else f"{source}: lease_dir"
