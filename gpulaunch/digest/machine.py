"""The runs alive on this machine as JSON; and what is near what: cards, CPUs, NVLinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from gpulaunch.contracts import SCHEMA
from gpulaunch.core.model import Gpu, JobState, RunState
from gpulaunch.digest import words
from gpulaunch.wording import ranges

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import RunsDocument


# ── Runs ──────────────────────────────────────────────────────────────────────────────────────────


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


# ── Cards ─────────────────────────────────────────────────────────────────────────────────────────


def linked(gpu: Gpu, gpus: Sequence[Gpu]) -> list[int]:
    """Return the indices of those of the cards that NVLink joins this one with."""
    return [other.index for other in gpus if other.uuid in gpu.links]


def near(numa: int | None, cpus: str) -> str:
    """Return what is near a card: `CPUs 0-31,64-95, NUMA node 0`; empty where nothing is known."""
    node = "" if numa is None else f"NUMA node {numa}"
    return ", ".join(filter(None, (f"CPUs {cpus}" if cpus else "", node)))


def lines(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield the CPUs near the cards where these differ, and which cards NVLink joins."""
    places: dict[str, list[int]] = {}
    for gpu in gpus:
        places.setdefault(near(gpu.numa, gpu.cpus) or "CPUs that are not known", []).append(
            gpu.index
        )
    if len(places) > 1:
        yield "; ".join(f"{named(some)} near {place}" for place, some in places.items())
    sets: dict[tuple[int, ...], None] = {}
    for gpu in gpus:
        if joined := linked(gpu, gpus):
            sets[tuple(sorted({gpu.index, *joined}))] = None
    if sets:
        yield f"NVLink between {'; between '.join(map(named, sets))}"


def named(indices: Sequence[int]) -> str:
    """Return the cards in words: `GPU 0`, `GPUs 0-3`."""
    return f"GPU{'s' * (len(indices) > 1)} {ranges(indices)}"
