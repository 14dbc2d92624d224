"""The directory of a run that counts as none, given to another run.

Empties its journal and removes nothing: what else lies there may be the user's. `finding` says
which runs count.
"""

from __future__ import annotations

import os
from contextlib import suppress

from gpulaunch.files import regular
from gpulaunch.journal.append import lock
from gpulaunch.journal.finding import counts
from gpulaunch.journal.rundir import RunDir


def make_way(run: RunDir) -> None:
    """Empty the journal of a run that counts as none; any other run stays as it is."""
    if not run.holds_run or counts(run):
        return
    with suppress(OSError):  # not to be written, or being written: the run stays, and is refused
        fd = regular(run.events, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            lock(fd)
            # A launcher that was quicker may have begun its run in between.
            if not counts(run):
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)
