"""Has a run keep gpulaunch's files, and notes it where the run goes on with those it kept."""

from __future__ import annotations

import os
from collections.abc import Callable

from gpulaunch import __version__
from gpulaunch.loop import Loop
from gpulaunch.own_files import KEPT_AFTER, OWN


class FilesKeeper:
    """Has this process keep its files (`own_files`) once the run has begun. Close it.

    `place`: the folder in which their copy would be. `note` takes a line for people.
    """

    def __init__(self, loop: Loop, place: str, note: Callable[[str], object]) -> None:
        self._loop, self._place, self._note = loop, place, note
        self._fd = -1
        loop.call_after(self, KEPT_AFTER, self._begin)

    def close(self) -> None:
        """Note nothing more. The files stay."""
        self._loop.forget(self)
        OWN.forget_told()
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _begin(self) -> None:
        try:
            self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._loop.watch(self._fd, self._tell)
            OWN.keep(self._place, lambda: os.eventfd_write(self._fd, 1))
        except OSError as error:  # no descriptor is left
            self._note(_not_kept(str(error)))

    def _tell(self) -> None:
        os.eventfd_read(self._fd)
        if OWN.copy:
            self._note(
                f"gpulaunch {__version__}, with which this run began, was replaced or removed:"
                f" the run goes on with a copy of it, in {os.path.dirname(OWN.copy)}"
            )
        else:
            self._note(_not_kept(OWN.trouble))


def _not_kept(why: str) -> str:
    return f"do not upgrade gpulaunch while this run lives: its files are not kept: {why}"
