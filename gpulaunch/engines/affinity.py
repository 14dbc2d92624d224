"""On which CPUs a job runs: those near its cards, as far as this launcher may use them.

`read_cpus` alone looks at the machine; the rest is pure. The kernel's own scheduler balances what
runs on the same CPUs: jobs of different cards have all that are near, and only those that share a
card by `per_gpu` alone each have a part. Memory follows by itself: Linux gives a page from the node
on which it is first touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from gpulaunch.base.text import numbers_in
from gpulaunch.core.model import (
    Gpu,
    Job,
)
from gpulaunch.gpus.parse import line_of, numa_nodes, sysfs


class NearCpus(Struct, frozen=True):
    """The CPUs of a job, and how many threads a numerical library should start there."""

    cpus: tuple[int, ...]
    threads: int


class CpuPlacement(Struct, frozen=True):
    """The CPUs of this machine, and the run's cards.

    `allowed`: those that this launcher may use, the threads of a core beside each other. `nodes`:
    how many NUMA nodes have CPUs. `gpus`: the run's cards, none where nothing is known to be near
    any; `pool`: how many of them the run may have at once.
    """

    allowed: tuple[int, ...] = ()
    nodes: int = 1
    gpus: tuple[Gpu, ...] = ()
    pool: int = 0

    def near(
        self, job: Job, gpus: Sequence[Gpu], slot: int = 0, sharers: int = 0
    ) -> NearCpus | None:
        """Return the CPUs on which the job runs on these cards; None: on all that are allowed.

        `slot`: the job's number, from 0, among those that share its card. `sharers`: how many jobs
        like it the card may have at once; 0: as `per_gpu` says. Never fewer CPUs than the job
        reserves (`cpus`).
        """
        if not gpus or not self.applies(job):
            return None
        whole, demand = self.near_cards(gpus), job.demand
        if not whole:
            return None
        crowd = sum(bool(set(self.near_cards([gpu])) & set(whole)) for gpu in self.gpus)
        parts = demand.per_gpu if self.splits(job) else 1
        beside = max(1, sharers or demand.per_gpu)
        threads = len(whole) // max(1, min(crowd, self.pool)) // beside
        for cpus in (part(whole, slot, parts), whole):
            if len(cpus) >= (demand.cpus or 0):
                narrow = len(cpus) < len(self.allowed)
                return NearCpus(cpus, max(1, min(threads, len(cpus)))) if narrow else None
        return None

    def applies(self, job: Job) -> bool:
        """Tell whether the job is to run near its cards, where it is known what is near."""
        return job.affinity == "card" or (job.affinity is None and self.nodes > 1)

    def splits(self, job: Job) -> bool:
        """Tell whether the job has a part of what is near its card.

        Those that share by memory (`share`) have all of it: how many they will be is not known.
        """
        return job.demand.per_gpu > 1 and not job.demand.share and self.applies(job)

    def near_cards(self, gpus: Sequence[Gpu]) -> tuple[int, ...]:
        """Return the allowed CPUs near any of these cards; none where one's are not known."""
        return _near(tuple(gpu.cpus for gpu in gpus), self.allowed)


@lru_cache(maxsize=256)
def _near(lists: tuple[str, ...], allowed: tuple[int, ...]) -> tuple[int, ...]:
    if not all(lists):
        return ()
    near = {cpu for text in lists for cpu in numbers_in(text)}
    return tuple(cpu for cpu in allowed if cpu in near)


def part(cpus: tuple[int, ...], slot: int, parts: int) -> tuple[int, ...]:
    """Return one of so many equal parts of the CPUs, of at least one; they differ by one at most.

    There are no more parts than CPUs: then several jobs have the same one.
    """
    parts = min(parts, len(cpus))
    slot %= parts
    return cpus[slot * len(cpus) // parts : (slot + 1) * len(cpus) // parts]


def read_cpus(environ: Mapping[str, str], gpus: Sequence[Gpu], pool: int) -> CpuPlacement:
    """Look up this launcher's CPUs and the machine's NUMA nodes."""
    allowed, root = os.sched_getaffinity(0), f"{sysfs(environ)}/devices/system"
    if not any(gpu.cpus for gpu in gpus):
        return CpuPlacement(tuple(sorted(allowed)))
    core = {cpu: _core(root, cpu) for cpu in allowed}
    together = sorted(allowed, key=lambda cpu: (core[cpu], cpu))
    return CpuPlacement(tuple(together), numa_nodes(environ), tuple(gpus), pool)


def _core(root: str, cpu: int) -> int:
    """Return the first CPU of those that are threads of the same core; itself where not known."""
    siblings = numbers_in(line_of(f"{root}/cpu/cpu{cpu}/topology/thread_siblings_list"))
    return min(siblings, default=cpu)
