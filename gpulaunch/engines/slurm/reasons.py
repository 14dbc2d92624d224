"""Why Slurm lets a job wait, in words; Slurm's code follows in brackets, for looking it up.

Codes are those of `squeue.1` (JOB REASON CODES) and `src/common/job_state_reason.c` (before that
`slurm_protocol_defs.c`), 20.11 to 26.05. A code without words here is shown as it is; so is
InvalidAccount, which 23.11.4 gives to all waiting jobs of a cluster without accounting.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

DEPENDENCY = "Dependency"
HELD = frozenset({"JobHeldUser", "JobHeldAdmin"})
Prospect: TypeAlias = Literal["passing", "person", "never"]
"""What ends the wait: time alone; a person's doing; nothing, as the job asks for too much."""

_NEVER = re.compile(
    r"\w*WallDuration\w*|\w*Max\w*Per(Job|Node)\w*|QOSMin\w+|MaxMemPerLimit|InvalidQOS"
    r"|(QOS|Account)NotAllowed|Reservation(Deleted|Invalid)|DeadLine"
)
_PERSON = re.compile(
    # Partitions' limits and states change by the hour at some sites.
    r"PartitionTimeLimit|PartitionNodeLimit|PartitionConfig|PartitionDown|PartitionInactive"
    r"|JobHeld(User|Admin)|JobHoldMaxRequeue|JobLaunchFailure|AccountingPolicy|QOSUsageThreshold"
    r"|(Assoc|QOS)Grp\w*((?<!Run)Minutes|Wall)\w*|Association(Time|Resource)Limit|NodeDown"
    # The nodes may be configured otherwise; until then the job is held.
    r"|BadConstraints"
)
"""All other reasons pass by themselves. Not here: InvalidAccount (see above), and ReqNodeNotAvail,
which also stands for nodes that are reserved for a while."""

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
    ("Reservation(Deleted|Invalid)", "its reservation is gone, or is none that it may use"),
    ("DeadLine", "it cannot end before its deadline"),
    (r"QOSMin\w+", "asks for less than its QOS takes: choose another"),
    ("MaxMemPerLimit", "asks for more memory than it may have"),
    ("(QOS|Account)NotAllowed", "its account or QOS may not use its partition: choose another"),
    ("JobHoldMaxRequeue|JobLaunchFailure", "Slurm failed to begin it, and holds it"),
    ("Licenses", "a licence that it asks for is not free"),
    ("InvalidQOS", "its QOS may not be used any more: choose another"),
    (r"\w*WallDuration\w*", f"asks for more time than it may have: {_SHORTER} qos"),
    (r"\w*Max\w*Per(Job|Node)\w*", "asks for more than one job may have"),
    (
        r"\w*(Minutes|RunMin|GrpWall)\w*",
        "the time granted to its account or QOS is used up or spoken for",
    ),
    (r"(Assoc|QOS)\w*Jobs?PerUser\w*", "you have as many jobs running as you may"),
    (r"Max\w*PerAccount|(Assoc|QOS)\w*Jobs\w*", "as many jobs run of its account or QOS as may"),
    (r"(Assoc|QOS)\w*(GRES|Gres)\w*", "its account or QOS has as many cards as it may"),
    (r"(Assoc|QOS)(Grp|Max)\w+", "its account or QOS has as much as it may"),
)  # fmt: skip


def in_words(reason: str, instead: str = "") -> str:
    """Return the reason as the end of a sentence: `: others go first (Priority)`; else empty.

    `instead`: better words than the code's own.
    """
    if not reason:
        return ""
    # Tasks of an array that are shown together may have several: `Resources,JobHeldUser`.
    codes = re.findall(r"\w+", reason)
    words = instead or next(filter(None, map(_words_for, codes)), "")
    return f": {words} ({reason})" if words else f" ({reason})"


def prospect(reason: str) -> Prospect:
    """Return what ends the wait; for the reasons of several tasks, what is true of all."""
    # Node names may follow a space: `ReqNodeNotAvail, UnavailableNodes:n[1-2]`.
    codes = reason.partition(" ")[0].strip(",").split(",")
    if all(map(_NEVER.fullmatch, codes)):
        return "never"
    either = all(_NEVER.fullmatch(code) or _PERSON.fullmatch(code) for code in codes)
    return "person" if either else "passing"


def is_mixed(reason: str) -> bool:
    """Tell whether the reason lists several codes, of tasks that are shown in one row."""
    return bool(re.match(r"\w+,\w", reason))


def _words_for(code: str) -> str:
    return next((words for form, words in _WORDS if re.fullmatch(form, code)), "")
