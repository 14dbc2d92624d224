"""Exit statuses of a node's program, as Slurm is to see them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..wire import NO_SPACE, Any

# Nobody saw how the attempt ended; the run's disk was full before it began; another start holds its
# claim; it could not be started; it took too long.
LOST, NO_ROOM, STARTED_BEFORE, UNFIT, TIMED_OUT = 70, 73, 75, 78, 124
SLURM_ENDED_IT = '{"kind": "by_cluster", "what": "told_to_end"}'  # core.causes
UNEXPLAINED = ("interrupted", SLURM_ENDED_IT, False)  # a stop without words of the client's


def exit_status(end: Mapping[str, Any], success_codes: Sequence[int]) -> int:
    """Return the exit status for Slurm, by which `afterok` goes. `end` is the keeper's record."""
    status, cause = end["status"], end["cause"]
    if cause in ("timeout", "idle_timeout"):
        return TIMED_OUT
    if cause is None and (end["error"] is not None or status is None):
        return NO_ROOM if end["kind"] == NO_SPACE else UNFIT
    if status is None:
        return 1
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    if cause is None and not end["missing"] and code in success_codes:
        return 0
    return code or 1
