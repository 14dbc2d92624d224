"""Which of the machine's limits holds for this user."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator
from contextlib import suppress

from gpulaunch.config.model import Allowance, CardCounts, CardSettings

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
