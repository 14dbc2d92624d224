"""Random job lists and random histories, each from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gpulaunch.core.model import Demand, DueTime, Gpu, Job, RetryPolicy, Service
from tests.core.cluster import Cluster
from tests.core.ladders import LADDER
from tests.core.pulls import in_containers
from tests.core.sharers import sharing
from tests.core.topologies import some_machine
from tests.core.world import EPOCH, GIB, Side, World, pretend_gpus

TOKENS = ("msa", "licence")


def random_jobs(rng: random.Random, cards: int, most: int = 12) -> tuple[Job, ...]:
    """Up to `most` jobs with every field that the core reads; needs point backwards."""
    count = rng.randint(1, most)
    demands = [random_demand(rng, cards) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.3:  # a list for workers, one ahead
        gpus = rng.choice([1, 1, 1, min(2, cards)])
        demands = [Demand(gpus=gpus, per_gpu=rng.choice([1, 1, 2]), worker="fold")]
    jobs: list[Job] = []
    services: set[str] = set()
    for number in range(count):
        name = f"j{number}"
        earlier = [job.name for job in jobs]
        needs = rng.sample(earlier, min(len(earlier), rng.choice([0, 0, 0, 1, 1, 2])))
        rest = [other for other in earlier if other not in needs]
        after = rng.sample(rest, min(len(rest), rng.choice([0, 0, 0, 1])))
        service = rng.random() < 0.15
        demand = rng.choice(demands)
        if service:
            services.add(name)
            needs = [need for need in needs if need not in services or rng.random() < 0.3]
        jobs.append(
            Job(
                name,
                "true",
                demand=replace(demand, worker="") if service else demand,
                needs=tuple(needs),
                after=tuple(after),
                priority=rng.choice([0, 0, 0, 5]),
                cost=rng.choice([0.0, 0.0, 1.0, 7.5]),
                retry=random_retry(rng),
                group=rng.choice([0, 0, 1]),
                ladder=rng.choice([None, LADDER]),
                not_before=random_due(rng),
                service=Service("tcp:8000") if service else None,
            )
        )
    jobs = some_with_memory(some_preemptible(jobs, rng), rng)
    return _some_through_mps(jobs, rng)


def some_of_a_kind(jobs: Sequence[Job], rng: random.Random) -> tuple[Job, ...]:
    """The same jobs, some of them for one model of card."""
    kinds = {"card": "*80"}, {"card": "PRETEND*"}, {"compute": (9, 0)}
    return tuple(
        replace(job, demand=replace(job.demand, **rng.choice(kinds)))
        if job.demand.gpus and not job.demand.worker and rng.random() < 0.5
        else job
        for job in jobs
    )


def some_on_one_card(
    jobs: Sequence[Job], gpus: Sequence[Gpu], rng: random.Random, share: float
) -> tuple[Job, ...]:
    """The same jobs, some of them for one card alone."""
    return tuple(
        replace(job, demand=replace(job.demand, own_gpu=rng.choice(gpus).uuid))
        if job.demand.gpus == 1 and not job.demand.worker and rng.random() < share
        else job
        for job in jobs
    )


def some_preemptible(jobs: list[Job], rng: random.Random) -> tuple[Job, ...]:
    """The same jobs, some of them preemptible; draws nothing from `rng`."""
    aside = random.Random(str(rng.getstate()[1][:9]))
    share = aside.choice([0.0, 0.0, 0.5, 1.0])
    return tuple(
        replace(job, demand=replace(job.demand, preemptible=True))
        if job.demand.gpus and job.service is None and aside.random() < share
        else job
        for job in jobs
    )


def some_with_memory(jobs: tuple[Job, ...], rng: random.Random) -> tuple[Job, ...]:
    """The same jobs, some with host memory, alike for alike demands; draws nothing from `rng`."""
    aside = random.Random(f"memory {rng.getstate()[1][:9]}")
    share = aside.choice([0.0, 0.5, 0.8, 1.0])
    chosen = {job.demand: 0 for job in jobs}
    for demand in chosen:
        if aside.random() < share:
            chosen[demand] = aside.choice([1, 2, 4, 7, 7, 9]) * GIB
    return tuple(
        replace(job, demand=replace(job.demand, memory=chosen[job.demand])) for job in jobs
    )


def _some_through_mps(jobs: tuple[Job, ...], rng: random.Random) -> tuple[Job, ...]:
    """The same jobs, some that share a card doing so through MPS; draws nothing from `rng`."""
    aside = random.Random(str(rng.getstate()[1][9:18]))
    if aside.random() < 0.8:
        return jobs
    chosen = {worker: aside.random() < 0.5 for worker in ("", "fold", "embed")}
    return tuple(
        replace(job, demand=replace(job.demand, mps=True))
        if job.demand.shares_card and chosen[job.demand.worker]
        else job
        for job in jobs
    )


def random_demand(rng: random.Random, cards: int) -> Demand:
    gpus = rng.choice([0, 1, 1, 1, 2, rng.randint(0, cards + 1)])
    return Demand(
        gpus=min(gpus, cards + 1),
        gpu_memory=rng.choice([0, 0, 10 * GIB, 40 * GIB, 70 * GIB]) if gpus else 0,
        per_gpu=rng.choice([1, 1, 2, 3]) if gpus else 1,
        cpus=rng.choice([None, None, 2, 6]),
        uses=tuple(rng.sample(TOKENS, rng.choice([0, 0, 0, 1, 2]))),
        worker=rng.choice(["", "", "fold", "fold", "embed"]),
    )


def random_retry(rng: random.Random) -> RetryPolicy:
    on = rng.choice([frozenset(), frozenset(), frozenset({"exit"})])
    return RetryPolicy(rng.choice([0, 0, 1, 2]), on, rng.choice([0.0, 0.0, 30.0]))


def random_due(rng: random.Random) -> DueTime | None:
    if rng.random() < 0.7:
        return None
    return DueTime("19:00", EPOCH + 100.0 + rng.choice([0.0, 0.5, 20.0, 90.0, 900.0]))


def random_options(rng: random.Random, cards: int) -> dict[str, Any]:
    return {
        "limits": {token: rng.choice([1, 1, 2]) for token in TOKENS},
        "cpus": rng.choice([1, 2, 4]),
        "memory": random_memory(rng),
        "limit": rng.choice([None, None, rng.randint(1, cards)]),
        "fail_fast": rng.random() < 0.07,
        "max_failures": rng.choice([None, None, None, 2]),
        "breaker": rng.choice([None, None, 2, 3]),
        "pinned": rng.random() < 0.7,
        "patient": rng.random() < 0.5,
    }


def random_memory(rng: random.Random) -> int | None:
    """What a run may reserve; draws nothing from `rng`."""
    aside = random.Random(f"host {rng.getstate()[1][:9]}")
    return aside.choice([None, 8 * GIB, 8 * GIB, 12 * GIB, 16 * GIB])


def play(
    seed: int,
    sides: int = 1,
    images: bool = True,
    shares: bool = True,
    limited: bool = False,
    refuses: bool = True,
    unified: bool = False,
) -> World:
    """One history: some disturbed steps, then quiet, then the end. Raises on any broken promise.

    `images`: in some histories, jobs run in containers; `shares`: in some, jobs share cards by
    memory. `limited`: the sides are one user's, who may have so many cards at once. `refuses`: in
    some, launches are refused at once. `unified`: some cards use the host's memory. In some, cards
    are linked, and jobs are for one model, or for one card.
    """
    rng = random.Random(seed)
    cards = rng.randint(1, 4)
    allowance = random.Random(f"allowance {seed}").randint(1, cards) if limited else None
    sizes = rng.choice([(), (), (80 * GIB, 40 * GIB), (48 * GIB, 80 * GIB, 80 * GIB)])
    machine = random.Random(f"machine {seed}")
    gpus, mixed = pretend_gpus(cards, *sizes), machine.random() < 0.25
    gpus = some_machine(gpus, machine) if mixed else gpus
    coherent = random.Random(f"unified {seed}")
    if unified:
        chosen = coherent.choice([1.0, 1.0, 0.5])
        gpus = tuple(replace(gpu, unified=coherent.random() < chosen) for gpu in gpus)
    refusing = random.Random(f"refusing {seed}").choice([0.0] * 8 + [0.2, 0.5] * refuses)
    world = World(gpus, rng, allowance=allowance, refusing=refusing)
    aside = random.Random(f"images {seed}")
    share = aside.choice([0.0, 0.0, 0.4, 0.9]) if images else 0.0
    sharers = random.Random(f"sharing {seed}")
    part = sharers.choice([0.0, 0.0, 0.4, 0.9, 1.0]) if shares else 0.0
    pinning = random.Random(f"one card {seed}")
    pinned = pinning.choice([0.0, 0.0, 0.4, 1.0])
    for number in range(sides):
        jobs = in_containers(random_jobs(rng, cards), aside, share)
        jobs = sharing(jobs, sharers, part)
        jobs = some_of_a_kind(jobs, machine) if mixed else jobs
        jobs = some_on_one_card(jobs, gpus, pinning, pinned)
        options = random_options(rng, cards)
        if unified:
            options["memory"] = coherent.choice([60, 80, 100]) * GIB
        if allowance is not None:
            options["limit"] = min(options.get("limit") or cards, allowance)
        side = world.add(jobs, name="ABC"[number], **options)
        side.list.containers = aside if share else None
        side.list.sharers = (sharers, part) if part else None
    nervous = rng.choice([0.0, 0.05, 0.2])
    sleepy = rng.choice([0.0, 0.05, 0.2])
    lively = rng.choice([0.0, 0.0, 0.05, 0.15])
    for _ in range(rng.randint(0, 150)):
        if rng.random() < nervous:
            world.disturb(rng.choice(world.sides))
        elif rng.random() < sleepy:
            side = rng.choice(world.sides)
            (world.wake if side.asleep else world.suspend)(side)
        elif rng.random() < lively:
            world.relist(rng.choice(world.sides))
        elif rng.random() < nervous / 20:
            side = rng.choice(world.sides)
            world.crash(side, edited(rng, side))
        elif not world.step():
            break
    if refusing:
        world.refuse_all(300)
    world.quiet_down()
    world.run_to_end()
    return world


def play_in_a_queue(seed: int) -> Cluster:
    """The same where an engine queues and places by itself, and outlives its client."""
    rng = random.Random(seed)
    cards = rng.randint(1, 3)
    options = random_options(rng, 4)
    del options["cpus"], options["memory"]
    options["ahead"] = rng.random() < 0.5
    jobs = random_jobs(rng, cards)
    jobs = tuple(job for job in jobs if job.service is None or rng.random() < 0.1)
    if rng.random() < 0.3:
        jobs = alike(rng, jobs)
    most = rng.choice([1, 2, 3, 100])
    aside = random.Random(f"images {seed}")
    share = aside.choice([0.0, 0.0, 0.4, 0.9])
    jobs = in_containers(jobs or (Job("j", "true"),), aside, share)
    cluster = Cluster(jobs, rng, rng.randint(1, 3), cards, most, **options)
    cluster.list.containers = aside if share else None
    nervous = rng.choice([0.0, 0.05, 0.2])
    lively = rng.choice([0.0, 0.0, 0.05, 0.15])
    for _ in range(rng.randint(0, 150)):
        if rng.random() < nervous:
            cluster.disturb()
        elif rng.random() < lively:
            cluster.relist()
        elif rng.random() < nervous / 5:
            cluster.crash(edited(rng, cluster))
        elif not cluster.step():
            break
    cluster.quiet_down()
    cluster.run_to_end()
    return cluster


def alike(rng: random.Random, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Some of the jobs use a token that nobody else does, and differ in nothing else."""
    token = rng.choice(TOKENS)
    demand = Demand(uses=(token,) * rng.choice([1, 1, 2]))
    made = []
    for job in jobs:
        if job.service is None and rng.random() < 0.7:
            needs = job.needs if rng.random() < 0.2 else ()
            made.append(replace(job, demand=demand, needs=needs, after=()))
        else:
            uses = tuple(other for other in job.demand.uses if other != token)
            made.append(replace(job, demand=replace(job.demand, uses=uses)))
    return tuple(made)


def edited(rng: random.Random, side: Side | Cluster) -> tuple[Job, ...]:
    """The job file as it may be after somebody edited it: the last job gone, another one new."""
    jobs = [_read_anew(job) for job in side.jobs]
    if rng.random() < 0.3 and len(jobs) > 1:
        jobs.pop()
    if rng.random() < 0.3:
        jobs.append(Job(f"new{side.crashes}", "true"))
    return tuple(jobs)


def _read_anew(job: Job) -> Job:
    """The job as a file says it that is read a day later: 19:00 is the next one."""
    if job.not_before is None:
        return job
    return replace(job, not_before=DueTime(job.not_before.words, job.not_before.utc + 86400.0))
