"""Attempts on their way to Slurm: gathered into batches, submitted one by one, never twice. Pure.

    add ─▶ (a moment, for others alike) ─▶ batch, written ─▶ sbatch ─▶ number, written
                                     ▲ fewer, or later ◀─ too many ┘ └ no answer, or a failure
                                                                       in words not Slurm's own:
                                                                       looked up, then again

A limit of the site delays only the batches to which it applies (`commands.Limits`).

Attempts that need one task each of the same array go as an array too, each task with the index of
the task that it needs (`aftercorr`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from gpulaunch.core.facts import AttemptQueued
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import (
    batches,
    cancellation,
    commands,
    following,
    standstill,
    withdrawals,
)
from gpulaunch.engines.slurm.actions import AskConfig, ForgetBatch, RecordNumber, Submit
from gpulaunch.engines.slurm.attempt import SlurmJob
from gpulaunch.engines.slurm.batches import (
    Batch,
    BatchDoubted,
    BatchHanded,
    BatchReady,
    Member,
    Terms,
    layers,
)
from gpulaunch.engines.slurm.limits import Lane
from gpulaunch.engines.slurm.reading import QueueRow, is_about_arrays
from gpulaunch.engines.slurm.state import GATHER_DELAY, SlurmState

GATHERED_SHARE, PATIENCE_EACH, MAX_GATHER_DELAY = 4, 0.1, 10.0
"""While attempts of a lane wait in Slurm, new ones are gathered until they are one part in
GATHERED_SHARE of these, for PATIENCE_EACH seconds for each of these and MAX_GATHER_DELAY seconds at
most: Slurm's queue does not run dry, and sbatch is called seldom."""
MAX_ARRAY_TASKS = 1000
"""Tasks in one array, where the cluster allows as many."""
SUBMIT_RETRY_DELAY, OUTAGE_RETRY_DELAY = 1.0, 5.0
"""Seconds to the next submission after a passing refusal, and after no answer."""
MAX_RESUBMIT_DELAY = 300.0
"""Seconds, the longest delay between submissions of a batch that each ended in doubt."""
MAX_FOREIGN_FAILURES = 2
"""Failures in words that are not Slurm's own after which a batch counts as refused."""


def add(
    state: SlurmState, attempt: AttemptId, terms: Terms, after: Sequence[AttemptId] = ()
) -> None:
    """Queue the attempt for submission. `after`: attempts under way that must succeed first."""
    box = state.outbox
    box.fresh[attempt] = terms, tuple(after)
    box.fresh_since = box.fresh_since or state.now
    state.wake("gather", GATHER_DELAY)


def take_up(state: SlurmState, batch: Batch) -> None:
    """Queue an earlier launcher's batch, and look up whether Slurm has it."""
    state.outbox.batches.append(batch)
    _doubt(state, batch, BatchDoubted(BatchReady(tried=True)))


def drop(state: SlurmState, attempt: AttemptId) -> bool:
    """Take the attempt back; False if Slurm has it, or may have it."""
    if state.outbox.fresh.pop(attempt, None) is not None:
        return True
    found = state.outbox.batch_of(attempt)
    return found is not None and isinstance(found.state, BatchReady) and not found.state.tried


def why(state: SlurmState, attempt: AttemptId) -> str:
    """Return Slurm's reason for not taking the attempt now; empty if Slurm gave none."""
    found = state.outbox.batch_of(attempt)
    return state.outbox.limits.why(found.terms.lane) if found else ""


def waits(state: SlurmState, why: str) -> None:
    """Say, once, that nothing is handed over for now."""
    if why != state.outbox.waits:
        state.warn(f"Slurm is given no more for now: {why}")
    state.outbox.waits = why


def _wanted(state: SlurmState, attempt: AttemptId) -> bool:
    one = state.attempts.get(attempt)
    return one is not None and not one.withdrawn


# ── What Slurm has of it ────────────────────────────────────────────────────────────────────────


def look_up(state: SlurmState, rows: Sequence[QueueRow], whole: bool) -> None:
    """Settle the batch in doubt by the queue's rows, which were read after the doubt arose.

    `whole`: a batch that the rows lack is one that Slurm does not have, as far as can be told.
    """
    batch = state.outbox.sending
    if batch is None or not isinstance(batch.state, BatchDoubted):
        return
    found = next((row.id for row in rows if row.name == batch.title), _begun_as(state, batch))
    if found:
        has_it(state, batch, found)
    elif whole and state.now >= state.outbox.again_at:
        _not_there(state, batch, batch.state)


def _begun_as(state: SlurmState, batch: Batch) -> str:
    """Return the number under which a node started one of the batch's attempts; else ""."""
    known = (state.attempts.get(attempt) for attempt in batch.attempts)
    starts = (one.start for one in known if one is not None)
    return next((start.job.partition("_")[0] for start in starts if start), "")


def _not_there(state: SlurmState, batch: Batch, doubt: BatchDoubted) -> None:
    """Submit a batch again that Slurm does not have, or refuse it if its failure was real.

    The delay doubles from one doubt to the next.
    """
    tries = doubt.before.tries + 1
    delay = min(MAX_RESUBMIT_DELAY, OUTAGE_RETRY_DELAY * 2.0 ** min(tries, 10))
    state.outbox.again_at = state.now + delay
    about_needs = doubt.failed and "dependency" in doubt.said.lower()
    batch.state = BatchReady(tries, tried=True, unneeded=doubt.before.unneeded or about_needs)
    if doubt.failed and tries >= MAX_FOREIGN_FAILURES and not about_needs:
        _refuse(state, batch, doubt.said)
    elif doubt.said:
        waits(state, f"{doubt.said}; its queue has nothing of it, so it is handed over again")
    send(state)


def submitted(state: SlurmState, answer: commands.SubmitAnswer) -> None:
    """Take in what sbatch has answered."""
    batch, box = state.outbox.sending, state.outbox
    assert batch is not None
    assert isinstance(batch.state, BatchHanded)
    before = batch.state.before
    match answer:
        case commands.SubmissionAccepted(number):
            has_it(state, batch, number)
        case commands.Full(text):
            batch.state = before
            _too_many(state, batch, text)
        case commands.SubmissionRefused(text, plain=False):
            _doubt(state, batch, BatchDoubted(before, text, failed=True))
        case commands.SubmissionRefused(text) if len(batch.attempts) > 1 and is_about_arrays(text):
            batch.state, box.largest = before, len(batch.attempts) // 2
            send(state)
        case commands.SubmissionRefused(text) if "dependency" in text.lower():
            # Either a job that it needs has just failed: once that end is handled, the batch is
            # not wanted. Or that job has succeeded, and a newer Slurm no longer knows it.
            batch.state = replace(before, unneeded=True)
            state.wake("send", SUBMIT_RETRY_DELAY)
        case commands.SubmissionRefused(text):
            _refuse(state, batch, text)
            send(state)
        case commands.Unreachable(text):
            _doubt(state, batch, BatchDoubted(before, text))


def unwritten(state: SlurmState, why: str) -> None:
    """Submit the batch later whose intent could not be written."""
    batch = state.outbox.sending
    assert batch is not None
    assert isinstance(batch.state, BatchHanded)
    batch.state = batch.state.before
    waits(state, why)
    state.wake("send", SUBMIT_RETRY_DELAY)


def has_it(state: SlurmState, batch: Batch, number: str) -> None:
    """Note that Slurm has the batch as `number`; go on with what waits behind it."""
    _done(state, batch)
    box = state.outbox
    box.limits.taken(batch.terms.lane, len(batch.attempts), state.now)
    if batch.terms.share:
        box.sharing[batch.terms.share[0]] = batch
    batch.id = number
    state.do(RecordNumber(batch, number))
    numbered(state, batch)
    if any(after for _, after in box.fresh.values()):
        gather(state)  # attempts that need one of these can name its number now
    else:
        send(state)


def numbered(state: SlurmState, batch: Batch) -> None:
    """Give the attempts of a batch their numbers; stop those that are to end already."""
    state.outbox.waits, share = "", batch.terms.share
    for place, attempt in batch.members:
        one = state.of(attempt)
        if one is None:
            continue
        need = batch.terms.needs_at(place)[0] if batch.terms.each else ""
        token, lane = share[0] if share else "", batch.terms.lane
        job = SlurmJob(batch.task_of(place), batch.title, state.now, need, token, lane)
        one = state.put(replace(one, slurm=job))
        if attempt in state.attempts:
            state.post(AttemptQueued(attempt, f"Slurm job {one.id}"))
        if one.withdrawn:
            withdrawals.cancel(state, [one])
        elif one.stop is not None:
            cancellation.ask(state, attempt)


def _refuse(state: SlurmState, batch: Batch, why: str) -> None:
    """Give the batch up, and its attempts. Its file stays.

    Should Slurm have it after all, its node reads there which attempts it is, and finds them
    withdrawn.
    """
    _done(state, batch)
    cancellation.refuse(state, batch.attempts, why)
    following.give_up(state)


def _too_many(state: SlurmState, batch: Batch, why: str) -> None:
    """Retry a batch that a limit of the site refused: half of it now, or a single one later.

    Before a single one, other batches of its lane have their turn.
    """
    lane, size = batch.terms.lane, len(batch.attempts)
    if state.outbox.limits.refused(lane, size, why, state.now):
        where = f" with {' '.join(lane)}" if lane else ""
        state.warn(f"Slurm takes no more{where} for now: {why}")
    if size == 1:
        _yield(state, batch)
    send(state)


def _yield(state: SlurmState, batch: Batch) -> None:
    """Move the batch behind others of its lane that have other options.

    The batch itself may be what is too large or too long for the lane.
    """
    all_, terms = state.outbox.batches, batch.terms
    others = [o for o in all_ if o.terms.lane == terms.lane and o.terms.options != terms.options]
    if others:
        all_.remove(batch)
        all_.insert(all_.index(others[-1]) + 1, batch)


def _doubt(state: SlurmState, batch: Batch, doubt: BatchDoubted) -> None:
    batch.state = doubt
    following.ask_anew(state)


def _done(state: SlurmState, batch: Batch) -> None:
    state.outbox.again_at = 0.0
    state.outbox.batches.remove(batch)


# ── Batches ─────────────────────────────────────────────────────────────────────────────────────


def gather_what_is_ripe(state: SlurmState) -> None:
    """Make batches now, or once more attempts have come or some seconds have passed.

    At once where little of a lane waits in Slurm.
    """
    box = state.outbox
    lanes = Counter(terms.lane for terms, _ in box.fresh.values())
    delay = min((_patience(state, lane, count) for lane, count in lanes.items()), default=0.0)
    if (late := box.fresh_since + delay - state.now) > 0:
        state.wake("gather", late)
    else:
        gather(state)


def _patience(state: SlurmState, lane: Lane, count: int) -> float:
    """Return the seconds for which so many new attempts of the lane may be kept back."""
    behind = len(state.which(lambda h: h.id and not h.begun and h.slurm.lane == lane))
    enough = count * GATHERED_SHARE >= behind
    return 0.0 if enough else min(behind * PATIENCE_EACH, MAX_GATHER_DELAY)


def gather(state: SlurmState) -> None:
    """Make batches of the attempts whose needs have numbers, and submit the first."""
    box = state.outbox
    if not box.largest:
        state.do(AskConfig())
        return
    box.fresh_since = 0.0
    alike: dict[Terms, list[Member]] = {}
    for attempt, (terms, after) in list(box.fresh.items()):
        numbers = [state.id_of(need) for need in after]
        if "" not in numbers:  # otherwise it waits until all that it needs has a number
            del box.fresh[attempt]
            terms, place = terms.behind(tuple(filter(None, numbers)))
            alike.setdefault(terms, []).append((place, attempt))
    for terms, members in alike.items():
        for layer in layers(members) if terms.each else (members,):
            for start in range(0, len(layer), box.largest):
                box.batches.extend(_made(state, layer[start : start + box.largest], terms))
    send(state)


def configured(state: SlurmState, answer: commands.ConfigAnswer) -> None:
    """Take in how large an array may be."""
    if isinstance(answer, commands.Config):
        state.outbox.largest = max(1, min(MAX_ARRAY_TASKS, answer.array))
        gather(state)
    else:
        withdrawals.away(state, answer.text)
        state.wake("gather", OUTAGE_RETRY_DELAY)


def _made(state: SlurmState, members: Sequence[Member], terms: Terms) -> list[Batch]:
    """Return the members as batches, usually one.

    With `terms.each`, a member whose needed task is over goes alone: Slurm may have forgotten
    that task, and `aftercorr` would then wait for the whole array.
    """
    if not terms.each:
        return [_batch(state, members, terms)] if members else []
    numbers = state.numbers()
    joint = [member for member in members if numbers.issuperset(terms.needs_at(member[0]))]
    made = [_batch(state, joint, terms)] if len(joint) > 1 else []
    done = set(joint) if made else set()
    for member in members:
        if member not in done:
            alone = replace(terms, after=terms.needs_at(member[0]), each=False)
            made.append(_batch(state, [member], alone))
    return made


def _batch(state: SlurmState, members: Sequence[Member], terms: Terms) -> Batch:
    state.outbox.count += 1
    name = f"{state.epoch}-{state.outbox.count}"
    attempts = tuple(attempt for _, attempt in members)
    places = tuple(place for place, _ in members) if terms.each else range(len(members))
    title = f"{state.prefix}{name}:{batches.names(attempts)}"[:120]
    batch = Batch(name, title, attempts, terms, tuple(places))
    state.outbox.titled[title] = batch
    return batch


def send(state: SlurmState) -> None:
    """Submit the next batch, unless one is being submitted or in doubt."""
    box = state.outbox
    while box.sending is None and (batch := _next(state)):
        assert isinstance(batch.state, BatchReady)
        if state.hold.on:
            return
        parts = _left_of(state, batch)
        if parts != [batch]:
            # Under new names, so that no part is taken for a batch of an earlier launcher.
            _replace(state, batch, parts)
            continue
        if standstill.comes_first(state, batch.terms.options):
            return
        ready = batch.state
        batch.state = BatchHanded(ready)
        state.do(Submit(batch, batch.options(_dependency(state, batch, ready))))
    state.plan_room()


def _next(state: SlurmState) -> Batch | None:
    """Return the first batch for which there is room."""
    box = state.outbox
    for batch in box.batches:
        size = len(batch.attempts)
        if most := box.limits.most(batch.terms.lane, box.largest or size, state.now):
            return _sized(state, batch, most)
    return None


def _sized(state: SlurmState, batch: Batch, most: int) -> Batch:
    """Return a batch of up to `most` attempts, split from or merged with those of its terms."""
    alike, all_ = [batch], state.outbox.batches
    if not batch.terms.each and batch.state == BatchReady():
        behind = all_[all_.index(batch) + 1 :]
        alike += [o for o in behind if o.terms == batch.terms and o.state == BatchReady()]
    count = 1
    while count < len(alike) and sum(len(one.attempts) for one in alike[:count]) < most:
        count += 1
    members = [member for one in alike[:count] for member in one.members]
    if count == 1 and len(members) <= most:
        return batch
    for other in alike[1:count]:
        _replace(state, other, ())
    parts = [*_made(state, members[:most], batch.terms)]
    _replace(state, batch, [*parts, *_made(state, members[most:], batch.terms)])
    return parts[0]


def _left_of(state: SlurmState, batch: Batch) -> list[Batch]:
    """Return the batch without attempts that are no longer wanted: usually the batch itself."""
    wanted = [member for member in batch.members if _wanted(state, member[1])]
    if wanted == batch.members:
        needs = (need for place in batch.places for need in batch.terms.needs_at(place))
        if not batch.terms.each or state.numbers().issuperset(needs):
            return [batch]
    return _made(state, wanted, batch.terms)


def _replace(state: SlurmState, batch: Batch, parts: Sequence[Batch]) -> None:
    """Put the parts in the batch's place. What Slurm may have of it, it may have of each."""
    assert isinstance(batch.state, BatchReady)
    for part in parts:
        part.state = replace(batch.state, tries=0)
    place = state.outbox.batches.index(batch)
    state.do(ForgetBatch(batch))
    state.outbox.batches[place : place + 1] = parts


# ── What a batch is behind ──────────────────────────────────────────────────────────────────────


def _dependency(state: SlurmState, batch: Batch, ready: BatchReady) -> tuple[str, ...]:
    each, after = batch.terms.each, _needs(state, batch, ready)
    needed = ":".join(filter(None, (state.probe.id, *(() if each else after))))
    conditions = [f"afterok:{needed}"] if needed else []
    if each and after:
        conditions.append(f"aftercorr:{after[0]}")
    if last := _shares_with(state, batch):
        conditions.append(f"afterany:{last.id}")
    if not conditions:
        return ()
    return (f"--dependency={','.join(conditions)}", "--kill-on-invalid-dep=yes")


def _needs(state: SlurmState, batch: Batch, ready: BatchReady) -> Sequence[str]:
    """Return Slurm's numbers of what the batch needs; after a refusal, only those under way."""
    if not ready.unneeded:
        return batch.terms.after
    numbers = state.numbers()
    if batch.terms.each:
        tasks = {need for place in batch.places for need in batch.terms.needs_at(place)}
        return () if tasks.isdisjoint(numbers) else batch.terms.after
    return [number for number in batch.terms.after if number in numbers]


def _shares_with(state: SlurmState, batch: Batch) -> Batch | None:
    """Return the batch under way with the same token; None if there is none.

    Slurm bounds the running tasks of one array only: of two arrays, one follows the other.
    """
    if batch.terms.share is None:
        return None
    last = state.outbox.sharing.get(batch.terms.share[0])
    under_way = last is not None and any(_wanted(state, attempt) for attempt in last.attempts)
    return last if under_way else None
