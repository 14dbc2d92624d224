"""The limit of this process's open files, and how many of them a run needs."""

from __future__ import annotations

from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

from gpulaunch.errors import UsageError
from gpulaunch.text import several

_LAUNCHER = 24
_PER_CARD = 4
"""Descriptors that the launcher needs in all, and for each card."""
_HIGH = 100


def require_descriptors(cards: int) -> None:
    """Raise this process's limit of open files to what a run on so many cards needs.

    The soft limit is raised where the hard one allows it, for the jobs as well. Raises UsageError
    where it does not: jobs would wait for ever for a descriptor that never comes free.
    """
    need = _LAUNCHER + _PER_CARD * cards
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if soft == RLIM_INFINITY or soft >= need:
        return
    if hard != RLIM_INFINITY and hard < need:
        raise UsageError(
            f"this process may have {hard} files open (ulimit -Hn), and a run on"
            f" {several(cards, 'card')} needs {need}: have the limit raised"
        )
    setrlimit(RLIMIT_NOFILE, (need, hard))


def high_number() -> int:
    """Return the least descriptor number for inherited leases: programs seldom use such numbers.

    Where few descriptors are allowed, it is in the upper half of them.
    """
    soft, _ = getrlimit(RLIMIT_NOFILE)
    return _HIGH if soft == RLIM_INFINITY else min(_HIGH, soft // 2)
