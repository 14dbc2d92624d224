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
from dataclasses import dataclass, field

from gpulaunch.core.active import ActiveAttempt
from gpulaunch.core.cards import Card, Cards
from gpulaunch.core.jobs import Jobs
from gpulaunch.core.reasons import CardReason, FailedOnCard, JobsFailedThere, LostByJobs

FAILURES_TO_DOUBT = 2
IN_A_ROW = 3
FAILURES_TO_BE_SURE = 5
SUCCESSES_TO_CLEAR = 3
SUCCESSES_ELSEWHERE = 3
FAILURES_PER_SUCCESS = 4
LOST_TO_SET_ASIDE = 2
"""Numbers of different jobs. Where one job in ten fails by chance, five in a row fail on one card
once in 100,000 jobs; on a sick card five fail soon, and all of them run again elsewhere."""

BLAMABLE = frozenset(
    {
        "exit",
        "signal",
        "timeout",
        "idle_timeout",
        "missing_output",
        "no_gpu_seen",
        "gpu_busy",
        "gpu_lost",
        "gpu_library",
        "crash",
        "assert",
        "nan",
        "collective",
    }
)
"""Failure classes that a sick card can cause."""


@dataclass(slots=True)
class FailureStreak:
    """Jobs that failed on a card since the last success there, each with its class.

    `cleared` are those of these jobs that have succeeded elsewhere since. `good` and `bad` count
    all successes and failures on other cards since.
    """

    failed: dict[str, str] = field(default_factory=dict)
    cleared: set[str] = field(default_factory=set)
    good: int = 0
    bad: int = 0

    @property
    def stands_out(self) -> bool:
        """True while jobs fail in a row on this card and most succeed on others."""
        return len(self.failed) >= IN_A_ROW and self.good >= max(
            SUCCESSES_ELSEWHERE, FAILURES_PER_SUCCESS * self.bad
        )


class CardHealth:
    """Watches the ends of attempts on single cards; sets cards aside and requeues their jobs."""

    def __init__(self, cards: Cards, jobs: Jobs) -> None:
        self._cards = cards
        self._jobs = jobs
        self._streaks: dict[str, FailureStreak] = {}
        self._failed_on: dict[str, str] = {}  # each job's first
        self._tried: set[str] = set()  # a job gets one more try on a card's account

    def doubted(self, card: Card, job: str) -> bool:
        """Whether other jobs failed in a row on the card before this job did."""
        streak = self._streaks.get(card.gpu.uuid)
        return streak is not None and len(streak.failed.keys() - {job}) + 1 >= FAILURES_TO_DOUBT

    def succeeded(self, live: ActiveAttempt) -> None:
        if len(live.cards) != 1:
            return
        (card,) = live.cards
        self._streaks.pop(card.gpu.uuid, None)
        for uuid, streak in list(self._streaks.items()):
            streak.good += 1
            if live.id.job in streak.failed:
                streak.cleared.add(live.id.job)
            self._judge(self._cards[uuid], streak)

    def failed(self, live: ActiveAttempt, failure: str) -> None:
        """Count a failed attempt. Call this once its job is settled, or waits again."""
        if len(live.cards) != 1 or failure not in BLAMABLE:
            return
        (card,) = live.cards
        job = live.id.job
        for uuid, other in self._streaks.items():
            other.bad += uuid != card.gpu.uuid
        first = self._failed_on.setdefault(job, card.gpu.uuid)
        if first != card.gpu.uuid:
            if first in self._streaks:
                self._streaks[first].failed.pop(job, None)
            return
        streak = self._streaks.setdefault(card.gpu.uuid, FailureStreak())
        streak.failed[job] = failure
        self._judge(card, streak)

    def _judge(self, card: Card, streak: FailureStreak) -> None:
        others = [other for other in self._cards if other is not card and other.serves]
        if not card.serves or not others:
            return
        lost = [job for job, failure in streak.failed.items() if failure == "gpu_lost"]
        if len(lost) >= LOST_TO_SET_ASIDE:
            self._set_aside(card, streak, LostByJobs(tuple(lost)))
        elif not streak.stands_out:
            return
        elif (
            len(streak.failed) >= FAILURES_TO_BE_SURE and len(streak.cleared) >= SUCCESSES_TO_CLEAR
        ):
            why = JobsFailedThere(tuple(streak.failed), len(streak.cleared))
            self._set_aside(card, streak, why)
        else:
            self._elsewhere(card, streak.failed, FailedOnCard(card.gpu.index, len(streak.failed)))

    def _set_aside(self, card: Card, streak: FailureStreak, why: CardReason) -> None:
        del self._streaks[card.gpu.uuid]
        self._cards.doom(card, why)
        left = [job for job in streak.failed if job not in streak.cleared]
        self._elsewhere(card, left, FailedOnCard(card.gpu.index, 0))

    def _elsewhere(self, card: Card, names: Iterable[str], why: FailedOnCard) -> None:
        """Requeue those jobs that failed for good, with what was skipped because of them."""
        failed = [job for job in names if self._jobs.is_bad(self._jobs.nodes[job])]
        failed = [job for job in failed if job not in self._tried]
        self._tried.update(failed)
        nodes = self._jobs.to_retry(tuple(failed))
        self._jobs.requeue(nodes, why, avoid=frozenset({card.gpu.uuid}))
