"""The failure classes, and what each means for trying again. Names and decisions only, no words.

A class is what an attempt's end is recognised as (`diagnose.failure` recognises, and has the
words). The decisions are defaults: a job's `retries:` says how often, and its `on:` which classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from msgspec import Struct

Again: TypeAlias = Literal["no", "yes", "later"]
Other: TypeAlias = Literal["no", "yes", "once", "larger", "other_kind"]


class Policy(Struct, frozen=True):
    """What a failure class means for trying again: whether it may help, and on which card.

    `again`: on the same card; `later` is after a pause, or when other jobs have ended.
    `other`: on another card, at once; `no` where it would do no better; `once` is a single try,
    to tell a sick card from a wrong program; `larger`: one with more memory; `other_kind`: of
    another model.
    `aside`: the card is set aside for the rest of the run. `free`: the job is not to blame, and
    trying again spends none of its retries. `suspect`: a sick card can cause it.
    """

    again: Again
    other: Other
    aside: bool = False
    free: bool = False
    suspect: bool = False


_NEVER = Policy("no", "no")
_AGAIN = Policy("yes", "yes")
_SUSPECT = Policy("yes", "yes", suspect=True)
_LATER = Policy("later", "no")

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        # What the outcome alone says.
        "exit": _SUSPECT,
        "signal": _SUSPECT,
        "timeout": _SUSPECT,
        "idle_timeout": _SUSPECT,
        "gpu_idle": _SUSPECT,
        "not_ready": _AGAIN,
        "not_started": _AGAIN,
        "missing_output": _SUSPECT,
        "lost": Policy("yes", "yes", free=True),
        # The card's memory, and the machine's.
        "gpu_oom": Policy("no", "larger"),
        "host_oom": _LATER,
        "shm": _LATER,
        "disk_full": _NEVER,
        # The card itself, the driver, the build.
        "gpu_lost": Policy("no", "yes", aside=True, free=True, suspect=True),
        "gpu_busy": Policy("later", "yes", suspect=True),
        "mps": Policy("later", "yes"),
        "no_gpu_seen": Policy("no", "no", suspect=True),
        "wrong_gpu": _NEVER,
        "uuid_mask": _NEVER,
        "driver": _NEVER,
        "wrong_arch": Policy("no", "other_kind"),
        "wrong_build": _NEVER,
        "wrong_cpu": _NEVER,
        "not_installed": _NEVER,
        # The program on the card.
        "device_mismatch": _NEVER,
        "assert": Policy("no", "no", suspect=True),
        "crash": Policy("no", "once", suspect=True),
        "gpu_library": Policy("no", "once", suspect=True),
        "cuda_fork": _NEVER,
        "collective": _SUSPECT,
        "secondary": _AGAIN,
        "nan": _SUSPECT,
        # What surrounds it: files, ports, limits, servers.
        "missing_file": _AGAIN,
        "permission": _NEVER,
        "file_error": _LATER,
        "corrupt_file": _LATER,
        "locked": _LATER,
        "descriptors": _NEVER,
        "threads": _LATER,
        "port": _AGAIN,
        "network": _LATER,
        "rate_limit": _LATER,
        "access": _NEVER,
        "license": _LATER,
    }
)
"""Every class, in the order in which people are shown them."""


def policy_of(failure: str) -> Policy:
    """Return the policy of a failure class; for an unknown class, that of an ordinary failure."""
    return POLICIES.get(failure, _AGAIN)
