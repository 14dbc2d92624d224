"""What the configuration says, where each part of it stands, and the paths that it names."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gpulaunch.base.errors import Mistake

if TYPE_CHECKING:
    from gpulaunch.jobfile.notify_spec import Target


class NamedCard(Struct, frozen=True):
    """A card by its index or UUID, and the place (`FILE:LINE`) that names it."""

    name: str
    source: str


class CardCounts(Struct, frozen=True):
    """Cards that each user, by name, may hold at once; `sources`: the place of each name."""

    counts: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


class CardLimits(Struct, frozen=True):
    """`limits:` of the machine's file: of users, and of each member of a group."""

    users: CardCounts = CardCounts()
    groups: CardCounts = CardCounts()


class Allowance(Struct, frozen=True):
    """How many cards the launchers of this user may hold at once, and the place that says so."""

    limit: int
    source: str


class CardSettings(Struct, frozen=True):
    """What both files say of this machine's cards. `sources` has the place of each key given."""

    never: tuple[NamedCard, ...] = ()
    last: tuple[NamedCard, ...] = ()
    free_below: str | None = None
    lease_dir: str | None = None
    limits: CardLimits = CardLimits()
    sources: Mapping[str, str] = field(default_factory=dict)


class Configuration(CardSettings, frozen=True):
    """What both files say together. `sources` has the keys of `slurm` as `slurm.partition`.

    `notify` and `slurm` are as in a job file, for runs whose file is silent. `runs` is as it was
    typed: see `expanded`. `mistakes`: keys that are wrong are as if they were not given.
    """

    runs: str | None = None
    notify: tuple[Target, ...] = ()
    slurm: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()

    @property
    def of_cards(self) -> CardSettings:
        """What of it is about cards."""
        return CardSettings(*(getattr(self, name) for name in CardSettings.__struct_fields__))


NOTHING = Configuration()


# ── Paths ─────────────────────────────────────────────────────────────────────────────────────────

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
