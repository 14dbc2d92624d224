"""Makes the JSON of `gpulaunch ps --json`: the runs alive on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from gpulaunch.contracts import SCHEMA
from gpulaunch.core.model import JobState, RunState
from gpulaunch.digest import words

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import RunsDocument


class RunRow(Struct, frozen=True):
    """A live run. `started` in UTC seconds. Another user's has only `run`, `user` and `pid`.

    `state` is not running where the run is over and its report is being written; `silent`: it is
    this user's, and does not answer. `suspended`: its launcher is "stopped" or "frozen".
    """

    run: str
    pid: int
    user: str
    name: str = ""
    directory: str = ""
    state: RunState = "running"
    started: float | None = None
    cards: str = ""
    simulated: bool = False
    counts: Mapping[JobState, int] | None = None
    silent: bool = False
    suspended: str = ""


def runs_json(rows: Sequence[RunRow]) -> RunsDocument:
    """Return what `ps --json` prints."""
    return {
        "schema": SCHEMA,
        "runs": [
            {
                "id": row.run,
                "name": row.name or None,
                "dir": row.directory or None,
                "state": row.state,
                "started": words.iso(row.started),
                "pid": row.pid,
                "suspended": bool(row.suspended),
                "user": row.user,
                "simulated": row.simulated,
                "counts": None if row.counts is None else dict(row.counts),
            }
            for row in rows
        ],
    }
