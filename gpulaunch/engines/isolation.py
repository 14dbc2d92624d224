"""Strict isolation, and the images of jobs' containers: what this machine must do for some jobs.

Strict isolation: which paths are hidden from an attempt, how its mask is spelled, and whether this
machine can do it. It combines the cards' device nodes (`gpus.device_files`) with what the keepers
can do here. The keepers hide the paths; this module hides nothing.

Images: one process for each pull (`containers.pulling`), several at once. This module pulls
nothing itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from msgspec.structs import replace

from gpulaunch.core.model import Gpu, Job
from gpulaunch.engines.environment import AttemptPlace
from gpulaunch.engines.programs import KeepersError, find_keepers
from gpulaunch.gpus import device_files as device_nodes
from gpulaunch.gpus.device_files import Nodes, NodesError, hidden_from, look
from gpulaunch.gpus.machine import DoctorFinding

ISOLATION_CHECK_TIMEOUT = 20.0
"""Seconds that the trial may take."""
AS_ROOT = (
    "as root, strict isolation guards against accidents only: what hides the other cards' nodes,"
    " root can take away; run as an ordinary user for more"
)


def hides(job: Job) -> bool:
    """Tell whether the other cards are to be hidden from this job by gpulaunch, not an engine.

    Never from a job in a container. docker and podman show it its own cards alone, and the other
    engines refuse it (`jobfile.containers.why_not`). Their client stands outside, where hidden
    nodes would hide nothing from the job, and a namespace would keep podman from making its own.
    """
    return job.isolation == "strict" and job.container is None


def placed(job: Job, place: AttemptPlace) -> AttemptPlace:
    """Return the place with the mask's style that a strict job needs; others unchanged.

    CUDA, and NVML, number only the cards whose node they can open: the job's only card is 0 to it,
    whatever its index in nvidia-smi is outside (as under Slurm's device cgroups, and in
    containers). So the mask counts the job's own cards, which programs read that know no UUIDs.
    Only for an attempt from which the others' nodes are hidden: elsewhere these numbers are other
    cards'.
    """
    by_number = hides(job) and job.visible != "uuid"
    return replace(place, style="own") if by_number else place


def hidden(job: Job, gpus: Sequence[Gpu]) -> tuple[str, ...] | None:
    """Return the paths that the keeper hides from an attempt; None: it isolates nothing.

    Raises NodesError where a card cannot be told apart from the others.
    """
    if not hides(job):
        return None
    nodes = look()
    if why := why_not(gpus, nodes):
        raise NodesError(why)
    return hidden_from(gpus, nodes)


def refusal(gpus: Sequence[Gpu]) -> str | None:
    """Why strict jobs on these cards are refused on this machine, tried in a child; None: not."""
    return why_no_isolation() or why_not(gpus, look())


def why_no_isolation(keepers: str | None = None) -> str | None:
    """Return what forbids strict isolation to this process's jobs, in one line; else None.

    It is tried by the keepers' program, in a process of its own: no setting tells it reliably.
    Sysctls, AppArmor (by the program's path) and containers' seccomp filters all matter.
    `keepers`: their program; None: this gpulaunch's.
    """
    try:
        tried = subprocess.run(
            [keepers or find_keepers(), "try-isolation"],
            timeout=ISOLATION_CHECK_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except (OSError, KeepersError, subprocess.TimeoutExpired) as error:
        return f"strict isolation could not be tried: {error}"
    said = tried.stderr.decode("utf-8", "replace").strip().splitlines()
    return (
        (said or [f"strict isolation could not be tried: {tried}"])[-1]
        if tried.returncode
        else None
    )


def why_not(gpus: Sequence[Gpu], nodes: Nodes) -> str | None:
    """Why the other cards cannot be hidden from a job on these; None where they can."""
    for gpu in gpus:
        if gpu.simulated:
            continue
        if why := device_nodes.why_not(gpu, nodes):
            return f"strict isolation is not possible here: {why}"
        if gpu.mig and os.geteuid() == 0:
            return (
                f"strict isolation is not possible here: GPU {gpu.index} ({gpu.uuid}): to root the"
                " driver opens every MIG instance of a card; run as an ordinary user"
            )
    return None


def finding(gpus: Sequence[Gpu]) -> DoctorFinding:
    """Return the finding of `gpulaunch doctor` on `isolation: strict` for these cards."""
    if why := refusal(gpus):
        return DoctorFinding("note", why, "jobs that say `isolation: strict` are refused here")
    if os.geteuid() == 0:
        return DoctorFinding("ok", "strict isolation works here", AS_ROOT)
    return DoctorFinding("ok", "strict isolation works here")


# ── Images of containers ──────────────────────────────────────────────────────────────────────────
