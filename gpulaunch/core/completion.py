"""An attempt's end: what is recorded of it, what becomes of its job, its cards and its dependants.

    Ended ─▶ decide (again, or settled) ─▶ AttemptEnded ─▶ cards drain ─▶ the job waits or is over

`core.retry` decides what an end means for its job, `core.jobs` what a settled job means for others.
"""

from __future__ import annotations

from gpulaunch.core import retry
from gpulaunch.core.active import ActiveAttempt, ActiveAttempts
from gpulaunch.core.breaker import Breaker
from gpulaunch.core.card_health import CardHealth
from gpulaunch.core.cards import Card, Cards
from gpulaunch.core.causes import Because, NeedEnded, Quoted, ServiceEnded
from gpulaunch.core.classes import policy_of
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import Ended, WorkerEnded
from gpulaunch.core.facts import AttemptEnded, JobDelayed, JobSettled
from gpulaunch.core.idle_workers import IdleWorkers
from gpulaunch.core.jobs import Jobs
from gpulaunch.core.ledger import JobRecord
from gpulaunch.core.model import (
    Exited,
    Failure,
    Job,
    MissingOutput,
    Signaled,
    TimedOut,
    exit_code_of,
    signal_of,
)
from gpulaunch.core.reasons import (
    AttemptEnd,
    JobReason,
    LostRepeatedly,
    RetryGranted,
    RetryPointless,
    ServiceOver,
)
from gpulaunch.core.retry_placement import RetryContext
from gpulaunch.core.waiting import Node

BY_ITSELF = Exited | Signaled | MissingOutput | TimedOut
"""Ends that nobody asked for: only these may have a recognised failure as their cause."""


class Completion:
    """Handles the ends of attempts and of workers.

    `pinned`: an attempt that was seen on a card of others has failed, however it ended.
    `anywhere`: the engine places by itself.
    """

    def __init__(
        self,
        effects: Effects,
        cards: Cards,
        jobs: Jobs,
        attempts: ActiveAttempts,
        breaker: Breaker,
        idle_workers: IdleWorkers,
        pinned: bool,
        anywhere: bool = False,
    ) -> None:
        self._effects = effects
        self._anywhere = anywhere
        self._idle_workers = idle_workers
        self._cards = cards
        self._jobs = jobs
        self._attempts = attempts
        self._breaker = breaker
        self._pinned = pinned
        self._card_health = CardHealth(cards, jobs)

    def ended(self, event: Ended, killing: bool, closed: bool) -> None:
        """Record the attempt's end, free its cards, and settle its job or let it wait again.

        `killing`: the run is to end at once, and waits for no card's memory. `closed`: nothing
        starts any more, so the end counts neither for the cards' health nor for the breaker.
        """
        live = self._attempts.get(event.attempt)
        if live is None:
            return
        record = self._effects.ledger.jobs[event.attempt.job]
        seen = (live.misplaced if self._pinned else None) or _by_its_card(live, event)
        decision = self._decide(live, event, record, seen)
        shown = seen if seen is not None and decision.failure == seen.kind else Failure("")
        self._attempts.end(live)
        self._effects.fact(
            AttemptEnded(
                event.attempt,
                event.outcome,
                decision.failure,
                decision.charged,
                event.leftovers,
                event.started,
                event.ended,
                shown.evidence,
                shown.advice,
            )
        )
        if event.kept and not live.inherited:
            self._idle_workers.stay(live)
        self._set_aside(live, shown)
        self._free(live.cards, killing)
        if live.node is None:
            self._settle_vanished(record, decision)
            if not _succeeded(decision):
                self._interrupt_followers(live)
            return
        if live.service:
            self._jobs.service_down(live.service)
            self._interrupt_dependants(live.service, event)
        self._follow(live.node, decision)
        if not _succeeded(decision):
            self._interrupt_followers(live)
        if live.wish or closed or live.inherited:  # those ended with an earlier supervisor
            return
        if decision.failure:
            self._card_health.failed(live, decision.failure)
            self._count_failure(live, live.node, event, seen)
        elif _succeeded(decision):
            self._card_health.succeeded(live)
            self._breaker.worked()

    def worker_ended(self, event: WorkerEnded, killing: bool) -> None:
        """Record that a worker is gone, and free its cards as after an attempt."""
        self._free(self._idle_workers.gone(event.worker), killing)

    def _count_failure(
        self, live: ActiveAttempt, node: Node, event: Ended, seen: Failure | None
    ) -> None:
        self._breaker.failed(
            node.name,
            retry.over(event.outcome, node.job),
            seen.evidence if seen is not None else "",
            node.job.params.values(),
            self._effects.ledger.attempt(live.id).seconds,
        )

    def _ground(self, live: ActiveAttempt, record: JobRecord, seen: Failure | None) -> RetryContext:
        used = {card.gpu.uuid for card in live.cards}
        kind = seen.kind if seen is not None else ""
        tries = [a for a in record.attempts[:-1] if a.id.number >= record.budget_from]
        return RetryContext(
            used=tuple(card.gpu for card in live.cards),
            others=tuple(
                card.gpu for card in self._cards if card.serves and card.gpu.uuid not in used
            ),
            before=sum(attempt.failure == kind for attempt in tries),
            foreign=seen is not None and seen.foreign,
            doubted=any(self._card_health.doubted(card, live.id.job) for card in live.cards),
            anywhere=self._anywhere,
        )

    def _decide(
        self, live: ActiveAttempt, event: Ended, record: JobRecord, seen: Failure | None
    ) -> retry.Decision:
        job = live.node.job if live.node is not None else Job(record.name, ())
        ground = self._ground(live, record, seen)
        lost = _lost_before(live, record)
        decision = retry.decide(event.outcome, job, record.charged, lost, seen, ground)
        if self._pinned and live.misplaced and live.wish != "cancelled":
            return retry.failed(event.outcome, job, record.charged, live.misplaced, ground)
        if live.wish == "stopped":
            return retry.Settle("succeeded")
        if live.wish == "cancelled" and not _succeeded(decision):
            return retry.Settle("cancelled", Because("cancelled"))
        if isinstance(decision, retry.Settle) or live.node is None or self._anywhere:
            return decision
        # The job may only be tried again where all that it needs can still be had.
        gone = live.cause if live.cause and self._jobs.is_bad(live.cause) else None
        gone = gone or self._jobs.has_bad_need(live.node)
        if gone is None:
            return decision
        bad = self._jobs.record(gone)
        end = _end_of(bad.reason)
        own = retry.over(event.outcome, job) if decision.failure else None
        reason = ServiceOver(gone.name, bad.state, end, own)
        return retry.Settle("failed", reason, decision.failure, decision.charged)

    def _follow(self, node: Node, decision: retry.Decision) -> None:
        if isinstance(decision, retry.Settle):
            self._jobs.settle(node, decision.state, decision.reason)
            return
        if decision.demand is not None:
            self._jobs.redemand(node, decision.demand)
        self._effects.fact(JobDelayed(node.name, decision.reason, decision.delay, decision.change))
        if decision.change == "other_card":
            self._jobs.hold_out(node, decision.delay)
        node.state = "blocked"
        if node.excluded:
            self._jobs.leave_be(node)
            return
        self._jobs.enqueue(node)

    def _settle_vanished(self, record: JobRecord, decision: retry.Decision) -> None:
        if isinstance(decision, retry.Settle):
            self._effects.fact(JobSettled(record.name, decision.state, decision.reason))
        else:
            self._effects.fact(JobDelayed(record.name, decision.reason))

    def _set_aside(self, live: ActiveAttempt, failure: Failure) -> None:
        """Set aside those of the attempt's cards that the driver reports as lost."""
        if policy_of(failure.kind).aside:
            for card in live.cards:
                if card.gpu.uuid in failure.gpus:
                    self._cards.doom(card, Quoted(failure.evidence))

    def _free(self, cards: tuple[Card, ...], killing: bool) -> None:
        for card in cards:
            if card.attempts or card.idle_workers or card.state == "aside":
                continue
            if card.failing:
                self._cards.retire(card)
            elif killing:
                self._cards.release(card)
            else:
                self._cards.drain(card)

    def _interrupt_followers(self, ended: ActiveAttempt) -> None:
        """Interrupt attempts that were launched ahead, to start once this one has succeeded."""
        for live in self._attempts:
            if ended.id in live.after:
                self._attempts.stop(live, "interrupted", NeedEnded(ended.id.job))

    def _interrupt_dependants(self, service: Node, event: Ended) -> None:
        """Interrupt the attempts that need this service, which has ended; they are not charged."""
        for live in self._attempts:
            if live.node is not None and service in live.node.services:
                live.cause = service
                outcome = event.outcome
                ended = ServiceEnded(service.name, exit_code_of(outcome), signal_of(outcome))
                self._attempts.stop(live, "interrupted", ended)


def _by_its_card(live: ActiveAttempt, event: Ended) -> Failure | None:
    """The attempt's failure: `gpu_lost` where its card was lost meanwhile, else the event's."""
    doomed = [card for card in live.cards if card.failing]
    if not doomed or not isinstance(event.outcome, BY_ITSELF):
        return event.failure
    if event.failure is not None and event.failure.kind == "gpu_lost":
        return event.failure
    return Failure("gpu_lost", _said(doomed[0]), gpus=tuple(card.gpu.uuid for card in doomed))


def _lost_before(live: ActiveAttempt, record: JobRecord) -> int:
    """How many attempts in a row, just before this one, were lost or lost their card.

    Only this supervisor's count: an earlier one that crashed lost what ran, and that says nothing
    about the job.
    """
    if live.inherited or live.node is None:
        return 0
    since = max(record.budget_from, live.node.fresh_from)
    count = 0
    for attempt in reversed(record.attempts[since - 1 : -1]):
        if attempt.failure is None or not policy_of(attempt.failure).free:
            break
        count += 1
    return count


def _succeeded(decision: retry.Decision) -> bool:
    return isinstance(decision, retry.Settle) and decision.state == "succeeded"


def _said(card: Card) -> str:
    """What the driver reported of a failing card; empty where jobs alone showed that it fails."""
    return card.failing.text if isinstance(card.failing, Quoted) else ""


def _end_of(reason: JobReason | None) -> AttemptEnd | None:
    """The end of an attempt that a settled job's reason tells; None where it tells none."""
    match reason:
        case AttemptEnd():
            return reason
        case RetryGranted(end) | RetryPointless(end) | LostRepeatedly(end):
            return end
    return None
