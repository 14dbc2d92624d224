"""Finds the configuration files, and reads them when they are there.

A file that is as it was is not read again in one process.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from gpulaunch.config.model import NOTHING, Configuration
from gpulaunch.config.paths import home, wrong_runs
from gpulaunch.errors import ConfigurationError

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
    from gpulaunch.config.reading import read

    machine, own = (path if stamp else "" for path, stamp in zip(paths, stamps, strict=True))
    return read(machine, own)
