"""The configuration: the machine's file, which root writes, and the user's own.

    /etc/gpulaunch/config.yaml ────────────┐   here: are they there, and as they were?
    $XDG_CONFIG_HOME/gpulaunch/config.yaml ┴▶ `config_file`: text -> tree -> keys ─▶ Configuration

If neither is there, this module only looks at two paths, and imports no parser. It reads a file
again only if the file has changed. It says where `runs:` puts runs, and which limit holds for this
user; it makes no directory, and acts on no setting itself.
"""

from __future__ import annotations

import errno
import grp
import hashlib
import os
import pwd
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from gpulaunch.base.errors import ConfigurationError
from gpulaunch.jobfile.config_model import (
    NOTHING,
    Allowance,
    CardCounts,
    CardSettings,
    Configuration,
    UnsetVariableError,
    expanded,
    home,
    wrong_runs,
)

MACHINE = "/etc/gpulaunch/config.yaml"
"""The machine's configuration: what it limits holds for all users."""

Stamp: TypeAlias = tuple[int, ...]
"""By what a file is known as the same: inode, size and times, owner and mode; or an errno."""


def user_file(environ: Mapping[str, str]) -> str:
    """Return where the user's configuration is looked for, by the XDG base directories."""
    given = environ.get("XDG_CONFIG_HOME", "")
    base = given if os.path.isabs(given) else os.path.join(home(environ), ".config")
    return os.path.join(base, "gpulaunch", "config.yaml")


def current(environ: Mapping[str, str] = os.environ, machine: str = MACHINE) -> Configuration:
    """Return what the files say now; of a file with mistakes, what is right in it."""
    paths = (machine, user_file(environ))
    stamps = (_stamp(paths[0]), _stamp(paths[1]))
    return NOTHING if stamps == (None, None) else _read(paths, stamps)


def required(environ: Mapping[str, str] = os.environ, machine: str = MACHINE) -> Configuration:
    """Return what the files say now. Raises ConfigurationError with every mistake of both.

    For what starts something: it must not run otherwise than the files mean.
    """
    config = current(environ, machine)
    mistakes = [*config.mistakes, *wrong_runs(config, environ)]
    if mistakes:
        raise ConfigurationError(mistakes)
    return config


def _stamp(path: str) -> Stamp | None:
    """Return by what the file is known as the same; None where there is none."""
    try:
        found = os.stat(path)
    except OSError as error:
        absent = error.errno in (errno.ENOENT, errno.ENOTDIR)
        return None if absent else (error.errno or 0,)
    except ValueError:  # a NUL character in the environment's path
        return None
    return (
        *(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns),
        *(found.st_uid, found.st_mode),
    )


@lru_cache(4)
def _read(paths: tuple[str, str], stamps: tuple[Stamp | None, Stamp | None]) -> Configuration:
    from gpulaunch.jobfile.config_file import read

    machine, own = (path if stamp else "" for path, stamp in zip(paths, stamps, strict=True))
    return read(machine, own)


# ── Places of runs ────────────────────────────────────────────────────────────────────────────────

_UNFIT = re.compile(r"[\x00-\x1f\x7f]|^\.")
_NAME_CHARACTERS = 48


def source_of_runs(environ: Mapping[str, str] = os.environ) -> str:
    """Return the words before what is wrong with where runs go: the place of `runs:`, if given."""
    source = current(environ).sources.get("runs")
    return f"{source}: runs: " if source else ""


def place_of_runs(directory: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return where runs that are begun in `directory` are kept; None: within it.

    runs: /scratch/$USER/runs ─▶ /scratch/ann/runs/PROJECT-1a2b3c4d5e6f/NAME-DATE-TIME

    Each working directory has one of its own there, so that its runs are found without a look at
    all others. `directory` has no symbolic links in it. Where `runs:` cannot be followed, as a
    variable is not set, it is as if it were not there: `required` says so before anything starts.
    """
    config = current(environ)
    if config.runs is None:
        return None
    try:
        base = expanded(config.runs, environ)
    except UnsetVariableError:
        return None
    name = _UNFIT.sub("_", directory.name or "root")[:_NAME_CHARACTERS]
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return Path(base, f"{name}-{digest}")


# ── Limits of this user ───────────────────────────────────────────────────────────────────────────

EVERYBODY = "default"
"""The name in `users:` for all who are not named, nor in a group that is."""


def allowance_of(config: CardSettings) -> Allowance | None:
    """Return how many cards this process's user may hold at once; None: any number.

    What names the user goes first; then the largest number of the user's groups; then that for
    everybody. Root is limited by its name alone.
    """
    users, groups = config.limits.users, config.limits.groups
    if not (users.counts or groups.counts):
        return None  # to look up who this is may take seconds on a network
    own = next((name for name in _own_names() if name in users.counts), None)
    if own is not None:
        return Allowance(users.counts[own], users.sources[own])
    if os.geteuid() == 0:
        return None
    if mine := list(_own_groups(groups)):
        name = max(mine, key=lambda name: groups.counts[name])
        return Allowance(groups.counts[name], groups.sources[name])
    if EVERYBODY in users.counts:
        return Allowance(users.counts[EVERYBODY], users.sources[EVERYBODY])
    return None


def _own_names() -> Iterator[str]:
    """Yield how this user may be called in the file: by name, or by number."""
    with suppress(KeyError):  # a container's user without a name
        yield pwd.getpwuid(os.geteuid()).pw_name
    yield str(os.geteuid())


def _own_groups(groups: CardCounts) -> Iterator[str]:
    """Yield the groups of the file in which this process is, as the kernel has it."""
    mine = {os.getegid(), *os.getgroups()} if groups.counts else set()
    return (name for name in groups.counts if group_id(name) in mine)


def group_id(name: str) -> int | None:
    """Return a group's number by its name, or by the number itself; None: there is none."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return int(name) if name.isascii() and name.isdigit() else None


def user_exists(name: str) -> bool:
    """Tell whether there is a user of this name or number."""
    if name == EVERYBODY or (name.isascii() and name.isdigit()):
        return True
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
