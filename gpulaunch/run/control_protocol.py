"""What other terminals may ask of a run, and what it answers: one JSON line each way.

    {"kind":"cancel","jobs":["a"]} ──▶ {...}, or {"error":"..."}

Values here; `server` and `client` carry them. The core decides what a request means.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

from msgspec import Struct

from gpulaunch.agent.proc import suspension
from gpulaunch.base.errors import Mistake, UnfinishedRunError, UsageError
from gpulaunch.base.files import user_name
from gpulaunch.core.events import Request
from gpulaunch.core.job_list import ListChange
from gpulaunch.core.model import JobState, RunState
from gpulaunch.core.reasons import WaitReason
from gpulaunch.core.values import Tagged
from gpulaunch.gpus.socket_locks import Holder, how_to_continue
from gpulaunch.journal.codec import from_json, value_of

EXPLAINED = 1000
"""Waiting jobs whose reasons one answer holds: a hundred thousand would take the run seconds."""
REQUEST_BYTES = 64 << 20
"""Bytes of a request at most: a job file of 100,000 jobs has a third of that."""
REPLY_BYTES = 64 << 20
"""Bytes of an answer at most."""
HELLO_BYTES = 1 << 16
"""Bytes at most of an answer to Hello, which many runs are asked for at once."""
BUFFERED_BYTES = 2 * REQUEST_BYTES
"""Bytes at most of what all clients of a run have sent and not read, together."""
_NAME_CHARS = 255
_PATH_BYTES = 4096


class Hello(Tagged, frozen=True, tag="hello"):
    """Request: who is there? Answered by {"pid", "dir", "name", "state", "counts"}."""


class Reasons(Tagged, frozen=True, tag="reasons"):
    """Request: why do jobs wait? Answered by Told, for the first of them."""


class Reload(Tagged, frozen=True, tag="reload"):
    """Request: read the job file anew. `dry_run`: only say what that would change.

    Answered by Changed once it is recorded.
    """

    dry_run: bool = False


class Add(Tagged, frozen=True, tag="add"):
    """Request: add jobs to the list. Answered by {"names"} once they are recorded.

    `text` is a job file's; messages call it `label`, and its relative paths start at `base`. With a
    `stem`, its one job gets a name of the run's choosing, which begins so. `environ`: the jobs'
    environment. `addition`: a text of the client's own; two that have the same are one.
    """

    addition: str
    text: str
    label: str
    base: str
    environ: Mapping[str, str]
    stem: str = ""


class SetFields(Tagged, frozen=True, tag="set_fields"):
    """Request: set fields of jobs that wait, as typed. Answered by Changed once recorded."""

    jobs: tuple[str, ...]
    fields: Mapping[str, str]


Asking: TypeAlias = Request | Hello | Reasons | Reload | Add | SetFields


def decoded(line: bytes | bytearray) -> Asking:
    """Return the request of a line. Raises ValueError with why it is none, in words for the client.

    Every value in it is one that the kernel, the journal and all readers of the journal can bear.
    """
    given: Any = Asking
    asking: Asking = value_of(from_json(bytes(line)), given)
    if isinstance(asking, Add):
        if not asking.base.startswith("/") or "\0" in asking.base:
            raise ValueError(f"add.base: expected an absolute path, found {asking.base!r:.100}")
        for name, value in asking.environ.items():
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise ValueError(f"add.environ: {name!r:.100} is no variable of an environment")
    return asking


class Present(Struct, frozen=True, forbid_unknown_fields=True):
    """A run's answer to Hello."""

    pid: int
    dir: str
    name: str
    state: RunState
    counts: Mapping[str, int]

    @property
    def plausible(self) -> bool:
        """True where every value is one that a run can have."""
        path = os.fsencode(self.dir)
        states: tuple[str, ...] = get_args(JobState)
        return (
            path.startswith(b"/")
            and b"\0" not in path
            and len(path) <= _PATH_BYTES
            and 0 < len(self.name) <= _NAME_CHARS
            and all(name in states and count >= 0 for name, count in self.counts.items())
        )


class RefusedAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """A run's answer to a request that it refuses. `found`: the mistakes of a list, if it has any.

    `text` of a mistake is its own.
    """

    error: str
    found: tuple[Mistake, ...] = ()


class GivenNames(Struct, frozen=True, forbid_unknown_fields=True):
    """A run's answer to Add: the names of the jobs that were added."""

    names: tuple[str, ...]


class Requeued(Struct, frozen=True, forbid_unknown_fields=True):
    """A run's answer to Retry: the jobs that run again, those of them that changed, and others."""

    requeued: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]


class Told(Struct, frozen=True, forbid_unknown_fields=True):
    """A run's answer to Reasons, by job."""

    reasons: Mapping[str, WaitReason]


class Changed(Struct, frozen=True, forbid_unknown_fields=True):
    """A run's answer to Reload and SetFields. `notes`: what of the job file it does not take up."""

    change: ListChange
    notes: tuple[str, ...] = ()


class AlreadySupervisedError(UnfinishedRunError):
    """Another supervisor has the run; `pid` is 0 where that is in another PID namespace.

    `admits`: whether it is this user's, and so this user's run.
    """

    def __init__(self, run: str, holder: Holder) -> None:
        pid = holder.pid
        where = f"pid {pid}" if pid else "in another container"
        text = f"run {run} is alive ({where}): follow it with gpulaunch wait {run}, or end it"
        text += f" with gpulaunch cancel -r {run} --all"
        if suspended := suspended_as(run, pid):
            text = suspended
        if holder.uid != os.geteuid():
            text = f"the name of run {run} is taken by a process of {holder}: nothing goes on with"
            text += " the run before that process ends"
        super().__init__(text)
        self.pid = pid
        self.admits = os.geteuid() == holder.uid


class NoAnswerError(UsageError):
    """The run is not alive, belongs to another user, or does not answer."""


class SuspendedError(NoAnswerError):
    """The run's launcher is stopped or frozen: it answers nothing before somebody lets it go on."""


def suspended_as(run: str, pid: int) -> str:
    """Return that the run's launcher does nothing, why, and how it goes on; empty if it works."""
    word = suspension(pid)
    return word and f"the launcher of run {run} (pid {pid}) is {word}: {how_to_continue(word, pid)}"


def not_admitted(run: str, uid: int) -> str:
    """Return the refusal of clients who are neither this user nor root."""
    return f"run {run} belongs to {user_name(uid)}: nobody else but root may ask it"
