"""The invariants of a run, each with words, to be checked after every event of a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from gpulaunch.core import on_cards
from gpulaunch.core.attempts import may_go_on
from gpulaunch.core.cards import NAMES, SetAside
from gpulaunch.core.jobs import AwaitingImage, Blocked, Delayed, Launched, NotDue, Ready
from gpulaunch.core.memory import promised
from gpulaunch.core.model import SETTLED_STATES, Job
from gpulaunch.core.placement import suits_now
from gpulaunch.core.reasons import LeftAlive
from gpulaunch.core.run import Run
from gpulaunch.core.state import InEngineQueue, State


def check(run: Run) -> None:
    """Raise AssertionError, with words, where an invariant does not hold."""
    state = run._state
    if run.finished and state.cards.held():
        assert isinstance(run.outcome()[1], LeftAlive), "a finished run holds a lease"
    check_jobs(state)
    check_images(state)
    check_cards(state)
    check_workers(state)
    check_behind(state)
    check_rest(state)
    check_counters(state)
    check_memory(state)
    if state.course.submitted and not state.closed:
        if isinstance(state.config.placing, InEngineQueue):
            check_queue(state, state.config.placing)
        else:
            check_idle(state)


def check_definition(job: Job, jobs: Sequence[Job]) -> None:
    """Check that a job that is launched is in the list, and is as the list has it now."""
    newest = next((other for other in jobs if other.name == job.name), None)
    assert newest is not None, f"{job.name} is launched, and the list has it no more"
    # What its time of day meant when it was first read holds, whatever the list says now.
    same = replace(job, demand=newest.demand, not_before=newest.not_before) == newest
    assert same, f"{job.name} is launched as it was once: {job}, now {newest}"


def check_jobs(state: State) -> None:
    """Check that every job is in exactly one state, and that the ledger says the same."""
    ledger, jobs, attempts = state.ledger, state.jobs, state.attempts
    states = Counter(record.state for record in ledger.jobs.values() if not record.gone)
    assert states == +ledger.counts, f"counted {+ledger.counts}, found {states}"
    running = {live.id.job: live.id for live in attempts}
    assert len(running) == len(attempts), "a job has two attempts running"
    for node in jobs:
        record = state.record(node)
        runs = isinstance(node.state, Launched) and not record.in_queue
        expected = SETTLED_STATES if node.settled else {"running" if runs else "waiting"}
        recorded = record.state in expected or node.excluded
        assert recorded, f"{node.name} is {node.state}, recorded {record.state}"
        open_attempts = [a.id for a in record.attempts if a.outcome is None]
        mine = [running[node.name]] if node.name in running else []
        assert open_attempts == mine, f"{node.name}: open {open_attempts}, running {mine}"
        assert record.charged <= node.job.retry.times + 1, f"{node.name} tried too often"
        if node.waits:
            blockers = sum(state.record(need).state != "succeeded" for need in node.links.needs)
            blockers += sum(not other.settled for other in node.links.after)
            by = node.state.by if isinstance(node.state, Blocked) else 0
            assert by == blockers, f"{node.name} is {node.state}, {blockers} block it"
        ready = isinstance(node.state, Ready)
        assert (node.entry is not None) == ready, f"{node.name} is {node.state}, and queued"
        if ready:
            missing = [service.name for service in node.links.services if not service.answers]
            assert not missing, f"{node.name} is ready without {missing}"
        open_dependants = sum(not other.settled for other in node.dependants)
        assert not node.job.service or node.serving.open == open_dependants, (
            f"{node.name}: open count"
        )
        assert min(node.serving.demands.values(), default=0) >= 0, f"{node.name}: demands count"
    for demand in jobs.demands:
        ready = [n for n in jobs if isinstance(n.state, Ready) and n.job.demand.same_seat(demand)]
        counted = jobs.waiting.count_like(demand)
        assert counted == len(ready), f"{counted} ready jobs counted, {len(ready)} found"
    unsettled = sum(not node.settled for node in jobs)
    assert jobs.unsettled == unsettled, f"{jobs.unsettled} unsettled counted, {unsettled} found"
    delayed = sum(isinstance(node.state, Delayed) for node in jobs)
    assert jobs.delayed == delayed, f"{jobs.delayed} delayed counted, {delayed} found"
    not_due = {node for node in jobs if isinstance(node.state, NotDue)}
    assert jobs.dues.waiting.keys() == not_due, "another number of jobs is not due"
    watched = jobs.dues.watched
    assert not not_due or watched is not None, f"nobody looks when {len(not_due)} jobs are due"


def check_images(state: State) -> None:
    """Check that who waits for an image waits for its own, which is not there and was asked for."""
    images = state.jobs.images
    waiting = [node for node in state.jobs if isinstance(node.state, AwaitingImage)]
    for node in waiting:
        assert isinstance(node.state, AwaitingImage)
        source, container = node.state.source, node.job.container
        own = container.source if container is not None else None
        assert source == own, f"{node.name} waits for {source}, and needs {own}"
        assert source not in images.ready, f"{node.name} waits for {source}, which is there"
        assert node in images.waiting[source], f"nobody knows that {node.name} waits for {source}"
        asked = source in images.asked or state.closed or not state.course.submitted
        assert asked, f"{node.name} waits for {source}, which nobody was asked for"
    counted = sum(len(nodes) for nodes in images.waiting.values())
    assert counted == len(waiting), f"{counted} wait for images, {len(waiting)} found"
    assert all(images.waiting.values()), "an image that nobody waits for is counted"
    both = images.ready & images.asked.keys()
    assert not both, f"{both} are there, and are asked for"


def check_rest(state: State) -> None:
    """Check that no service keeps a card for jobs that all wait until they are due."""
    for live in state.attempts.services():
        needing = live.service.dependants if live.service else ()
        left = [node for node in needing if not node.settled]
        if not left or live.stopping or live.inherited or not live.cards:
            continue
        resting = all(isinstance(node.state, NotDue) for node in left)
        assert not resting, f"{live.id} keeps its cards for jobs that are not due"


def check_cards(state: State) -> None:
    """Check that no card carries what it must not, and that none is held beyond the limit."""
    ledger, cards, attempts = state.ledger, state.cards, state.attempts
    carried = {(card.gpu.uuid, attempt) for card in cards for attempt in card.attempts}
    by_attempts = {(card.gpu.uuid, live.id) for live in attempts for card in live.cards}
    assert carried == by_attempts, f"cards carry {carried}, attempts are on {by_attempts}"
    assert cards.held() <= cards.limit, f"{cards.held()} cards held, {cards.limit} allowed"
    for card in cards:
        name = f"GPU {card.gpu.index}"
        recorded = ledger.gpus[card.gpu.uuid]
        told = NAMES.get(type(card.state), recorded.state)
        assert told == recorded.state, f"{name} is {card.state}, recorded {recorded.state}"
        begun = {attempt for attempt in card.attempts if not ledger.attempt(attempt).in_queue}
        assert recorded.attempts >= begun, f"{name}: recorded {recorded.attempts}"
        at_rest = not card.coming and not isinstance(card.state, SetAside)
        at_rest = at_rest and not card.attempts and not card.idle_workers
        assert not (card.failing and at_rest), f"{name} is to be set aside, and is {card.state}"
        demands = list(card.attempts.values())
        assert not demands or card.leased, f"{name} is {card.state} and carries a job"
        demands += card.idle_workers.values()
        if len(demands) > 1 and not any(demand.share for demand in demands):
            shares = {demand.per_gpu for demand in demands}
            assert len(shares) == 1, f"{name} is shared by unlike jobs: {shares}"
            assert len(demands) <= min(shares), f"{name} carries {len(demands)} jobs"
        learning = any(demand.kind is not None for demand in demands)  # what it takes may grow
        need = demands[0].gpu_memory if len(demands) == 1 else sum(d.promise for d in demands)
        fits = need <= (card.look.free or 0) or not need or learning
        assert fits, f"{name}: too much promised"


def check_workers(state: State) -> None:
    """Check that each idle worker is on leased cards, and is being ended or may wait there.

    One that waits has a timer set, and nobody wants its cards.
    """
    ledger, cards, idle_workers = state.ledger, state.cards, state.idle_workers
    carried = {(card.gpu.uuid, worker) for card in cards for worker in card.idle_workers}
    by_workers = {(uuid, resident.id) for resident in idle_workers for uuid in resident.gpus}
    assert carried == by_workers, f"cards carry {carried}, workers are on {by_workers}"
    for resident in idle_workers:
        waits = resident.lingers and resident.may_stay
        assert resident.ending or waits, f"the worker of {resident.id} is idle"
        leased = all(card.leased for card in resident.cards)
        assert leased, f"the worker of {resident.id} is on a card that is not leased"
        for card in resident.cards if resident.ending else ():
            recorded = ledger.gpus[card.gpu.uuid].workers
            assert resident.id in recorded, f"GPU {card.gpu.index}: recorded {recorded}"


def check_behind(state: State) -> None:
    """Check that what is behind another attempt is alone there, and taken back in time."""
    behind = [live for live in state.attempts if live.behind is not None]
    for live in behind:
        leader = live.behind
        assert leader is not None
        assert not live.cards, f"{live.id} is on cards, and behind {leader.id}"
        assert not live.demand.uses, f"{live.id} holds tokens, and is behind {leader.id}"
        if leader.follower is not live:
            continue  # the leader has ended, and its worker too: the answer is to come
        assert leader.demand.same_seat(live.demand), f"{live.id} is behind {leader.id}"
        if live.taken_back or live.stopping or leader.stopping:
            continue
        assert not state.closed, f"{live.id} may begin while nothing may start"
        steady = all(may_go_on(card) for card in leader.cards)
        assert steady, f"{live.id} may begin on a card that is to be given back"
        alike = any(o.taken_back for o in behind if o.demand.same_seat(live.demand))
        free = state.idle_workers.fit(live.demand)
        assert alike or free is None, f"{live.id} waits beside an idle worker of its key"
        for node in state.placing.last.blocked:
            urgent = node.lacks == "cards" and node.key[0] < live.node.key[0]
            assert not urgent, f"{live.id} is before {node.name}, which is more urgent"


def check_counters(state: State) -> None:
    """Check that the tokens and CPUs counted are those of the attempts, and within the limits."""
    attempts, cpus = state.attempts, state.config.cpus
    used = Counter(
        token for live in attempts if not live.handed.share for token in live.demand.uses
    )
    shares = {id(live.handed.share): live.handed.share for live in attempts if live.handed.share}
    for share in shares.values():
        lives = sum(live.handed.share is share for live in attempts)
        assert share.lives == lives, f"{share.token}: {share.lives} counted, {lives} found"
        used[share.token] += share.taken
    assert +attempts.tokens == used, f"tokens counted {+attempts.tokens}, found {used}"
    for token, count in used.items():
        inherited = any(live.inherited or live.adopted for live in attempts)
        assert count <= state.config.tokens(token) or inherited, f"{count} tokens of {token} in use"
    takers = [live for live in attempts if live.cpus]
    total = sum(live.cpus for live in takers)
    assert attempts.cpus == total, f"{attempts.cpus} CPUs counted, {total} found"
    inherited = any(live.inherited for live in takers)
    assert total <= cpus or len(takers) == 1 or inherited, f"{total} of {cpus} CPUs in use"


def check_memory(state: State) -> None:
    """Check that the memory held is within the limit, and that nobody waits in vain for any."""
    attempts, limit = state.attempts, state.config.memory
    total = sum(live.demand.memory for live in attempts if live.behind is None)
    assert attempts.memory == total, f"{attempts.memory} bytes counted, {total} found"
    total += sum(resident.demand.memory for resident in state.idle_workers)
    unified = [card for card in state.cards if card.gpu.unified]
    there = [d for c in unified for d in (*c.attempts.values(), *c.idle_workers.values())]
    total += sum(demand.gpu_memory for demand in there)
    inherited = any(live.inherited or live.adopted for live in attempts)
    assert total <= limit or inherited, f"{total} of {limit} bytes are reserved"
    placing = state.placing
    ready = [node for node in state.jobs.waiting.heads() if node.lacks == "memory"]
    kept = placing.last.kept_memory
    for node in ready if placing.focus is None and not state.closed else ():
        most = node.job.demand.gpus * promised(state, node.job.demand).gpu_memory if unified else 0
        short = total + node.job.demand.memory + most > limit
        assert short or kept, f"{node.name} waits for memory, and {total} of {limit} is held"
        idle = [resident.id for resident in state.idle_workers if not resident.ending]
        assert not idle, f"{node.name} waits for memory beside idle workers: {idle}"


def check_queue(state: State, policy: InEngineQueue) -> None:
    """Check that no more attempts are handed over than may be, and no ready job waits in vain."""
    attempts, limit = state.attempts, policy.limit
    gpus = sum(live.demand.gpus for live in attempts)
    assert attempts.gpus == gpus, f"{attempts.gpus} cards counted, {gpus} found"
    adopted = any(live.adopted for live in attempts)
    assert len(attempts) <= policy.most or adopted, f"{len(attempts)} are handed over"
    assert limit is None or gpus <= limit or adopted, f"{gpus} of {limit} cards are taken"
    for live in attempts:
        assert not live.cards, f"{live.id} has cards of the run's own"
        assert not live.inherited, f"{live.id} is left to its keeper"
    kept = any(node.skipped >= state.placing.patience for node in state.placing.last.blocked)
    for node in state.jobs.waiting.heads():
        demand = node.job.demand
        fits = limit is None or not demand.gpus or gpus + demand.gpus <= limit
        fits = fits and len(attempts) < policy.most
        for token, count in Counter(demand.uses).items():
            fits = fits and attempts.tokens[token] + count <= state.config.tokens(token)
        assert kept or not fits, f"{node.name} waits, and nothing keeps it"


def check_idle(state: State) -> None:
    """Check that no leased card is idle unless it is reserved, and none beside a job that fits."""
    cards, placing, idle_workers = state.cards, state.placing, state.idle_workers
    for card in cards:
        if not card.idle:
            continue
        name = f"GPU {card.gpu.index}"
        assert card.reservations, f"{name} is leased and idle, and nobody's claim is on it"
        pending = any((c.coming or c.idle_workers) and c.reservations for c in cards)
        gang = placing.gang.granted and placing.reserving is not None
        assert pending or gang, f"{name} is kept idle without the right to gather"
    if placing.focus is not None:
        return
    for node in state.jobs.waiting.heads():
        demand = on_cards.sought(state, node)
        if not demand.gpus or node is placing.reserving or on_cards.obstacle(state, node):
            continue
        assert idle_workers.fit(demand) is None, f"{node.name} waits beside a worker of its key"
        fits = sum(suits_now(card, demand) for card in cards)
        idle = any(not resident.ending for resident in idle_workers)
        waits = node in placing.last.blocked and node.lacks == "cards"
        assert not (idle and waits), f"{node.name} waits for cards beside an idle worker"
        soon = [card for card in cards if card.coming or card.idle_workers]
        asked = [held for card in soon for held in card.reservations]
        if demand.shares_card and any(
            held.same_seat(demand) or held.kind == demand.kind for held in asked
        ):
            continue  # it is to have an empty card in a moment
        assert fits < demand.gpus, f"{node.name} waits beside {fits} cards that suit it"
