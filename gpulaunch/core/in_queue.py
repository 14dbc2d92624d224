"""Which jobs are handed to an engine that queues and places by itself, and in which order.

    ready job ──room among the handed over, tokens, cards within the run's limit──▶ Launch
                                         the engine's queue ─▶ AttemptQueued ─▶ AttemptStarted

The passes over the ready jobs are those of `core.admission`, without cards: the engine decides
where an attempt runs, and when its turn comes.

Where all jobs of one demand, and no others, use a token, and all are ready, the engine is handed
all of them at once, with how many it may let run at a time.

With `ahead`, a job is handed over as soon as all that it needs is under way or done: the engine
starts it when that has succeeded, even if no supervisor is alive by then.
"""

from __future__ import annotations

from gpulaunch.core import graph
from gpulaunch.core.active import Handed, Share
from gpulaunch.core.causes import Because
from gpulaunch.core.model import AttemptId, Demand
from gpulaunch.core.placement import tokens_short
from gpulaunch.core.reasons import CardsCapped, Impossible
from gpulaunch.core.state import InEngineQueue, State
from gpulaunch.core.waiting import Blocked, BlockedOn, Key, Node, Ready

# ── Ahead of what is needed ─────────────────────────────────────────────────────────────────────


def go_ahead(state: State, policy: InEngineQueue) -> None:
    """Hand over the blocked jobs of which all that blocks them is under way."""
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


# ── Ready jobs ──────────────────────────────────────────────────────────────────────────────────


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
