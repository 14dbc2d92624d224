"""Why Slurm lets a job wait, in words; its own code follows in brackets, for looking it up.

Codes are those of `squeue.1` (JOB REASON CODES) and `src/common/slurm_protocol_defs.c`, 20.11 to
25.05. One without words here is shown as it is: so is InvalidAccount, which 23.11.4 says of all
that waits where nothing keeps accounts.
"""

from __future__ import annotations

import re

DEPENDENCY = "Dependency"
HELD = frozenset({"JobHeldUser", "JobHeldAdmin"})
_NEVER = re.compile(
    r"Partition(Time|Node)Limit|\w*WallDuration\w*|\w*Max\w*PerJob\w*|Invalid(Account|QOS)"
    r"|BadConstraints"
)
"""It asks for what it cannot be given there, however long it waits."""

_SHORTER = "a shorter timeout:, or another"
_WORDS = (
    ("Priority", "others go first"),
    ("Resources", "what it asks for is not free yet"),
    ("JobHeldUser", "held; scontrol release lets it go"),
    ("JobHeldAdmin", "held by whoever runs the cluster"),
    ("BeginTime", "it is to begin later"),
    ("JobArrayTaskLimit", "as many of these run as limits: lets"),
    ("PartitionTimeLimit", f"asks for more time than its partition gives: {_SHORTER} partition"),
    ("PartitionNodeLimit", "asks for more nodes than its partition gives: choose another"),
    ("PartitionConfig", "its partition does not give what it asks for, as things are"),
    ("PartitionDown|PartitionInactive", "its partition starts no jobs now"),
    ("ReqNodeNotAvail", "nodes that it could run on are down, drained or reserved"),
    ("NodeDown", "a node that it could run on is down"),
    ("Reservation", "its reservation has not begun"),
    ("BadConstraints", "no node has what it asks for"),
    ("Licenses", "a licence that it asks for is not free"),
    ("InvalidQOS", "its QOS may not be used any more: choose another"),
    (r"\w*WallDuration\w*", f"asks for more time than it may have: {_SHORTER} qos"),
    (r"\w*(Minutes|RunMin)\w*", "the time granted to its account or QOS is used up or spoken for"),
    (r"\w*Max\w*PerJob\w*", "asks for more than one job may have"),
    (r"(Assoc|QOS)\w*Jobs?PerUser\w*", "you have as many jobs running as you may"),
    (r"Max\w*PerAccount|(Assoc|QOS)\w*Jobs\w*", "as many jobs run of its account or QOS as may"),
    (r"(Assoc|QOS)\w*(GRES|Gres)\w*", "its account or QOS has as many cards as it may"),
    (r"(Assoc|QOS)(Grp|Max)\w+", "its account or QOS has as much as it may"),
)  # fmt: skip


def in_words(reason: str, instead: str = "") -> str:
    """`: others go first (Priority)`, to be put behind what it is about; empty for no reason.

    `instead`: words where those of the code itself would say less.
    """
    if not reason:
        return ""
    # Tasks of an array that are shown together may have several: `Resources,JobHeldUser`.
    codes = re.findall(r"\w+", reason)
    words = instead or next(filter(None, map(_words_for, codes)), "")
    return f": {words} ({reason})" if words else f" ({reason})"


def is_hopeless(reason: str) -> bool:
    """Whether waiting will not help, but a change of what is asked for."""
    return any(map(_NEVER.fullmatch, re.findall(r"\w+", reason)))


def _words_for(code: str) -> str:
    return next((words for form, words in _WORDS if re.fullmatch(form, code)), "")
