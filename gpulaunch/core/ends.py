"""An attempt's end: what is recorded of it, what becomes of its job, its cards and its dependants.

    Ended ─▶ decide (again, or settled) ─▶ AttemptEnded ─▶ cards drain ─▶ the job waits or is over

How an end is judged by itself is `core.retry`'s; what a settled job means for others is Jobs'.
"""

from __future__ import annotations

from gpulaunch.core import retry
from gpulaunch.core.attempts import Attempts, Live
from gpulaunch.core.cards import Cards
from gpulaunch.core.desk import Desk
from gpulaunch.core.events import Ended
from gpulaunch.core.facts import AttemptEnded, JobDelayed, JobSettled
from gpulaunch.core.jobs import Jobs
from gpulaunch.core.ledger import JobRecord
from gpulaunch.core.model import Job, Lost
from gpulaunch.core.waiting import Node


class Ends:
    def __init__(self, desk: Desk, cards: Cards, jobs: Jobs, attempts: Attempts) -> None:
        self._desk = desk
        self._cards = cards
        self._jobs = jobs
        self._attempts = attempts

    def ended(self, event: Ended, killing: bool) -> None:
        """`killing`: the run is to end at once, and waits for no card's memory."""
        live = self._attempts.get(event.attempt)
        if live is None:
            return
        record = self._desk.ledger.jobs[event.attempt.job]
        decision = self._decide(live, event, record)
        self._attempts.end(live)
        self._desk.fact(
            AttemptEnded(
                event.attempt,
                event.outcome,
                decision.failure,
                decision.charged,
                event.leftovers,
                event.started,
                event.ended,
            )
        )
        self._free_cards(live, killing)
        if live.node is None:
            self._settle_vanished(record, decision)
            return
        if live.service:
            self._jobs.service_down(live.service)
            self._interrupt_dependants(live.service, event)
        self._follow(live, live.node, decision)

    def _decide(self, live: Live, event: Ended, record: JobRecord) -> retry.Decision:
        job = live.node.job if live.node is not None else Job(record.name, ())
        decision = retry.decide(event.outcome, job, record.charged, _lost_before(live, record))
        if live.wish == "stopped":
            return retry.Settle("succeeded")
        if live.wish == "cancelled" and not _succeeded(decision):
            return retry.Settle("cancelled", "cancelled")
        if isinstance(decision, retry.Settle) or live.node is None:
            return decision
        # It may only be tried again where what it needs is still to be had.
        gone = live.cause if live.cause and self._jobs.is_bad(live.cause) else None
        gone = gone or self._jobs.has_bad_need(live.node)
        if gone is None:
            return decision
        own = f"{retry.reason(event.outcome, job)}; " if decision.failure else ""
        text = f"{own}its service {gone.name} {self._jobs.record(gone).state}"
        reason = self._jobs.record(gone).reason
        text += f": {reason}" if reason else ""
        return retry.Settle("failed", text, decision.failure, decision.charged)

    def _follow(self, live: Live, node: Node, decision: retry.Decision) -> None:
        if isinstance(decision, retry.Settle):
            self._jobs.settle(node, decision.state, decision.reason)
            return
        self._desk.fact(JobDelayed(node.name, decision.reason, decision.delay))
        node.place = "blocked"
        if node.left:
            self._jobs.leave_be(node)
            return
        self._jobs.enqueue(node)

    def _settle_vanished(self, record: JobRecord, decision: retry.Decision) -> None:
        if isinstance(decision, retry.Settle):
            self._desk.fact(JobSettled(record.name, decision.state, decision.reason))
        else:
            self._desk.fact(JobDelayed(record.name, decision.reason))

    def _free_cards(self, live: Live, killing: bool) -> None:
        for card in live.cards:
            if card.attempts:
                continue
            if killing:
                self._cards.release(card)
            else:
                self._cards.drain(card)

    def _interrupt_dependants(self, service: Node, event: Ended) -> None:
        """What runs against a server that is gone is cut short; it is not its fault."""
        for live in self._attempts:
            if live.node is not None and service in live.node.services:
                live.cause = service
                text = retry.reason(event.outcome, service.job)
                self._attempts.stop(live, "interrupted", f"its service {service.name} {text}")


def _lost_before(live: Live, record: JobRecord) -> int:
    """Attempts lost in a row just before this one, by this supervisor: a crash of an earlier one
    loses what runs, and says nothing about the job."""
    if live.inherited or live.node is None:
        return 0
    since = max(record.budget_from, live.node.fresh_from)
    count = 0
    for attempt in reversed(record.attempts[since - 1 : -1]):
        if not isinstance(attempt.outcome, Lost):
            break
        count += 1
    return count


def _succeeded(decision: retry.Decision) -> bool:
    return isinstance(decision, retry.Settle) and decision.state == "succeeded"
