"""Cards on which different jobs fail that succeed elsewhere: noticed, put to the test, set aside.

    3 jobs in a row fail there ──others succeed elsewhere──▶ those 3 are tried once elsewhere
                                                                │ 2 of them succeed
                                                                ▼
                                                       the card is set aside

A success there ends the suspicion. A job that fails elsewhere as well is guilty itself, and counts
no more. Two jobs that lost the card by their own words, though the driver finds it well, are
enough. What is known here is of this supervisor's time alone, and never in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpulaunch.core.attempts import Live
from gpulaunch.core.cards import Card, Cards
from gpulaunch.core.jobs import Jobs

IN_A_ROW = 3
CLEARED = 2
ELSEWHERE = 3
LOST = 2
DOUBT = 2

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
"""Classes of failure that a sick card can cause."""


@dataclass(slots=True)
class Streak:
    """Jobs that failed on a card since the last success there, each with its class.

    `cleared` are those of them that have succeeded elsewhere since; `elsewhere` counts all
    successes on other cards.
    """

    failed: dict[str, str] = field(default_factory=dict)
    cleared: set[str] = field(default_factory=set)
    elsewhere: int = 0


class Suspects:
    """Watches ends of attempts on single cards; sets cards aside, gives their jobs another try."""

    def __init__(self, cards: Cards, jobs: Jobs) -> None:
        self._cards = cards
        self._jobs = jobs
        self._streaks: dict[str, Streak] = {}
        self._failed_on: dict[str, str] = {}  # each job's first
        self._tried: set[str] = set()  # a job gets one more try on a card's account

    def doubted(self, card: Card, job: str) -> bool:
        """Whether others have failed there in a row before this job did."""
        streak = self._streaks.get(card.gpu.uuid)
        return streak is not None and len(streak.failed.keys() - {job}) + 1 >= DOUBT

    def succeeded(self, live: Live) -> None:
        if len(live.cards) != 1:
            return
        (card,) = live.cards
        self._streaks.pop(card.gpu.uuid, None)
        for uuid, streak in list(self._streaks.items()):
            streak.elsewhere += 1
            if live.id.job in streak.failed:
                streak.cleared.add(live.id.job)
            self._judge(self._cards[uuid], streak)

    def failed(self, live: Live, failure: str) -> None:
        """To be told once the job is settled, or waits again."""
        if len(live.cards) != 1 or failure not in BLAMABLE:
            return
        (card,) = live.cards
        job = live.id.job
        first = self._failed_on.setdefault(job, card.gpu.uuid)
        if first != card.gpu.uuid:
            if first in self._streaks:
                self._streaks[first].failed.pop(job, None)
            return
        streak = self._streaks.setdefault(card.gpu.uuid, Streak())
        streak.failed[job] = failure
        self._judge(card, streak)

    def _judge(self, card: Card, streak: Streak) -> None:
        others = [other for other in self._cards if other is not card and other.serves]
        if not card.serves or not others:
            return
        lost = [job for job, failure in streak.failed.items() if failure == "gpu_lost"]
        if len(lost) >= LOST:
            self._set_aside(card, streak, f"{len(lost)} different jobs lost it ({_listed(lost)})")
        elif len(streak.failed) < IN_A_ROW:
            return
        elif len(streak.cleared) >= CLEARED:
            text = f"{len(streak.failed)} different jobs failed there in a row"
            text += f", and {len(streak.cleared)} of them succeeded elsewhere"
            self._set_aside(card, streak, f"{text} ({_listed(streak.failed)})")
        elif streak.elsewhere >= ELSEWHERE:
            number = len(streak.failed)
            why = f"failed on GPU {card.gpu.index}, as {number} jobs in a row did; tried elsewhere"
            self._elsewhere(card, streak.failed, why)

    def _set_aside(self, card: Card, streak: Streak, why: str) -> None:
        del self._streaks[card.gpu.uuid]
        self._cards.doom(card, why)
        left = [job for job in streak.failed if job not in streak.cleared]
        self._elsewhere(card, left, f"failed on GPU {card.gpu.index}, which was set aside")

    def _elsewhere(self, card: Card, names: Iterable[str], why: str) -> None:
        """Jobs that failed for good, and what was skipped because of them, are to run again."""
        failed = [job for job in names if self._jobs.is_bad(self._jobs.nodes[job])]
        failed = [job for job in failed if job not in self._tried]
        self._tried.update(failed)
        nodes = self._jobs.to_retry(tuple(failed))
        self._jobs.requeue(nodes, why, avoid=frozenset({card.gpu.uuid}))


def _listed(jobs: Iterable[str]) -> str:
    names = list(jobs)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
