"""What `check` says of the cards' kinds and the CPUs near them, where a job has less of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpulaunch.core.model import Job
from gpulaunch.engines.pool import CardPool
from gpulaunch.text import listing, several


def notes(jobs: Sequence[Job], pool: CardPool) -> Iterator[str]:
    """Yield a line for each thing that jobs ask for, and that these cards cannot tell or give."""
    if pool.simulated and any(job.demand.card or job.demand.compute for job in jobs):
        yield "card:, compute: pretend cards are of any model and capability"
    placement = pool.machine.placement
    bound = [job for job in jobs if job.demand.gpus and placement.applies(job)]
    unknown = [str(gpu.index) for gpu in pool.gpus if not placement.near_cards([gpu])]
    if unknown and any(job.affinity == "card" for job in bound):
        yield (
            f"affinity: which CPUs are near GPU {listing(unknown)} is not known here, or none of"
            " them is allowed: jobs there run on all that are"
        )
    most = min((len(placement.near_cards([gpu])) for gpu in pool.gpus), default=0)
    wide = [job for job in bound if most < (job.demand.cpus or 0)]
    if most and wide:
        cpus = max(job.demand.cpus or 0 for job in wide)
        yield (
            f"affinity: {listing([job.name for job in wide])}: cpus: {cpus} is more than the"
            f" {several(most, 'CPU')} near a card, so it runs on all that are allowed"
        )
