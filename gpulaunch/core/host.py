"""The host's memory: what attempts and idle workers hold of it, and whether more may be had.

INVARIANT: what this supervisor's attempts and workers hold together is no more than the run may
reserve. A worker's memory is held from its first attempt until it is gone; it serves one attempt
after the other. Workers that are idle are ended as soon as a job waits for memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpulaunch.core.model import Demand
from gpulaunch.core.reasons import MemoryShort
from gpulaunch.core.state import State
from gpulaunch.core.waiting import Node


def held(state: State) -> int:
    """Return the bytes that attempts and idle workers hold."""
    return state.attempts.memory + state.idle_workers.memory


def lacks_memory(state: State, demand: Demand) -> bool:
    """Tell whether the demand's memory is not to be had now, or is kept for another job.

    An idle worker that suits it has its memory already. It may not go on with that where the job
    that memory is kept for lacks it.
    """
    if not demand.memory:
        return False
    more = 0 if state.idle_workers.fit(demand) is not None else demand.memory
    return held(state) + state.placing.last.kept_memory + more > state.config.memory


def keep_for(state: State, node: Node) -> None:
    """Keep memory for the job: later jobs of the pass leave it that much."""
    state.placing.last.kept_memory += node.job.demand.memory


def gather_for(state: State, node: Node) -> None:
    """Keep memory for a job that lacks it and was overtaken too often, until it is enough."""
    keep_for(state, node)
    state.placing.last.memory_for = state.placing.last.memory_for or node


def is_kept_from(state: State, node: Node) -> bool:
    """Tell whether memory is gathered for a job whose turn is before this one's.

    No worker that has some goes on with this one then.
    """
    first = state.placing.last.memory_for
    return first is not None and node.job.demand.memory > 0 and first.key < node.key


def memory_short(demand: Demand, limit: int) -> MemoryShort | None:
    """Return why a run that may reserve so many bytes never meets the demand; None if it can."""
    return MemoryShort(demand.memory, limit) if demand.memory > limit else None


def fits_together(demands: Iterable[Demand], limit: int) -> bool:
    """Tell whether all demands may have their memory at once."""
    return sum(demand.memory for demand in demands) <= limit
