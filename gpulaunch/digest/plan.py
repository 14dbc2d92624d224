"""Makes the JSON of `gpulaunch check --json`: what would run, and where.

Takes a plan's parts, so that it need not know how a job file is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpulaunch.contracts import SCHEMA
from gpulaunch.core.card_kind import capability
from gpulaunch.core.model import Gpu, Job
from gpulaunch.diagnose.lint.finding import Finding
from gpulaunch.digest.definition import definition_json
from gpulaunch.digest.topology import linked

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import PlanDocument


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
