"""Starts ready jobs: passes over them after every event, on cards or into an engine's queue.

    reserve ─▶ yield ─▶ each ready job in order ─▶ let go ─▶ whom to reserve for
                          start | ask for cards | blocked

`core.on_cards` decides what a pass does with one job on cards. For an engine that queues, this
module decides it: which jobs are handed over, and in which order. That engine decides where an
attempt runs, and when. Its run has no cards, so all that concerns cards finds none there.

    ready job ──room among the handed over, tokens, cards within the run's limit──▶ Launch
                                         the engine's queue ─▶ AttemptQueued ─▶ AttemptStarted
"""

from __future__ import annotations

from gpulaunch.core import graph, on_cards, preemption, reservation
from gpulaunch.core.attempts import Handed, Share
from gpulaunch.core.causes import Because
from gpulaunch.core.graph import closure
from gpulaunch.core.jobs import FOCUSED, Blocked, BlockedOn, Key, Node, Ready
from gpulaunch.core.model import AttemptId, Demand
from gpulaunch.core.placement import tokens_short
from gpulaunch.core.reasons import CardsCapped, Impossible
from gpulaunch.core.state import InEngineQueue, Pass, State


def go_ahead(state: State, policy: InEngineQueue) -> None:
    """Hand over the blocked jobs of which all that blocks them is under way.

    The engine starts such a job when its needs have succeeded, even if no supervisor lives by then.
    """
    jobs = state.jobs
    while jobs.perhaps_ahead and len(state.attempts) < policy.most and not state.closed:
        looked_at, jobs.perhaps_ahead = jobs.perhaps_ahead, {}
        for node in sorted(looked_at, key=_turn):
            _hand_over_ahead(state, policy, node)


def _hand_over_ahead(state: State, policy: InEngineQueue, node: Node) -> None:
    pending = _under_way(state, policy, node)
    if pending and len(state.attempts) < policy.most:
        graph.leave(state, node)
        state.attempts.launch(node, (), handed=Handed(pending))
        _look_at_dependants(state, node)
    elif pending:
        state.jobs.perhaps_ahead[node] = None


def _under_way(state: State, policy: InEngineQueue, node: Node) -> tuple[AttemptId, ...]:
    """Return the attempts that block the job; none where anything else blocks it as well.

    A job that uses tokens, or counts against a limit of cards, is not handed over ahead: it
    would hold these while it waits.
    """
    scarce = bool(node.job.demand.uses) or policy.limit is not None
    if not isinstance(node.state, Blocked) or scarce or graph.too_early(state, node):
        return ()
    if node.links.services or node.job.service or state.jobs.images.lacked_by(node):
        return ()
    open_needs = [n for n in node.links.needs if state.record(n).state != "succeeded"]
    lives = [state.attempts.get(need.attempt) for need in open_needs if need.attempt]
    pending = tuple(live.id for live in lives if live is not None and not live.stopping)
    return pending if len(pending) == len(open_needs) == node.state.by else ()


def _look_at_dependants(state: State, node: Node) -> None:
    for other in node.dependants:
        graph.may_go_ahead(state, other)


# ── Ready jobs for an engine that queues ──────────────────────────────────────────────────────────


def shares(state: State, policy: InEngineQueue) -> dict[Demand, Share]:
    """Return the shares under which all jobs of a demand are handed over at once."""
    return {d: share for d in state.jobs.demands if (share := _share_of(state, policy, d))}


def _share_of(state: State, policy: InEngineQueue, demand: Demand) -> Share | None:
    """Return the share under which all jobs of this demand are handed over at once, or None.

    There is one where the engine alone can keep a token's limit: these jobs use no other
    token, no other jobs use it, none of them is under way, all are ready, and they are more
    than may run at once.
    """
    if len(set(demand.uses)) != 1 or policy.limit is not None:
        return None
    token, each = demand.uses[0], len(demand.uses)
    at_once = state.config.tokens(token) // each
    count = state.jobs.demands[demand]
    if not 0 < at_once < count or state.attempts.tokens[token]:
        return None
    if any(token in other.uses for other in state.jobs.demands if other != demand):
        return None
    ready = sum(isinstance(node.state, Ready) and node.job.demand == demand for node in state.jobs)
    return Share(token, each, at_once) if ready == count else None


def consider(state: State, policy: InEngineQueue, node: Node) -> None:
    if never := _impossible(state, policy, node):
        graph.settle(state, node, "failed", never)
        state.placing.last.settled = True
        return
    node.lack(obstacle(state, policy, node))
    if not node.lacks:
        state.placing.last.starts(node.job.demand)
        graph.leave(state, node)
        share = state.placing.last.shares.get(node.job.demand)
        state.attempts.launch(node, (), handed=Handed(share=share))
        _look_at_dependants(state, node)
        return
    state.placing.last.blocked.append(node)
    if node.skipped >= state.placing.patience:
        state.placing.last.kept_tokens.update(node.job.demand.uses)
        state.placing.last.kept_cards = state.placing.last.kept_cards or node.lacks == "cards"


def _impossible(state: State, policy: InEngineQueue, node: Node) -> Impossible | Because | None:
    demand = node.job.demand
    if short := tokens_short(demand, state.config.limits):
        return short
    if policy.limit is not None and demand.gpus > policy.limit:
        return CardsCapped(demand.gpus, policy.limit)
    return Because("unqueueable") if node.job.service else None


def obstacle(state: State, policy: InEngineQueue, node: Node) -> BlockedOn | None:
    """Return what keeps a ready job from being handed over."""
    if len(state.attempts) >= policy.most:
        return "turn"
    demand = node.job.demand
    taken = state.attempts.gpus + demand.gpus
    if (
        demand.gpus
        and policy.limit is not None
        and (state.placing.last.kept_cards or taken > policy.limit)
    ):
        return "cards"
    if demand in state.placing.last.shares or not state.lacks_tokens(demand):
        return None
    return "tokens"


def _turn(node: Node) -> tuple[Key, int]:
    return node.key, node.order


# ── Passes ────────────────────────────────────────────────────────────────────────────────────────


def admit(state: State) -> None:
    """Start all jobs that can start now, in passes until one changes nothing.

    This ends, because each pass but the last starts a job or gives cards back.
    """
    while not state.closed and _pass(state):
        pass
    policy = state.config.placing
    if not isinstance(policy, InEngineQueue):
        on_cards.review(state, on_cards.could_start)
    if state.closed:
        _close(state)
    elif isinstance(policy, InEngineQueue):
        go_ahead(state, policy)


def _close(state: State) -> None:
    state.placing.last.blocked, state.placing.reserving = [], None
    on_cards.forget_claims(state)
    on_cards.let_go(state)
    state.placing.gang.give_up()


def _pass(state: State) -> bool:
    """Make one pass over the ready jobs; return whether another may start more."""
    placing, policy = state.placing, state.config.placing
    placing.last = found = Pass(unified=bool(state.cards.unified))
    if isinstance(policy, InEngineQueue):
        found.shares = shares(state, policy)
    preemption.ask_for_cards(state)
    on_cards.forget_claims(state)
    if placing.focus is not None and not isinstance(placing.focus.state, FOCUSED):
        placing.focus = None
    reservation.reserve(state)
    on_cards.give_wanted(state)
    for node in _focused(placing.focus) if placing.focus else state.jobs.waiting.heads():
        if isinstance(policy, InEngineQueue):
            consider(state, policy, node)
        else:
            on_cards.consider(state, node)
        if state.closed:
            break
    state.jobs.waiting.unpark()
    again = on_cards.let_go(state) and bool(found.blocked)
    again = reservation.choose_reserving(state) or again or found.settled
    for node in found.blocked:
        if node.lacks in ("cards", "room"):
            on_cards.look_again(state, node)
    if placing.focus is not None and not isinstance(placing.focus.state, FOCUSED):
        placing.focus, again = None, True
    return again


def _focused(focus: Node) -> list[Node]:
    """Return the ready jobs among the focused job and its services: only these may start now."""
    return [node for node in (*closure(focus), focus) if isinstance(node.state, Ready)]
