"""Reads what Slurm's programs print into values, and says in words why a job waits. Pure.

Text and not `--json`, whose shape changes from version to version. The forms and codes here are
those of Slurm 20.11 to 26.05 (`squeue.1`, `src/squeue/opts.c`, `src/common/slurm_errno.c`,
`src/common/job_state_reason.c`, before that `slurm_protocol_defs.c`).

Each call of squeue has a random separator of its own, so that no job's name, whatever it holds, can
pass for a field or a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from gpulaunch.core.model import Exited, Signaled, Status

Phase: TypeAlias = Literal["queued", "running", "over"]
Kind: TypeAlias = Literal[
    "", "boot_fail", "cancelled", "completed", "deadline", "dependency", "failed", "node_fail",
    "out_of_memory", "preempted", "revoked", "timeout",
]  # fmt: skip
"""How a job ended, or that it has not."""
QUEUED = {
    "PENDING", "CONFIGURING", "POWER_UP_NODE", "EXPEDITING", "REQUEUED", "REQUEUE_FED",
    "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "LAUNCH_FAILED", "RECONFIG_FAIL",
}  # fmt: skip
"""States of a job that has not started, or that Slurm has put back into the queue."""
ON_ITS_WAY = {"CONFIGURING", "POWER_UP_NODE"}
"""Those of `QUEUED` in which the job has its nodes, which are being made ready."""
SUSPENDED = {"SUSPENDED", "STOPPED"}
"""States of a job whose processes Slurm has stopped for a while."""
OVER: dict[str, Kind] = {k.upper(): k for k in get_args(Kind) if k not in ("", "dependency")}
NEVER_MET = "DependencyNeverSatisfied"
"""The reason of a job that Slurm cancelled because one that it needed failed."""

UNSEEN = frozenset((Signaled(53), Exited(1)))
"""How a batch script ends whose output file cannot be opened (1 up to 21.08): its node does not
see the directory. From 23.02 on, where it may, Slurm makes a directory of that name instead."""

FIELDS = (
    "JobArrayID", "State", "Reason", "exit_code", "RestartCnt", "NodeList", "PreemptTime",
    "TimeLimit", "Name",
)  # fmt: skip
RETRYING = b"retrying"
"""What `sbatch` prints before it sleeps for a second or more; it has no job number then."""


class Tasks(Struct, frozen=True):
    """Indices of an array as Slurm writes them: `0-999%3`, `1-9:2,12`.

    `cut`: Slurm left the rest out (`1,3,...`), so that any index beyond the last may belong here.
    """

    ranges: tuple[range, ...] = ()
    cut: bool = False

    def __contains__(self, task: int) -> bool:
        if any(task in some for some in self.ranges):
            return True
        return self.cut and task > max((some[-1] for some in self.ranges), default=-1)

    def __iter__(self) -> Iterator[int]:
        for some in self.ranges:
            yield from some

    def __bool__(self) -> bool:
        return bool(self.ranges) or self.cut


class QueueRow(Struct, frozen=True):
    """Slurm's row about a job, about one task of an array, or about the array's waiting tasks.

    `id` is the job's number; for tasks, the array's. `task` is the index of a single task; `tasks`
    are those that wait together in one row. An array's row with neither is left of tasks that were
    cancelled before they started. `reason` is Slurm's code for why the job waits or ended. `status`
    is how the script ended, None while it has not; 0 alone means nothing (NODE_FAIL has it too).
    `restarts` counts how often Slurm started the job again. `node` is empty until it has one.
    `preempted`: the job makes room for another, now or after its grace; Slurm forgets that once
    the job waits again. `limit` is the job's time limit in seconds, 0 for none or an unknown one.
    `inferred`: Slurm has no row for this task; its array's row implies one.
    """

    id: str
    task: int | None = None
    tasks: Tasks = Tasks()
    name: str = ""
    state: str = "PENDING"
    reason: str = ""
    status: Status | None = None
    restarts: int = 0
    node: str = ""
    preempted: bool = False
    limit: float = 0.0
    inferred: bool = False

    @property
    def phase(self) -> Phase:
        """Where the job stands. An unknown state counts as running, so that nothing follows."""
        if self.state in QUEUED:
            return "queued"
        return "over" if self.state in OVER else "running"

    @property
    def waits(self) -> bool:
        """True if the job waits without a node: an earlier start of it is over for Slurm."""
        return self.phase == "queued" and self.state not in ON_ITS_WAY

    @property
    def kind(self) -> Kind:
        """How the job ended; empty while it has not."""
        if self.state == "CANCELLED" and self.reason == NEVER_MET:
            return "dependency"
        return OVER.get(self.state, "")

    def is_about(self, id: str, task: int | None = None) -> bool:
        """Tell whether this row is about that job, or about that task of an array."""
        if self.id != id:
            return False
        return self.task == task or (task is not None and task in self.tasks)

    def __str__(self) -> str:
        return self.id if self.task is None else f"{self.id}_{self.task}"


# ── The queue ───────────────────────────────────────────────────────────────────────────────────


def queue_format(separator: str, fields: Sequence[str] = FIELDS) -> str:
    """Return the value of `squeue --Format`. A field with a suffix and no width is never cut."""
    return ",".join(f"{name}:{separator}" for name in fields)


def read_queue(text: str, separator: str) -> tuple[QueueRow, ...]:
    """Return the rows that `squeue --noheader --Format queue_format(separator)` printed.

    Skips other lines (a site's greeting, the rest of a name that holds a line break).
    """
    pieces = text.split(separator)
    rows = []
    while len(pieces) > len(FIELDS):
        fields, pieces = pieces[: len(FIELDS)], pieces[len(FIELDS) :]
        if row := _row(*fields):
            rows.append(row)
    return tuple(rows)


def _row(
    id: str,
    state: str,
    reason: str,
    code: str,
    restarts: str,
    node: str,
    preempted: str,
    limit: str,
    name: str,
) -> QueueRow | None:
    """Return the row from what Slurm's programs print for it; None if that is none.

    `id`: `12`, `12_3`, or `12_[4-7%2]` for tasks that wait together.
    """
    # Text that a site printed before this row ends with a line break.
    found = re.fullmatch(r"(\d+)(?:_(\d+)|_\[(.*?)\]?)?", id.rpartition("\n")[2].strip())
    if not found:
        return None
    number, task, tasks = found.groups()
    # "CANCELLED by 1000", "CANCELLED+": the words of other programs for the same.
    word = re.match(r"[A-Z_]*", state.strip())
    known = word[0] if word else ""
    return QueueRow(
        id=number,
        task=None if task is None else int(task),
        tasks=read_tasks(tasks or ""),
        name=name,
        state=known,
        reason="" if reason == "None" else reason,
        status=read_status(code) if known in OVER else None,
        restarts=int(restarts) if restarts.isdigit() else 0,
        node="" if node in ("n/a", "(null)") else node,
        preempted=preempted[:1].isdigit(),
        limit=read_limit(limit),
    )


_SHOWN_LINE = re.compile(
    r"^JobId=(?P<job>\d+) (?P<array>.*?)JobName=(?P<name>[^\n]*)\n"
    r"(?:(?!JobId=).*\n)*?\s+JobState=(?P<state>\S+) Reason=(?P<reason>\S*) .*\n"
    r"(?:(?!JobId=).*\n)*?\s+.*\bRestarts=(?P<restarts>\d+) .*\bExitCode=(?P<code>\d+:\d+)\n"
    r"(?:(?:(?!JobId=).*\n)*?\s+RunTime=\S+ TimeLimit=(?P<limit>\S+) .*\n)?"
    r"(?:(?!JobId=).*\n)*?\s+NodeList=(?P<node>\S*)\n",
    re.M,
)
"""A job as `scontrol show job` prints it, from its number to its node."""


def read_shown(text: str) -> tuple[QueueRow, ...]:
    """Return the rows that `scontrol show job` printed, without one that is cut short."""
    rows = []
    for found in _SHOWN_LINE.finditer(text):
        told = found.groupdict()
        array = dict(word.partition("=")[::2] for word in told.pop("array").split())
        id, tasks = told.pop("job"), array.get("ArrayTaskId", "")
        if tasks:
            id = f"{array['ArrayJobId']}_{tasks if tasks.isdigit() else f'[{tasks}]'}"
        rows.append(_row(id, preempted="", limit=told.pop("limit") or "", **told))
    return tuple(filter(None, rows))


def read_limit(text: str) -> float:
    """Return the seconds of a time limit (`1-02:30:00`, `5:00`); 0 for `UNLIMITED` and the like."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if not found:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def read_tasks(text: str) -> Tasks:
    """Return the tasks that a text names: `0-999%3`, `1-9:2,12`, `1,3,...`."""
    ranges, cut = [], False
    for part in text.partition("%")[0].split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if found:
            first, last, step = found.groups()
            ranges.append(range(int(first), int(last or first) + 1, int(step or 1)))
        else:
            cut = cut or bool(part)
    return Tasks(tuple(ranges), cut)


def read_status(text: str) -> Status | None:
    """Return the status from a wait status (`768`) or from `code:signal` (`3:0`, `0:9`)."""
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if not found:
        return None
    first, second = found.groups()
    code, signal = (int(first), int(second)) if second else (int(first) >> 8, int(first) & 0x7F)
    return Signaled(signal) if signal else Exited(code)


SCRIPTS = ("Name", "Command")
"""The fields of squeue that tell which script a job is."""


def read_scripts(text: str, separator: str) -> tuple[tuple[str, str], ...]:
    """Return each job's name and its command, the script's path with its arguments.

    `text`: what squeue printed of `SCRIPTS`.
    """
    pieces = text.split(separator)
    # Text that a site printed before a row ends with a line break.
    names = (piece.rpartition("\n")[2] for piece in pieces[0::2])
    return tuple(zip(names, pieces[1::2], strict=False))


# ── What else it says ───────────────────────────────────────────────────────────────────────────

is_unreachable = re.compile(
    r"unable to contact|(unable to|could not) establish|unable to connect|unable to resolve"
    r"|connection (failure|refused|timed out|reset)|timed out on send|error (sending|receiving)"
    r"|message (send|receive) failure|transport endpoint|zero bytes were transmitted"
    r"|rate limit exceeded|standby mode|munge|authentication error|authentication credential"
    r"|no route to host|network is (down|unreachable)|broken pipe|unexpected message"
    r"|resource temporarily unavailable|shutting down",
    re.I,
).search
"""Finds the words of a controller that cannot be reached: they say nothing about any job."""
is_unknown = re.compile(r"invalid job id|^job \S+ not found", re.I | re.M).search
"""Finds what `scontrol` prints of a job that it does not know."""
is_plain_no = re.compile(
    r"batch job submission failed|(unrecognized|invalid|unknown) option", re.I
).search
"""Finds what `sbatch` itself prints when it submitted nothing. Another program's failure (a site's
wrapper) may come after the job was submitted."""
is_about_arrays = re.compile(r"job array specification|array (is )?too large", re.I).search
"""Finds that an array was refused for having too many tasks (`max_array_tasks`)."""
_FULL = re.compile(
    r"submitjob|maxjobcount|job queue full|unable to create job record|try again"
    r"|temporarily (unable to accept|disabled)|submissions disabled",
    re.I,
)
_POLICY = re.compile(r"violates accounting/qos policy", re.I)
_LIMIT = re.compile(r"\b(Assoc|QOS|Max|Part)[A-Z]\w+")
"""The name of the violated limit, which newer versions print beside `_POLICY`."""
_NO_CONFIG = re.compile(
    r"could not establish a configuration source|unable to process configuration file", re.I
)
_NOT_FETCHED = re.compile(
    r"contact|connect|timed out|host name lookup failure|temporar|server error|retrying", re.I
)
"""Words beside `_NO_CONFIG` where there is a configuration that cannot be fetched just now."""
_OVER_ALREADY = re.compile(
    r"invalid job id|already (completing or )?(completed|finished)|already done|: no error$"
    r"|no longer pending",
    re.I,
)


def read_id(text: str) -> str | None:
    """Return the job's number from the output of `sbatch --parsable`: `12`, or `12;cluster`.

    From the last such line that is whole: a number that was cut may be another job's.
    """
    for line in reversed(text.split("\n")[:-1]):
        if found := re.fullmatch(r"(\d+)(;.*)?", line.strip()):
            return found[1]
    return None


def one_line(text: str, longest: int = 500) -> str:
    """Return a program's errors in one line, without its own name and `retrying`."""
    around = re.compile(r"^\s*(s\w+:\s*)?((error|fatal):\s*)?|,? (sleeping and )?retrying\.?\s*$")
    lines = [around.sub("", line).strip() for line in text.splitlines()]
    said = "; ".join(filter(None, lines))
    return said if len(said) <= longest else said[: longest - 3] + "..."


def is_unconfigured(text: str) -> bool:
    """Tell whether Slurm's programs find no configuration here, or none that they understand."""
    return bool(_NO_CONFIG.search(text)) and not _NOT_FETCHED.search(text)


def is_full(text: str) -> bool:
    """Tell whether a refused job may be submitted later.

    A violated policy may be a limit on how many jobs there are, or on how large or long one may be.
    Newer versions name the limit. Without a name the former is assumed.
    """
    return bool(_FULL.search(text) or (_POLICY.search(text) and not _LIMIT.search(text)))


def is_over_already(text: str) -> bool:
    """Tell whether every error of a cancellation or a hold is that the job was over already.

    Of an array there is a line for each task.
    """
    return all(_OVER_ALREADY.search(line) for line in text.splitlines() if line.strip())


def read_setting(text: str, name: str) -> str:
    """Return a setting's value from `scontrol show config`; empty if there is none."""
    found = re.search(rf"^{name}\s*= (.*)$", text, re.M)
    return found[1].strip() if found else ""


# ── Why a job waits ───────────────────────────────────────────────────────────────────────────────

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
"""All other reasons pass by themselves. Not here: InvalidAccount (see `in_words`), and
ReqNodeNotAvail, which also stands for nodes that are reserved for a while."""

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

    Slurm's code follows in brackets, for looking it up. A code without words here is shown as it
    is; so is InvalidAccount, which 23.11.4 gives to all waiting jobs of a cluster without
    accounting. `instead`: better words than the code's own.
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
