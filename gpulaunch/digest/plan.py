"""Makes the JSON of `gpulaunch check --json`: what would run, and where.

Takes a plan's parts, so that it need not know how a job file is read. Values that are known only
when a job starts stand as `{{out}}` in the commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpulaunch.contracts import SCHEMA
from gpulaunch.core.card_kind import capability
from gpulaunch.core.model import Container, Gpu, Job, Ladder, WarnPolicy, Worker
from gpulaunch.core.template import Text, shown, slots
from gpulaunch.digest.machine import linked
from gpulaunch.digest.words import iso
from gpulaunch.text import unescaped
from gpulaunch.wording import signal_name

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import (
        PlanContainer,
        PlanDocument,
        PlanJob,
        PlanWarning,
        PlanWorker,
    )
    from gpulaunch.diagnose.lint.finding import Finding


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
