"""Decides whether this user may execute a run: the one door to everything that starts its jobs.

A run's directory says which commands are executed, where, and with which variables. In a place that
several users share, somebody else may have made it. Looking at such a run is harmless; starting
something from it, or sending one's environment to it, is not.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import others_may_write, user_name
from gpulaunch.base.text import shell_word
from gpulaunch.journal.rundir import RunDir

_OF_PLUGINS = ("hydra",)
"""What plugins keep in a run's directory for its jobs to execute."""

_ENTER = stat.S_IXGRP | stat.S_IXOTH


def require_own(run: RunDir) -> None:
    """Raise UsageError unless the run is this user's, and nobody else may change it.

    The owner of the directory and of everything that gpulaunch keeps directly in it must be this
    user. If others may enter the directory, they must not be able to write to these files either.
    """
    try:
        found = os.stat(run.path)
        _require_owner(run.path, found)
        changeable = [run.path] if others_may_write(run.path, found) else []
        entered = found.st_mode & _ENTER
        for name in (*run.own_entries(), *_OF_PLUGINS):
            path = run.path / name
            with suppress(FileNotFoundError):  # the draft of a live run
                found = os.lstat(path)
                _require_owner(path, found)
                if entered and others_may_write(path, found):
                    changeable.append(path)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None
    if changeable:
        mode = stat.S_IMODE(os.lstat(changeable[0]).st_mode)
        raise UsageError(
            f"other users may change {changeable[0]} (mode {mode:04o}), so gpulaunch starts nothing"
            " from this run. If you trust what the run holds, first take that right from them:"
            f" chmod -R go-w {shell_word(str(run.path))}"
        )


def _require_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        owner = user_name(found.st_uid)
        raise UsageError(
            f"{path} belongs to {owner}, and you are {user_name(os.geteuid())}: gpulaunch starts"
            f" nothing from the run of another user. Only {owner} can go on with it. To run its"
            " jobs as yourself, begin a run of your own: gpulaunch run JOB_FILE"
        )
