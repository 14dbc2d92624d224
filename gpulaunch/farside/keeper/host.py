"""The interpreter that keepers run in: their own, or a preload server's, which sets these.

There the interpreter is the jobs' own, and some jobs need no exec.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


class ContinueInChild(BaseException):
    """Unwinds the keepers' frames in a forked child that goes on as the job, without an exec."""


# The descriptors that imports opened and jobs keep.
opened: set[int] = set()
# Calls the hooks that imports registered for forked children, in the child that becomes a job. They
# may take `at_fork_limit` seconds. Then READY comes through the child's pipe; else the job starts
# cold.
at_fork: Callable[[], None] | None = None
at_fork_limit = 0.0
AT_FORK = "what is called at forks (os.register_at_fork, pthread_atfork)"
# Forks a keeper. In a preload server it calls no hooks, since none of them may hold up a keeper.
# There a job has a forker: a child that forks the job by os.fork, which calls all hooks, writes the
# job's process id as a line before READY, and exits.
fork: Callable[[], int] = os.fork


def run_keeper(
    main: Callable[[], None], last: Callable[[], None] = lambda: None, status: int = 0
) -> None:
    """Call a forked keeper's main function, then `last`, and exit.

    Only ContinueInChild comes through, in a process that goes on as a job.
    """
    continues = False
    try:
        main()
    except ContinueInChild:
        continues = True
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        if not continues:
            last()
            os._exit(status)
