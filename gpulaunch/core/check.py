"""The invariants of a run, each with words. Tests check them after every event of a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpulaunch.core.active import ActiveAttempts
from gpulaunch.core.admission import Admission
from gpulaunch.core.cards import Cards
from gpulaunch.core.idle_workers import IdleWorkers
from gpulaunch.core.jobs import Jobs
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import SETTLED
from gpulaunch.core.placement import suits_now
from gpulaunch.core.queueing import Queueing
from gpulaunch.core.waiting import WAITING


def check_jobs(ledger: Ledger, jobs: Jobs, attempts: ActiveAttempts) -> None:
    """Check that every job is in exactly one state, and that the ledger says the same."""
    states = Counter(record.state for record in ledger.jobs.values() if not record.gone)
    assert states == +ledger.counts, f"counted {+ledger.counts}, found {states}"
    running = {live.id.job: live.id for live in attempts}
    assert len(running) == len(attempts), "a job has two attempts running"
    for node in jobs:
        record = jobs.record(node)
        expected = node.state if node.state not in WAITING else "waiting"
        if node.state == "running" and record.in_queue:
            expected = "waiting"
        if expected == "settled" and not node.excluded:
            assert record.state in SETTLED, f"{node.name} is settled, recorded {record.state}"
        elif not node.excluded:
            assert record.state == expected, f"{node.name} is {expected}, recorded {record.state}"
        open_attempts = [a.id for a in record.attempts if a.outcome is None]
        mine = [running[node.name]] if node.name in running else []
        assert open_attempts == mine, f"{node.name}: open {open_attempts}, running {mine}"
        assert record.charged <= node.job.retry.times + 1, f"{node.name} tried too often"
        if node.state in WAITING:
            blockers = sum(jobs.record(need).state != "succeeded" for need in node.needs)
            blockers += sum(other.state != "settled" for other in node.after)
            assert node.blockers == blockers, f"{node.name}: {node.blockers} blockers counted"
            assert bool(blockers) == (node.state == "blocked"), f"{node.name} is {node.state}"
        if node.state == "ready":
            missing = [service.name for service in node.services if not service.ready]
            assert not missing, f"{node.name} is ready without {missing}"
        open_dependants = sum(other.state != "settled" for other in node.dependants)
        assert not node.job.service or node.open == open_dependants, f"{node.name}: open count"
        assert min(node.demands.values(), default=0) >= 0, f"{node.name}: demands count"
    unsettled = sum(node.state != "settled" for node in jobs)
    assert jobs.unsettled == unsettled, f"{jobs.unsettled} unsettled counted, {unsettled} found"
    delayed = sum(node.state == "delayed" for node in jobs)
    assert jobs.delayed == delayed, f"{jobs.delayed} delayed counted, {delayed} found"


def check_cards(ledger: Ledger, cards: Cards, attempts: ActiveAttempts) -> None:
    """Check that no card carries what it must not, and that none is held beyond the limit."""
    on_cards = {(card.gpu.uuid, attempt) for card in cards for attempt in card.attempts}
    by_attempts = {(card.gpu.uuid, live.id) for live in attempts for card in live.cards}
    assert on_cards == by_attempts, f"cards carry {on_cards}, attempts are on {by_attempts}"
    assert cards.held() <= cards.limit, f"{cards.held()} cards held, {cards.limit} allowed"
    for card in cards:
        name = f"GPU {card.gpu.index}"
        recorded = ledger.gpus[card.gpu.uuid]
        assert card.state in ("asking", recorded.state), f"{name}: recorded {recorded.state}"
        assert recorded.attempts >= set(card.attempts), f"{name}: recorded {recorded.attempts}"
        at_rest = card.state not in ("asking", "draining", "aside")
        at_rest = at_rest and not card.attempts and not card.idle_workers
        assert not (card.failing and at_rest), f"{name} is to be set aside, and is {card.state}"
        demands = list(card.attempts.values())
        assert not demands or card.state == "leased", f"{name} is {card.state} and carries a job"
        demands += card.idle_workers.values()
        if len(demands) > 1:
            shares = {demand.per_gpu for demand in demands}
            assert len(shares) == 1, f"{name} is shared by unlike jobs: {shares}"
            assert len(demands) <= min(shares), f"{name} carries {len(demands)} jobs"
        promised = sum(demand.gpu_memory for demand in demands)
        assert promised <= (card.memory_free or 0) or not promised, f"{name}: too much promised"


def check_workers(ledger: Ledger, cards: Cards, idle_workers: IdleWorkers) -> None:
    """Check that each idle worker is on leased cards, and is being ended or may wait there.

    One that waits has a timer set, and nobody wants its cards.
    """
    on_cards = {(card.gpu.uuid, worker) for card in cards for worker in card.idle_workers}
    by_workers = {(uuid, resident.id) for resident in idle_workers for uuid in resident.gpus}
    assert on_cards == by_workers, f"cards carry {on_cards}, workers are on {by_workers}"
    for resident in idle_workers:
        waits = resident.lingers and resident.may_stay
        assert resident.ending or waits, f"the worker of {resident.id} is idle"
        states = {card.state for card in resident.cards}
        assert states <= {"leased"}, f"the worker of {resident.id} is on a card that is {states}"
        for card in resident.cards if resident.ending else ():
            recorded = ledger.gpus[card.gpu.uuid].workers
            assert resident.id in recorded, f"GPU {card.gpu.index}: recorded {recorded}"


def check_counters(attempts: ActiveAttempts, limits: Mapping[str, int], cpus: int) -> None:
    """Check that the tokens and CPUs counted are those of the attempts, and within the limits."""
    used = Counter(token for live in attempts if not live.share for token in live.demand.uses)
    shares = {id(live.share): live.share for live in attempts if live.share}
    for share in shares.values():
        lives = sum(live.share is share for live in attempts)
        assert share.lives == lives, f"{share.token}: {share.lives} counted, {lives} found"
        used[share.token] += share.taken
    assert +attempts.tokens == used, f"tokens counted {+attempts.tokens}, found {used}"
    for token, count in used.items():
        inherited = any(live.inherited or live.adopted for live in attempts)
        assert count <= limits.get(token, 1) or inherited, f"{count} tokens of {token} in use"
    takers = [live for live in attempts if live.cpus]
    total = sum(live.cpus for live in takers)
    assert attempts.cpus == total, f"{attempts.cpus} CPUs counted, {total} found"
    inherited = any(live.inherited for live in takers)
    assert total <= cpus or len(takers) == 1 or inherited, f"{total} of {cpus} CPUs in use"


def check_queue(
    jobs: Jobs, attempts: ActiveAttempts, admission: Queueing, limits: Mapping[str, int]
) -> None:
    """Check that no more attempts are handed over than may be, and no ready job waits in vain."""
    gpus = sum(live.demand.gpus for live in attempts)
    assert attempts.gpus == gpus, f"{attempts.gpus} cards counted, {gpus} found"
    adopted = any(live.adopted for live in attempts)
    assert len(attempts) <= admission.most or adopted, f"{len(attempts)} are handed over"
    limit = admission.limit
    assert limit is None or gpus <= limit or adopted, f"{gpus} of {limit} cards are taken"
    for live in attempts:
        assert not live.cards, f"{live.id} has cards of the run's own"
        assert not live.inherited, f"{live.id} is left to its keeper"
    kept = any(node.skipped >= admission.patience for node in admission.blocked)
    for node in jobs.waiting.heads():
        demand = node.job.demand
        fits = limit is None or not demand.gpus or gpus + demand.gpus <= limit
        fits = fits and len(attempts) < admission.most
        for token, count in Counter(demand.uses).items():
            fits = fits and attempts.tokens[token] + count <= limits.get(token, 1)
        assert kept or not fits, f"{node.name} waits, and nothing keeps it"


def check_idle(cards: Cards, jobs: Jobs, idle_workers: IdleWorkers, admission: Admission) -> None:
    """Check that no leased card is idle unless it is reserved, and none beside a job that fits."""
    for card in cards:
        if not card.idle:
            continue
        name = f"GPU {card.gpu.index}"
        assert card.reservations, f"{name} is leased and idle, and nobody's claim is on it"
        pending = any(
            (c.state in ("asking", "draining") or c.idle_workers) and c.reservations for c in cards
        )
        gang = admission.gang.granted and admission.reserving is not None
        assert pending or gang, f"{name} is kept idle without the right to gather"
    if admission.focus is not None:
        return
    for node in jobs.waiting.heads():
        demand = node.job.demand
        if not demand.gpus or node is admission.reserving or admission.obstacle(node):
            continue
        assert idle_workers.fit(demand) is None, f"{node.name} waits beside a worker of its key"
        fits = sum(suits_now(card, demand) for card in cards)
        idle = any(not resident.ending for resident in idle_workers)
        waits = node in admission.blocked and node.blocked_on == "cards"
        assert not (idle and waits), f"{node.name} waits for cards beside an idle worker"
        assert fits < demand.gpus, f"{node.name} waits beside {fits} cards that suit it"
