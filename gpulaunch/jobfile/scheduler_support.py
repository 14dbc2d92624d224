"""Finds what a cluster's scheduler cannot do of a job list, before anything is submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpulaunch.core.model import Job
from gpulaunch.errors import Mistake
from gpulaunch.jobfile.plan import Plan, overdrawn
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import YamlNode, node_at
from gpulaunch.text import asking_for_memory, several


def unfit(plan: Plan, jobs: Sequence[Job], limit: int | None) -> list[Mistake]:
    """Return mistakes for fields that no job under `--engine slurm` can have, each place once.

    `limit`: cards that the run may have at once; None: as many as Slurm gives.
    """
    return plan.mistakes(
        (place, why if place[-1] == field else f"{field}: {why}")
        for job in jobs
        for field, why in why_not(job, limit, plan.limits)
        for place in [_place(plan.root, job.group, field)]
    )


def why_not(job: Job, limit: int | None, limits: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) for everything that keeps the job from running there."""
    demand = job.demand
    if job.service is not None:
        yield (
            "service",
            "Slurm starts jobs when it likes, none beside another: start the server yourself and"
            " give its address in env:, or run the list with --engine local",
        )
    if job.worker is not None:
        yield (
            "worker",
            "Slurm gives cards to one job at a time, no process can take several: write run:, with"
            " batch: for longer jobs, or run the list with --engine local",
        )
    if job.isolation == "strict":
        yield (
            "isolation",
            "Slurm itself hides the other cards (ConstrainDevices=yes in its cgroup.conf): leave"
            " it out",
        )
    for field, given in (("card", demand.card), ("compute", demand.compute)):
        if given:
            yield (
                field,
                "Slurm chooses the cards: name a type of them with engine: {slurm: {gres: a100}},"
                " or a constraint of your site in extra:",
            )
    if demand.per_gpu > 1:
        yield "per_gpu", "Slurm gives a job whole cards: leave it out; batch: makes longer jobs"
    if demand.share:
        yield "share", "Slurm gives a job whole cards: leave it out; batch: makes longer jobs"
    if job.gpu_idle is not None and demand.gpus:
        yield (
            "gpu_idle",
            "nothing measures on a cluster's nodes what jobs compute: leave it out (idle_timeout:"
            " or timeout: ends what hangs), or run the list with --engine local",
        )
    if demand.mps:
        yield "mps", "Slurm gives a job whole cards, none is shared: leave it out"
    if job.visible != "index":
        yield "visible", "Slurm spells the mask, gpulaunch only checks it: leave it out"
    if limit is not None and demand.gpus > limit:
        yield "gpus", f"needs {demand.gpus}, the run may have {limit} at once (job {job.name})"
    if why := asks_twice(job):
        yield "memory", why
    for token, count in overdrawn(demand.uses, limits):
        yield "uses", f"needs {count} of {token}, its limit is {limits[token]} (job {job.name})"


def asks_twice(job: Job) -> str:
    """Return why a job's `memory:` does not go with its own options for Slurm; else empty."""
    asked = asking_for_memory(job.engine.get("slurm", {}).get("extra", ()))
    if not (job.demand.memory and asked):
        return ""
    return f"{asked[0]} in extra: asks Slurm for memory as well: leave one of them out"


def outranked(jobs: Sequence[Job], defaults: Mapping[str, Sequence[str]], source: str) -> str:
    """Return a line on options of the configuration that jobs' `memory:` goes before; else empty.

    `defaults` are its settings for Slurm, `source` is where its `extra` stands.
    """
    asked = asking_for_memory(defaults.get("extra", ()))
    count = sum(
        bool(job.demand.memory) and "extra" not in job.engine.get("slurm", {}) for job in jobs
    )
    if not (asked and count):
        return ""
    return (
        f"memory: goes before {asked[0]}, which {source} says of all jobs:"
        f" {several(count, 'job')} of this list {'has' if count == 1 else 'have'} it"
    )


def _place(root: YamlNode, group: int, field: str) -> Steps:
    """Return where the field's value comes from: the job, else `defaults:`, else the file."""
    known: list[Steps] = [("jobs", group, field), ("defaults", field)]
    if field == "per_gpu":
        known.append((field,))
    nodes = ((steps, node_at(root, steps)) for steps in known)
    return next((steps for steps, node in nodes if node and node.value is not None), known[0][:2])


def notes(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield a line for each setting of this machine that has no meaning there."""
    if any(job.preload for job in jobs):
        yield "preload: does nothing under Slurm: each job starts cold, on a node of its own"
    if any(job.ladder for job in jobs):
        yield (
            "ladder: jobs that are in Slurm's queue already keep the step with which they were"
            " handed over; what succeeds counts for retries and for jobs handed over later"
        )
    if any(job.demand.preemptible for job in jobs):
        yield (
            "preemptible: Slurm decides what it preempts by partition and QOS: name one that gives"
            " way with engine: {slurm: {partition: ...}}; a preempted job is run again, uncharged"
        )
    if any(job.affinity == "card" for job in jobs):
        yield (
            "affinity: Slurm itself gives a job its CPUs (its options for that go into extra:), and"
            " gpulaunch changes nothing there"
        )
    if any(job.demand.gpu_memory or job.demand.kind is not None for job in jobs):
        yield (
            "gpu_memory: Slurm is not told of it: name a type of card that has it with engine:"
            " {slurm: {gres: a100}}, or a constraint of your site in extra:"
        )
