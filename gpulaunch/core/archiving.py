"""Forgets jobs that are over, so that a run which stands for years holds no more than it needs.

    settled long ago ─▶ nothing needs it, no attempt refers to it ─▶ archivable ─▶ forgotten

What is recorded of such a job then lies in a file of its own, which this module knows by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpulaunch.core import links
from gpulaunch.core.facts import JobsArchived
from gpulaunch.core.model import SETTLED_STATES
from gpulaunch.core.reached import reached
from gpulaunch.core.state import State
from gpulaunch.core.waiting import Node


def archivable(state: State, keep: int) -> list[str]:
    """Return the jobs that may be forgotten, the oldest end first, but the newest `keep`.

    Where an engine queues and places by itself there are none: it knows jobs of its own accord.
    """
    if state.config.queues or not state.course.submitted:
        return []
    ends = [(ended, node) for node in state.jobs if (ended := _over_since(state, node)) is not None]
    ends.sort(key=lambda pair: pair[0])
    old = [node for _, node in ends[: max(0, len(ends) - keep)]]
    needed = _needed(state, set(old))
    return [node.job.name for node in old if node not in needed]


def forget(state: State, names: Sequence[str], history: str) -> None:
    """Forget these jobs, and record that what is known of them lies in `history`."""
    ledger, health, gone = state.ledger, state.health, frozenset(names)
    nodes = [state.jobs.nodes[name] for name in names]
    ends = [ledger.jobs[name].state for name in names]
    counted = Counter(ledger.archived)
    counted.update(ends)
    failed = [name for name, end in zip(names, ends, strict=True) if end != "succeeded"]
    links.sever(nodes)
    state.jobs.forget(nodes)
    for name in health.failed_on.keys() & gone:
        del health.failed_on[name]
    health.tried -= gone
    for streak in health.streaks.values():
        for name in streak.failed.keys() & gone:
            del streak.failed[name]
        streak.cleared -= gone
    there = state.jobs.nodes.keys()
    state.course.reported = {
        report
        for report in state.course.reported
        if not report[2] or any(attempt.job in there for attempt in report[2])
    }
    newest = failed[-1] if failed else ledger.archived_failure
    by_state = {str(end): count for end, count in counted.items()}
    state.effects.fact(JobsArchived(tuple(names), history, by_state, newest))


def _over_since(state: State, node: Node) -> float | None:
    """Return when the job ended, if it is over for good, unless a person has it run again."""
    if not node.settled or node.excluded or node.withdrawn or node.job.service is not None:
        return None
    if node in state.jobs.failed and _counts_failures(state):
        return None
    record = state.ledger.jobs[node.job.name]
    if record.state not in SETTLED_STATES or record.vanished or record.settled is None:
        return None
    return record.settled.utc


def _counts_failures(state: State) -> bool:
    return state.config.fail_fast or state.config.max_failures is not None


def _needed(state: State, old: set[Node]) -> set[Node]:
    """Return the jobs that others rest on: what has not succeeded needs them, or would again.

    Coming after a job that is over holds nothing: nothing waits for it.
    """
    records = [state.ledger.attempt(live.id) for live in state.attempts]
    leaders = {record.behind.job for record in records if record.behind is not None}
    begin = [node for node in state.jobs if node not in old or node.job.name in leaders]
    return {*begin, *reached(begin, lambda node: _rests_on(state, node))}


def _rests_on(state: State, node: Node) -> Iterator[Node]:
    """Yield what the job's definition needs: by name, as a need may be out of the list for now."""
    if state.record(node).state == "succeeded" and node.job.service is None:
        return
    for name in (*node.job.needs, *(node.renewed.needs if node.renewed else ())):
        if name in state.jobs.nodes:
            yield state.jobs.nodes[name]
