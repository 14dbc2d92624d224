"""An attempt's end: what is recorded of it, what becomes of its job, its cards and its dependants.

    Ended ─▶ decide (again, or settled) ─▶ AttemptEnded ─▶ cards drain ─▶ the job waits or is over

`core.retry` decides what an end means for its job, `core.graph` what a settled job means for
others.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from gpulaunch.core import card_health, graph, job_list, memory, on_cards, retry
from gpulaunch.core import reasons as r
from gpulaunch.core.attempts import ActiveAttempt, Stopping
from gpulaunch.core.cards import Card, SetAside
from gpulaunch.core.causes import Because, NeedEnded, Quoted, ServiceEnded
from gpulaunch.core.events import Ended, SetTimer, Timer, WorkerEnded
from gpulaunch.core.facts import AttemptEnded, AttemptWarned, JobDelayed, JobSettled
from gpulaunch.core.jobs import UNKNOWN, Node
from gpulaunch.core.ledger import JobRecord, step_after
from gpulaunch.core.model import (
    End,
    Exited,
    Failure,
    Interrupted,
    Job,
    Lost,
    MissingOutput,
    Outcome,
    Signaled,
    TimedOut,
    exit_code_of,
    signal_of,
    status_of,
)
from gpulaunch.core.retry import RetryContext, policy_of
from gpulaunch.core.state import State

_SUCCEEDED = retry.Settle("succeeded")
BY_ITSELF = Exited | Signaled | MissingOutput | TimedOut
"""Ends that nobody asked for: only these may have a recognised failure as their cause."""

HOLD = 3.0
"""Seconds for which the failure of a job that needs a service is not judged: if the service ends
meanwhile, that end explains it. A crash breaks connections before the launcher hears of it."""
# fmt: off
_LIKE_A_LOST_SERVICE = frozenset({
    "exit", "signal", "timeout", "idle_timeout", "gpu_idle", "missing_output", "collective",
    "secondary", "network", "rate_limit", "access", "license", "locked", "missing_file",
    "file_error", "corrupt_file",
})
# fmt: on
"""Failure classes that the end of a service can bring about. Others are held for nothing."""


def on_ended(state: State, event: Ended) -> None:
    """Judge the attempt's end, or hold it until its service's end could have been heard of."""
    live = state.attempts.get(event.attempt)
    if live is None or live.held is not None:
        return
    leader = live.behind
    if leader is not None and leader.held is not None:
        _release(state, leader)  # what comes after it in its worker has ended
    needs_service = live.node is not None and live.node.links.services
    if not (needs_service and _may_be_its_services(state, live, event.end)):
        _judge(state, live, event)
        return
    live.held, live.held_until = event, state.now.mono + HOLD
    state.attempts.held.append(live)
    state.effects.emit(SetTimer(Timer("verdict", str(live.id)), live.held_until))
    if live.service:
        graph.service_down(state, live.service)


def judge_held(state: State) -> None:
    """Judge the held ends whose time is over, and those of attempts that were to end anyway."""
    for live in tuple(state.attempts.held):
        if live.stopping or state.ledger.stopping or state.now.mono >= live.held_until:
            _release(state, live)


def _release(state: State, live: ActiveAttempt) -> None:
    assert live.held is not None
    state.attempts.held.remove(live)
    _judge(state, live, live.held)


def _may_be_its_services(state: State, live: ActiveAttempt, end: End) -> bool:
    """Return True if the attempt failed beside a service whose end could explain that."""
    if live.node is None or live.origin != "own":
        return False
    if live.stopping or live.misplaced or state.ledger.stopping:
        return False
    failed = retry.failure_of(end.outcome, live.node.job, end.failure)
    return failed in _LIKE_A_LOST_SERVICE and isinstance(end.outcome, BY_ITSELF)


def _beside_its_service(state: State, live: ActiveAttempt, end: End) -> End:
    """Return the end; as an interruption if the attempt failed around the end of its service."""
    service = live.state.service if isinstance(live.state, Stopping) else None
    if service is None or live.node is None or not isinstance(end.outcome, BY_ITSELF):
        return end
    if retry.failure_of(end.outcome, live.node.job, end.failure) is None:
        return end
    known = [a.end.outcome for a in state.record(service).attempts if a.end is not None]
    by = _ended(service, known[-1])
    return replace(end, outcome=Interrupted(by, status_of(end.outcome)), failure=None)


def _judge(state: State, live: ActiveAttempt, event: Ended) -> None:
    """Record the attempt's end, free its cards, and settle its job or let it wait again."""
    disturbed, end = _disturbed(state), event.end
    if live.stopping == "interrupted":
        end = _beside_its_service(state, live, end)
    record = state.ledger.jobs[event.attempt.job]
    if live.inherited and isinstance(end.outcome, Lost) and record.attempts[-1].unbegun:
        # Had it begun, its keeper would have recorded its end.
        end = replace(end, outcome=Interrupted(Because("worker_ended")))
    before = _while_it_ran(state, live, end.outcome)
    seen = before or _by_its_card(live, end)
    decision = _decide(state, live, end.outcome, record, seen, before)
    failure = _recorded(decision, seen)
    state.attempts.end(live)
    if end.warned is not None and record.attempts[-1].warned is None:
        state.effects.fact(AttemptWarned(live.id, end.warned))
    took = live.peak if live.demand.kind is not None else 0
    recorded = replace(end, failure=failure, warned=None, gpu_memory=took)
    state.effects.fact(AttemptEnded(live.id, recorded, decision.charged))
    memory.ended(state, live)
    if event.kept and not live.inherited and live.behind is None:
        on_cards.stayed(state, live)
    live.follower = None
    if failure is not None:
        _set_aside(state, live, failure)
    _free(state, live.cards, event.memory_free)
    if live.node is None:
        _settle_vanished(state, record, decision)
        if not _succeeded(decision):
            _interrupt_followers(state, live)
        return
    if live.service:
        graph.service_down(state, live.service)
        _interrupt_dependants(state, live.service, end.outcome)
    _follow(state, live.node, decision)
    if not _succeeded(decision):
        _interrupt_followers(state, live)
    if live.stopping or disturbed or live.inherited:
        return
    if decision.failure:
        card_health.failed(state, live, decision.failure)
        counts = _shows_the_list(state, live, decision)
        _count_failure(state, live, live.node, end.outcome, seen, counts)
    elif _succeeded(decision):
        card_health.succeeded(state, live)
        state.health.breaker.worked()


def _disturbed(state: State) -> bool:
    """Tell whether ends say nothing of cards and jobs: the run ends, or something is wrong with it.

    That its hours are over, or a person lets nothing start, is no such thing.
    """
    wrong = {"recorder", "breaker"} & state.ledger.pauses.keys()
    return bool(state.ledger.stopping or state.halted or wrong)


def on_worker_ended(state: State, event: WorkerEnded) -> None:
    """Record that a worker is gone, and free its cards as after an attempt."""
    _free(state, state.idle_workers.gone(event.worker), {})


def _shows_the_list(state: State, live: ActiveAttempt, decision: retry.Decision) -> bool:
    """Return True if the failure counts against the list: a repeat of it has no better chance.

    The job is over, or a repeat has failed as well and the next one changes nothing that matters.
    """
    if isinstance(decision, retry.Settle) or live.node is None:
        return True
    record = state.record(live.node)
    if decision.there.change in ("alone", "more_memory", "other_kind"):
        return False
    if decision.charged and step_after(live.node.job, record.attempts[-1]) is not None:
        return False
    earlier = (a for a in record.attempts[:-1] if a.id.number >= record.budget_from)
    return any(attempt.failure is not None for attempt in earlier)


def _count_failure(
    state: State,
    live: ActiveAttempt,
    node: Node,
    outcome: Outcome,
    seen: Failure | None,
    counts: bool,
) -> None:
    state.health.breaker.failed(
        node.name,
        retry.over(outcome, node.job),
        seen.evidence if seen is not None else "",
        node.job.params.values(),
        state.ledger.attempt(live.id).seconds,
        counts,
    )


def _ground(
    state: State, live: ActiveAttempt, record: JobRecord, seen: Failure | None
) -> RetryContext:
    used = {card.gpu.uuid for card in live.cards}
    kind = seen.kind if seen is not None else ""
    tries = [a for a in record.attempts[:-1] if a.id.number >= record.budget_from]
    return RetryContext(
        used=tuple(card.gpu for card in live.cards),
        others=tuple(card.gpu for card in state.cards if card.serves and card.gpu.uuid not in used),
        before=sum(attempt.failure == kind for attempt in tries),
        foreign=seen is not None and seen.foreign,
        doubted=any(card_health.doubted(state, card, live.id.job) for card in live.cards),
        anywhere=state.config.queues,
        steps=live.node is not None and step_after(live.node.job, record.attempts[-1]) is not None,
        alone=not live.promised.shares_card or _only_beside_services(state, live),
    )


def _only_beside_services(state: State, live: ActiveAttempt) -> bool:
    """Tell whether no card is left for the job without the services that it needs."""
    services = live.node.links.services if live.node is not None else ()
    if not services:
        return False
    theirs = [other.cards for other in state.attempts if other.service in services]
    taken = {card.gpu.uuid for cards in theirs for card in cards}
    return not any(card.serves and card.gpu.uuid not in taken for card in state.cards)


def _decide(
    state: State,
    live: ActiveAttempt,
    outcome: Outcome,
    record: JobRecord,
    seen: Failure | None,
    before: Failure | None,
) -> retry.Decision:
    """Decide what follows. `seen`: its failure; `before`: the one for which it was ended."""
    job = live.node.job if live.node is not None else Job(record.name, ())
    if isinstance(outcome, Exited) and not before and retry.failure_of(outcome, job) is None:
        return _SUCCEEDED
    ground = _ground(state, live, record, seen)
    lost = _lost_before(live, record)
    decision = retry.decide(outcome, job, record.charged, lost, seen, ground)
    if before and live.stopping != "cancelled":
        return retry.failed(outcome, job, record.charged, before, ground)
    if live.stopping == "stopped":
        return retry.Settle("succeeded")
    if live.stopping == "cancelled" and not _succeeded(decision):
        return retry.Settle("cancelled", Because("cancelled"))
    if isinstance(decision, retry.Settle) or live.node is None or state.config.queues:
        return decision
    # The job may only be tried again where all that it needs can still be had.
    cause = live.state.service if isinstance(live.state, Stopping) else None
    gone = cause if cause is not None and graph.is_bad(state, cause) else None
    gone = gone or graph.has_bad_need(state, live.node)
    if gone is None:
        return decision
    bad = state.record(gone)
    end = _end_of(bad.reason)
    own = retry.over(outcome, job) if decision.failure else None
    reason = r.ServiceOver(gone.name, bad.state, end, own)
    return retry.Settle("failed", reason, decision.failure, decision.charged)


def _follow(state: State, node: Node, decision: retry.Decision) -> None:
    renewed = node.renewed is not None and not node.withdrawn
    job_list.take_up(state, node)
    if node.withdrawn and isinstance(decision, retry.TryAgain):
        decision = retry.Settle("cancelled", Because("not_in_file"))
    if isinstance(decision, retry.Settle):
        graph.settle(state, node, decision.state, decision.reason)
        return
    there = decision.there
    if renewed:
        there = replace(there, demand=replace(node.job.demand, avoid=there.demand.avoid))
    if there.demand != node.job.demand:
        graph.redemand(state, node, there.demand)
    step = step_after(node.job, state.record(node).attempts[-1]) if decision.charged else None
    delay = max(there.delay, graph.pause(state, node))
    delayed = JobDelayed(node.name, decision.reason, delay, there.change, step=step)
    state.effects.fact(delayed)
    if there.change == "other_card":
        graph.hold_out(state, node, there.delay)
    node.become(UNKNOWN)
    if node.excluded:
        graph.leave_be(state, node)
        return
    graph.enqueue(state, node)


def _settle_vanished(state: State, record: JobRecord, decision: retry.Decision) -> None:
    if isinstance(decision, retry.Settle):
        state.effects.fact(JobSettled(record.name, decision.state, decision.reason))
    else:
        state.effects.fact(JobDelayed(record.name, decision.reason))


def _set_aside(state: State, live: ActiveAttempt, failure: Failure) -> None:
    """Set aside those of the attempt's cards that the driver reports as lost."""
    if policy_of(failure.kind).aside:
        for card in live.cards:
            if card.gpu.uuid in failure.gpus:
                state.cards.doom(card, Quoted(failure.evidence))


def _free(state: State, cards: tuple[Card, ...], memory_free: Mapping[str, int]) -> None:
    """Take back the cards on which nothing is left; `memory_free` as in the attempt's Ended."""
    for card in cards:
        if card.attempts or card.idle_workers or isinstance(card.state, SetAside):
            continue
        if card.failing:
            state.cards.retire(card)
        elif state.course.killing:  # it waits for no card's memory
            state.cards.release(card)
        elif card.gpu.uuid in memory_free:
            state.cards.emptied(card, memory_free[card.gpu.uuid])
        else:
            state.cards.drain(card)


def _interrupt_followers(state: State, ended: ActiveAttempt) -> None:
    """Interrupt attempts that were launched ahead, to start once this one has succeeded."""
    for live in state.attempts:
        if ended.id in live.handed.after:
            graph.stop(state, live, "interrupted", NeedEnded(ended.id.job))


def _interrupt_dependants(state: State, service: Node, outcome: Outcome) -> None:
    """Interrupt the attempts that need this service, which has ended; they are not charged."""
    for live in state.attempts:
        if live.node is not None and service in live.node.links.services:
            ended = _ended(service, outcome)
            graph.stop(state, live, "interrupted", ended, service=service)


def _ended(service: Node, outcome: Outcome) -> ServiceEnded:
    return ServiceEnded(service.name, exit_code_of(outcome), signal_of(outcome))


def _while_it_ran(state: State, live: ActiveAttempt, outcome: Outcome) -> Failure | None:
    """Return the failure for which the attempt was ended while it ran; None for none.

    An attempt that ended by itself before that reached it has ended as it did.
    """
    misplaced = live.misplaced if state.config.pinned else None
    return misplaced or (live.ended_for if isinstance(outcome, Interrupted) else None)


def _by_its_card(live: ActiveAttempt, end: End) -> Failure | None:
    """Return the failure: `gpu_lost` where a card was lost meanwhile, else the end's own."""
    doomed = [card for card in live.cards if card.failing]
    if not doomed or not isinstance(end.outcome, BY_ITSELF):
        return end.failure
    if end.failure is not None and end.failure.kind == "gpu_lost":
        return end.failure
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
        if attempt.taken_back:
            continue
        if attempt.failure is None or not policy_of(attempt.failure).free:
            break
        count += 1
    return count


def _recorded(decision: retry.Decision, seen: Failure | None) -> Failure | None:
    """Return the failure that goes on record: what was seen, where the job fails by that class."""
    if decision.failure is None:
        return None
    return seen if seen and seen.kind == decision.failure else Failure(decision.failure)


def _succeeded(decision: retry.Decision) -> bool:
    return isinstance(decision, retry.Settle) and decision.state == "succeeded"


def _said(card: Card) -> str:
    """Return what the driver said of a failing card; '' where jobs alone showed that it fails."""
    return card.failing.text if isinstance(card.failing, Quoted) else ""


def _end_of(reason: r.JobReason | None) -> r.AttemptEnd | None:
    """Return the end of an attempt that a settled job's reason tells; None where it tells none."""
    match reason:
        case r.AttemptEnd():
            return reason
        case r.RetryGranted(end) | r.RetryPointless(end) | r.LostRepeatedly(end):
            return end
    return None
