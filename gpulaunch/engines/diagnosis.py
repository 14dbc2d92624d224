"""Gathers what is known of an attempt's end beside its status, before the end is posted.

    keeper's report ─▶ log's end, kernel's counters, a look at its cards ─▶ diagnose ─▶ Ended

Decides nothing about jobs or cards. An end whose status says all is passed on at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.core.causes import Hint
from gpulaunch.core.completion import BY_ITSELF
from gpulaunch.core.events import Ended
from gpulaunch.core.model import AttemptId, Failure, Gpu, Job
from gpulaunch.core.retry import failure_of
from gpulaunch.diagnose.failure.edge import Counters, counters, is_bar, tail
from gpulaunch.diagnose.failure.edge import rooms as rooms_of
from gpulaunch.diagnose.failure.evidence import (
    CardFacts,
    Evidence,
    OwnMemory,
    advice_on_limit,
    advice_on_modules,
    advice_on_signal,
    diagnose,
)
from gpulaunch.diagnose.failure.evidence import hint as hint_of
from gpulaunch.gpus.machine import CardReading, LookCallback, computing
from gpulaunch.journal.rundir import RunDir

MAX_MESSAGE_CHARACTERS = 500
"""Characters of the evidence that is recorded at most."""
KERNEL_COUNTERS_MAX_AGE = 1.0
"""Seconds for which attempts that begin share one reading of the kernel's counters."""

Tell: TypeAlias = Callable[[Ended], None]


class Beginning(Struct, frozen=True):
    """The kernel's counters and the monotonic time at an attempt's start."""

    counters: Counters
    at: float


class PendingDiagnosis(Struct, eq=False):
    """An end whose cards are still being looked at.

    `unseen`: cards without an answer yet. `note`: what the keeper of a worker said of the end.
    """

    ended: Ended
    job: Job
    tell: Tell
    beginning: Beginning | None
    memory: OwnMemory | None
    unseen: set[str]
    note: str = ""
    cards: list[CardFacts] = field(default_factory=list)


class EndDiagnosis:
    """Finds the failure of an attempt's end and posts the end with it.

    `rooms`: directories where the attempts may run out of room, beside those of their own. `look`
    looks at a card, and `xids` returns those of a card since a monotonic time: without these two,
    for attempts on other machines, nothing is known of a card. `later` puts off what no end waits
    for.
    """

    def __init__(
        self,
        run: RunDir,
        warn: Callable[[str | None, str], None],
        rooms: Sequence[str] = (),
        look: Callable[[Gpu, LookCallback], object] = lambda gpu, then: then(CardReading(gpu.uuid)),
        xids: Callable[[str, float], tuple[int, ...]] = lambda gpu, since: (),
        later: Callable[[Callable[[], object]], object] = lambda call: call(),
    ) -> None:
        self._run = run
        self._warn = warn
        self._rooms = rooms
        self._look = look
        self._xids = xids
        self._later = later
        self._begun: dict[AttemptId, Beginning] = {}
        self._counted = Beginning(counters(), time.monotonic())

    def begin(self, attempt: AttemptId) -> None:
        now = time.monotonic()
        if now - self._counted.at >= KERNEL_COUNTERS_MAX_AGE:
            self._counted = Beginning(counters(), now)
        self._begun[attempt] = replace(self._counted, at=now)

    def diagnose(
        self,
        ended: Ended,
        job: Job,
        gpus: Sequence[Gpu],
        tell: Tell,
        memory: OwnMemory | None = None,
        note: str = "",
    ) -> None:
        """Pass the end to `tell` with its failure, once the attempt's cards have been looked at.

        `memory`: what is told of its limit of host memory, None without one. `note`: what its
        keeper said of the end of its worker.
        """
        beginning = self._begun.pop(ended.attempt, None)
        if not isinstance(ended.end.outcome, BY_ITSELF):
            tell(ended)
        elif failure_of(ended.end.outcome, job) is None:
            tell(ended)
            self._later(lambda: self._hint(ended))
        else:
            unseen = {gpu.uuid for gpu in gpus}
            pending = PendingDiagnosis(ended, job, tell, beginning, memory, unseen, note)
            for gpu in gpus:
                self._look(gpu, partial(self._seen, pending, gpu))
            if not gpus:
                self._conclude(pending)

    def _hint(self, ended: Ended) -> None:
        text = tail(self._run.log_file(ended.attempt))
        if text and (hint := hint_of(Evidence(ended.end.outcome, text, succeeded=True))):
            self._warn(ended.attempt.job, hint)

    def _seen(self, pending: PendingDiagnosis, gpu: Gpu, seen: CardReading) -> None:
        pending.unseen.discard(gpu.uuid)
        since = pending.beginning.at if pending.beginning else 0.0
        facts = CardFacts(
            gpu.uuid,
            total=gpu.memory or None,
            xids=self._xids(gpu.uuid, since),
            unified=gpu.unified,
        )
        if seen.sick:
            facts = replace(facts, sick=seen.sick)
        elif gpu.simulated:
            pass  # nobody else can be there
        elif not (pending.job.demand.shares_card or pending.ended.kept):
            # Else its processes may be of another job of this run, or of the attempt's worker.
            facts = replace(facts, foreign=_foreign(seen))
        pending.cards.append(facts)
        if not pending.unseen:
            self._conclude(pending)

    def _conclude(self, pending: PendingDiagnosis) -> None:
        ended, job = pending.ended, pending.job
        begun = pending.beginning
        evidence = Evidence(
            ended.end.outcome,
            tail(self._run.log_file(ended.attempt)),
            rises=counters() - begun.counters if begun else Counters(),
            cards=tuple(pending.cards),
            # The attempt's own `{{out}}`, if it stayed empty, may be a later attempt's by now.
            memory=pending.memory,
            rooms=rooms_of([os.fspath(self._run.outs), job.cwd, *self._rooms]),
        )
        found = diagnose(evidence) or _plain(evidence, job, pending.note)
        if found is not None:
            found = replace(found, evidence=found.evidence[:MAX_MESSAGE_CHARACTERS])
            if found.kind == "gpu_oom" and job.ladder is None:
                found = replace(found, advice=(*found.advice, Hint("ladder")))
        pending.tell(replace(ended, end=replace(ended.end, failure=found)))


def _foreign(seen: CardReading) -> int | None:
    """Bytes of the card's memory that others' processes use: the attempt's own are gone."""
    known = [process.memory for process in computing(seen)]
    if None in known or not seen.tells_processes:
        return None
    return sum(memory or 0 for memory in known)


def _plain(evidence: Evidence, job: Job, note: str) -> Failure | None:
    """Return the failure where nothing was recognised, with the log's last line as evidence.

    That line may still tell ends that are alike. Progress bars are passed over: they show how far
    the program got, and not why it ended. Where the log is empty, `note` is the evidence.
    """
    kind = failure_of(evidence.outcome, job)
    lines = [line.strip() for line in evidence.tail.splitlines()]
    lines = [line for line in lines if line and not is_bar(line)]
    shown = lines[-1] if lines else note
    advice = advice_on_signal(evidence) or advice_on_modules(evidence) or advice_on_limit(evidence)
    return Failure(kind, shown, advice) if kind and (shown or advice) else None
