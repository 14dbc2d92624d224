"""Makes the JSON of `gpulaunch check` (what would run, and where) and of `ps` (live runs).

Says in words what is near what: cards, CPUs, NVLinks. Takes a plan's parts, so that it need not
know how a job file is read. Values that are known only when a job starts stand as `{{out}}` in the
commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from gpulaunch.base.schemas import SCHEMA
from gpulaunch.base.text import unescaped
from gpulaunch.base.wording import ranges, signal_name
from gpulaunch.core.model import Container, Gpu, Job, JobState, Ladder, RunState, WarnPolicy, Worker
from gpulaunch.core.placement import capability
from gpulaunch.core.template import Text, shown, slots
from gpulaunch.observe.present import words
from gpulaunch.observe.present.words import iso

if TYPE_CHECKING:
    from gpulaunch.base.documents import (
        PlanContainer,
        PlanDocument,
        PlanJob,
        PlanWarning,
        PlanWorker,
        RunsDocument,
    )
    from gpulaunch.diagnose.lint.finding import Finding


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


# ── The plan ──────────────────────────────────────────────────────────────────────────────────────


def plan_json(
    name: str,
    cards: str,
    gpus: Sequence[Gpu],
    limits: Mapping[str, int],
    jobs: Sequence[Job],
    engine: str = "local",
    notify: Sequence[str] = (),
    warnings: Sequence[Finding] = (),
) -> PlanDocument:
    """Return what `check --json` prints; environments are left out.

    `cards` says in words on what the jobs run; `gpus` are the cards, where they are known;
    `notify` says in words who is told, and when.
    """
    return {
        "schema": SCHEMA,
        "name": name,
        "engine": engine,
        "cards": cards,
        "simulated": any(gpu.simulated for gpu in gpus),
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "memory": gpu.memory,
                "unified": gpu.unified,
                "compute": capability(gpu.compute),
                "numa": gpu.numa,
                "cpus": gpu.cpus,
                "linked": linked(gpu, gpus),
            }
            for gpu in gpus
        ],
        "limits": dict(limits),
        "jobs": [definition_json(job) for job in jobs],
        "notify": list(notify),
        "warnings": [finding.plain() for finding in warnings],
    }


# ── What a job asks for, also in `status JOB --json` ──────────────────────────────────────────────


def definition_json(job: Job) -> PlanJob:
    """Return what a job asks for, as JSON."""
    return {
        "name": job.name,
        "group": job.group,
        "params": dict(job.params),
        "run": command(job.run),
        "worker": None if job.worker is None else _worker_json(job.worker, job.demand.worker),
        "container": None if job.container is None else _container_json(job.container),
        "cwd": job.cwd,
        "gpus": job.demand.gpus,
        "gpu_memory": job.demand.gpu_memory or None,
        "memory": job.demand.memory or None,
        "card": job.demand.card,
        "compute": capability(job.demand.compute),
        "learned_gpu_memory": job.learned or None,
        "per_gpu": job.demand.per_gpu or None,
        "share": job.demand.share,
        "mps": job.demand.mps,
        "cpus": job.demand.cpus,
        "affinity": job.affinity,
        "uses": list(job.demand.uses),
        "needs": list(job.needs),
        "after": list(job.after),
        "priority": job.priority,
        "cost": job.cost,
        "expected_seconds": job.expected or None,
        "not_before": None if job.not_before is None else iso(job.not_before.utc),
        "timeout": job.timeout,
        "idle_timeout": job.idle_timeout,
        "gpu_idle": job.gpu_idle,
        "grace": job.grace,
        "warn": None if job.warn is None else _warn_json(job.warn),
        "preemptible": job.demand.preemptible,
        "retries": job.retry.times,
        "ladder": _ladder_json(job.ladder),
        "outputs": [unescaped(shown(text)) for text in job.outputs],
        "service": job.service is not None,
        "engine": {
            name: {key: list(told) for key, told in given.items()}
            for name, given in job.engine.items()
        },
    }


def _ladder_json(ladder: Ladder | None) -> dict[str, list[str]]:
    if ladder is None:
        return {}
    return {name: [step[place] for step in ladder.steps] for place, name in enumerate(ladder.names)}


def _warn_json(warn: WarnPolicy) -> PlanWarning:
    return {"signal": signal_name(warn.signal).removeprefix("SIG"), "before": warn.before}


def _container_json(container: Container) -> PlanContainer:
    return {
        "image": container.image,
        "engine": container.engine,
        "mounts": [
            {"source": mount.source, "target": mount.target, "read_only": mount.read_only}
            for mount in container.mounts
        ],
        "args": list(container.args),
        "user": container.user,
        "pull": container.pull,
    }


def _worker_json(worker: Worker, key: str) -> PlanWorker:
    """Return a worker as JSON. Jobs with the same `key` may follow each other in one process."""
    return {
        "key": key,
        "function": worker.function or None,
        "load": worker.load or None,
        "items": worker.items,
        "memory": worker.memory,
        "load_timeout": worker.load_timeout,
    }


def command(run: Text | tuple[Text, ...]) -> str:
    """Return a command as a person would type it; a list is quoted for a shell, slots are not."""
    if not isinstance(run, tuple):
        return shown(run)
    return " ".join(
        shown(part) if any(True for _ in slots(part)) else shlex.quote(shown(part)) for part in run
    )
