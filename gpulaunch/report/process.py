"""The process that writes a run's report: it gets ready beside the last jobs.

    a niced thread: imports, reads the journal ─▶ told that the run is over ─▶ reads on, writes

Starts of jobs come before what is got ready. It is a thread that is niced, since a process could
not take that back, and the end of the run waits for the report.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.report.write import HistoryAhead

NICER_BY = 5
"""Where others want the core as well, that leaves a quarter of it."""


def main() -> None:
    """Write the report of the run whose directory is the last argument but one.

    A byte on standard input says that the run is over, its end that there is to be no report. Says
    in a line on standard output what went wrong, if so.
    """
    # What a journal adds up to is no garbage: to look through it again and again takes a third of
    # the time.
    gc.set_threshold(100_000, 50, 100)
    ready: list[HistoryAhead] = []
    thread = threading.Thread(target=lambda: ready.append(_get_ready(sys.argv[-2])))
    thread.start()
    thread.join()
    if not os.read(0, 1):
        return  # the run came to another end, or its supervisor to its own
    from gpulaunch.report.write import write_at_the_end

    said = write_at_the_end(ready[0])
    sys.stdout.write(said)
    sys.stdout.flush()
    os._exit(1 if said else 0)  # the interpreter would take down piece by piece what it built


def _get_ready(directory: str) -> HistoryAhead:
    os.nice(NICER_BY)  # of this thread alone: nice(2), "C library/kernel differences"
    from pathlib import Path

    from gpulaunch.journal.rundir import RunDir
    from gpulaunch.report.write import HistoryAhead

    ahead = HistoryAhead(RunDir(Path(directory)))
    ahead.follow(told=0)
    return ahead
