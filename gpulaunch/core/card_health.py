"""Sets aside cards on which jobs fail that succeed on other cards.

    3 jobs in a row fail there ──most succeed elsewhere──▶ each of them is tried once elsewhere
                                                              │ 5 in a row, 3 succeeded elsewhere
                                                              ▼
                                                     the card is set aside

A success on the card ends the suspicion. A job that fails elsewhere as well is at fault itself, and
counts no more. Two jobs that report the card as lost are enough, even if the driver finds it well.
The counts are lost with their supervisor, and are never in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpulaunch.core import graph
from gpulaunch.core.attempts import ActiveAttempt
from gpulaunch.core.cards import Card
from gpulaunch.core.reasons import CardReason, FailedOnCard, JobsFailedThere, LostByJobs
from gpulaunch.core.retry import policy_of
from gpulaunch.core.state import FailureStreak, State

FAILURES_TO_DOUBT = 2
IN_A_ROW = 3
FAILURES_TO_BE_SURE = 5
SUCCESSES_TO_CLEAR = 3
SUCCESSES_ELSEWHERE = 3
FAILURES_PER_SUCCESS = 4
LOST_TO_SET_ASIDE = 2
"""Numbers of different jobs. Where one job in ten fails by chance, five in a row fail on one card
once in 100,000 jobs; on a sick card five fail soon, and all of them run again elsewhere."""


def doubted(state: State, card: Card, job: str) -> bool:
    """Tell whether other jobs failed in a row on the card before this job did."""
    streak = state.health.streaks.get(card.gpu.uuid)
    return streak is not None and len(streak.failed.keys() - {job}) + 1 >= FAILURES_TO_DOUBT


def succeeded(state: State, live: ActiveAttempt) -> None:
    if len(live.cards) != 1:
        return
    (card,) = live.cards
    state.health.streaks.pop(card.gpu.uuid, None)
    for uuid, streak in list(state.health.streaks.items()):
        streak.good += 1
        if live.id.job in streak.failed:
            streak.cleared.add(live.id.job)
        _judge(state, state.cards[uuid], streak)


def failed(state: State, live: ActiveAttempt, failure: str) -> None:
    """Count a failed attempt. Call this once its job is settled, or waits again."""
    if len(live.cards) != 1 or not policy_of(failure).suspect:
        return
    (card,) = live.cards
    job = live.id.job
    for uuid, other in state.health.streaks.items():
        other.bad += uuid != card.gpu.uuid
    first = state.health.failed_on.setdefault(job, card.gpu.uuid)
    if first != card.gpu.uuid:
        if first in state.health.streaks:
            state.health.streaks[first].failed.pop(job, None)
        return
    streak = state.health.streaks.setdefault(card.gpu.uuid, FailureStreak())
    streak.failed[job] = failure
    _judge(state, card, streak)


def _judge(state: State, card: Card, streak: FailureStreak) -> None:
    others = [other for other in state.cards if other is not card and other.serves]
    if not card.serves or not others:
        return
    lost = [job for job, failure in streak.failed.items() if failure == "gpu_lost"]
    if len(lost) >= LOST_TO_SET_ASIDE:
        _set_aside(state, card, streak, LostByJobs(tuple(lost)))
    elif not _stands_out(streak):
        return
    elif len(streak.failed) >= FAILURES_TO_BE_SURE and len(streak.cleared) >= SUCCESSES_TO_CLEAR:
        why = JobsFailedThere(tuple(streak.failed), len(streak.cleared))
        _set_aside(state, card, streak, why)
    else:
        _elsewhere(state, card, streak.failed, FailedOnCard(card.gpu.index, len(streak.failed)))


def _set_aside(state: State, card: Card, streak: FailureStreak, why: CardReason) -> None:
    del state.health.streaks[card.gpu.uuid]
    state.cards.doom(card, why)
    left = [job for job in streak.failed if job not in streak.cleared]
    _elsewhere(state, card, left, FailedOnCard(card.gpu.index, 0))


def _elsewhere(state: State, card: Card, names: Iterable[str], why: FailedOnCard) -> None:
    """Requeue those jobs that failed for good, with what was skipped because of them."""
    failed = [job for job in names if graph.is_bad(state, state.jobs.nodes[job])]
    failed = [job for job in failed if job not in state.health.tried]
    state.health.tried.update(failed)
    nodes = graph.to_retry(state, tuple(failed))
    graph.requeue(state, nodes, why, avoid=frozenset({card.gpu.uuid}))


def _stands_out(streak: FailureStreak) -> bool:
    """Tell whether jobs fail in a row on this card and most succeed on others."""
    needed = max(SUCCESSES_ELSEWHERE, FAILURES_PER_SUCCESS * streak.bad)
    return len(streak.failed) >= IN_A_ROW and streak.good >= needed
