"""Attempts that Slurm has, followed to their end. Pure.

    squeue ─▶ row: over, unknown, requeued ─▶ scontrol show job ─▶ confirmed, or contradicted
    records ─▶ start, end ──────────▶ judge ◀──────────────────────┘
                                        └─▶ AttemptStarted, Ended; its job is followed to the end

Only the few attempts that a row would end, or call lost, are asked of: one call at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gpulaunch.core.causes import ByCluster, Hint
from gpulaunch.core.events import Ended, OutOfReach
from gpulaunch.core.facts import AttemptQueued, AttemptStarted
from gpulaunch.core.model import AttemptId, End, Exited
from gpulaunch.core.reasons import LeftInQueue
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.engines.slurm import actions as a
from gpulaunch.engines.slurm import commands, withdrawals
from gpulaunch.engines.slurm.attempt import (
    REQUEUED,
    UNCONFIRMED,
    Began,
    QueueSnapshot,
    SlurmAttempt,
    Unaccounted,
    sign_of,
)
from gpulaunch.engines.slurm.node_files import NodeStart, Withdrawn
from gpulaunch.engines.slurm.outcome import (
    AttemptEvidence,
    Over,
    found_its_claim,
    hidden_kill,
    is_full_there,
    judge,
)
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.engines.slurm.state import SlurmState
from gpulaunch.journal.ends import EndRecord, text_of

CARD_NAMES_TIMEOUT = 15.0
"""Seconds after a claim for which the engine waits for the node's record of its cards' names."""
RECORDS_INTERVAL = 1.0
"""Seconds between two looks at the records in the run directory. Slurm's queue is read every
`SlurmState.cycle` seconds."""
CALL_INTERVAL = 0.1
"""Seconds between two calls of scontrol: each costs the cluster's controller some work."""
MAX_ASKED_PER_LOOK = 50
"""Attempts to confirm after one look at the queue; the others follow after the next."""

_GIVEN_UP = text_of(ByCluster("given_up"))

Doubted = list[tuple[AttemptId, QueueRow | None]]


# ── When to look ────────────────────────────────────────────────────────────────────────────────


def plan(state: SlurmState) -> None:
    """Plan the next looks at the records and at the queue while anything is followed."""
    doubts = state.outbox.in_doubt or state.probe.in_doubt or state.withdrawals.there
    if state.attempts or state.trailing or doubts:
        state.plan("records", min(RECORDS_INTERVAL, state.cycle))
        if state.asked_at is None:
            state.plan("queue", state.cycle)


def hurry(state: SlurmState) -> None:
    """Ask Slurm for its queue soon: a recorded end waits for Slurm's state alone."""
    if state.asked_at is None:
        state.planned.discard("queue")
        state.plan("queue", min(RECORDS_INTERVAL, state.cycle))


def ask(state: SlurmState) -> None:
    state.asked_at = state.now
    state.do(a.AskQueue())


def ask_anew(state: SlurmState) -> None:
    """Have the queue read anew: an answer to an earlier question does not show what is in doubt."""
    state.asked_at = None
    plan(state)


# ── The queue ───────────────────────────────────────────────────────────────────────────────────


def place(state: SlurmState, rows: Sequence[QueueRow], asked_at: float) -> Doubted:
    """Store each attempt's row of the queue; return those that `scontrol` must confirm first.

    Skips attempts that Slurm got after it was asked at `asked_at`: the answer cannot show them.
    """
    snapshot, ended, doubted = QueueSnapshot(rows), state.records.ends(), []
    for one in list(state.attempts.values()):
        if not one.id or one.slurm.known_at >= asked_at:
            continue
        row = snapshot.row_of(one)
        gone = one.start is None and (row is None or row.phase == "over")
        if gone and (other := snapshot.other_number_of(one)):
            one = state.change(one.attempt, slurm=replace(one.slurm, id=other))
            row = snapshot.row_of(one)
        known = not one.must_be_confirmed(row) or one.sight.confirmed == sign_of(row)
        # An end that is recorded counts, unless Slurm would start the job again.
        over = (row is None or row.phase == "over") and str(one.attempt) in ended
        if known or (over and state.records.end(one.attempt) is not None):
            state.put(one.looked(row, asked_at, state.now))
        else:
            doubted.append((one.attempt, row))
    return doubted


def confirm(state: SlurmState, doubted: Doubted) -> None:
    """Confirm these attempts, each with `squeue`'s row, instead of those of an earlier look.

    Those whose last question is the longest ago come first.
    """
    doubts = state.doubts
    doubted = [each for each in doubted if each[0] in state.attempts]
    ids = {attempt: state.attempts[attempt].id for attempt, _ in doubted}
    doubts.asked = {id: doubts.asked.get(id, 0.0) for id in ids.values()}
    longest = sorted(doubted, key=lambda each: doubts.asked[ids[each[0]]])
    doubts.waiting = longest[:MAX_ASKED_PER_LOOK]
    confirm_next(state)


def confirm_next(state: SlurmState) -> None:
    """Ask `scontrol` for the next attempt whose row is in doubt."""
    doubts = state.doubts
    while not doubts.busy and doubts.waiting:
        attempt, doubts.asking = doubts.waiting.pop(0)
        if (one := state.attempts.get(attempt)) is not None:
            doubts.busy, doubts.asked[one.id] = True, state.now
            state.do(a.Show(attempt, one.id))


def shown(
    state: SlurmState, attempt: AttemptId, answer: commands.QueueAnswer, asked_at: float
) -> None:
    """Store a row that `scontrol` has confirmed, or the one that it has in its place.

    Where `scontrol` does not know the job, the row is `squeue`'s.
    """
    state.doubts.busy = False
    state.wake("confirm", CALL_INTERVAL)
    one = state.attempts.get(attempt)
    if one is None or isinstance(answer, commands.Unreachable):
        return
    row = QueueSnapshot(answer.rows).row_of(one) or state.doubts.asking
    began = one.holder.seen_at if isinstance(one.holder, Began) else 0.0
    if max(one.slurm.known_at, began) < asked_at:
        one = state.sighted(one.attempt, confirmed=sign_of(row))
        state.put(one.looked(row, asked_at, state.now))
        recall(state)


def trail(state: SlurmState, rows: Sequence[QueueRow], asked_at: float, whole: bool) -> None:
    """Follow the jobs of attempts whose end was posted, until Slurm is done with them.

    `whole`: a job that `rows` lack is one that Slurm has forgotten.
    """
    snapshot = QueueSnapshot(rows)
    for attempt, (one, succeeded) in list(state.trailing.items()):
        row = snapshot.row_of(one)
        if row is None and not whole:
            continue
        one = one.looked(row, asked_at, state.now)
        state.trailing[attempt] = one, succeeded
        if one.sight.is_over:
            del state.trailing[attempt]
            _compare(state, one, succeeded)
            state.do(a.ForgetSilence(one.id))


def recall(state: SlurmState) -> None:
    """Cancel the jobs that Slurm would start again or never, and stop their first start.

    Slurm may start a job again whose end is recorded, if it missed the message of that end. Jobs
    that depend on it would wait for the second start.
    """
    known = [*state.attempts.values(), *(one for one, _ in state.trailing.values())]
    state.cancel([one for one in known if one.sight.recalled and one.row and one.row.waits])
    for one in list(state.attempts.values()):
        anew = one.sight.recalled or (one.row is not None and found_its_claim(one.row))
        if anew and one.start is not None and not (one.stop or one.told_to_end):
            state.change(one.attempt, told_to_end=True)
            _leave_word(state, one.attempt)


def _leave_word(state: SlurmState, attempt: AttemptId) -> None:
    """Write a stop file for a start that Slurm takes for ended but that may still live.

    A node that lost its controller may still run it; the node ends it once it reads the file.
    """
    state.do(a.WriteStop(attempt, Withdrawn("interrupted", text_of(REQUEUED))))


def cancel_strays(state: SlurmState, rows: Sequence[QueueRow]) -> None:
    """Cancel this run's jobs whose start would do nothing.

    A batch may be in the queue twice (the answer to its first submission was lost), or although
    `sbatch` failed, or it was withdrawn while Slurm did not answer. Once another start or a
    launcher has claimed an attempt, a job that still waits for it would take cards for nothing.
    """
    waiting = [row for row in rows if row.waits and row.name in state.outbox.titled]
    claimed = state.records.starts() if waiting else frozenset()
    found = [number for row in waiting for number in _strays_of(state, row, claimed)]
    if found:
        state.cancel_numbers(found)


def _strays_of(state: SlurmState, row: QueueRow, claimed: frozenset[str]) -> Iterable[str]:
    batch = state.outbox.titled.get(row.name)
    for place, attempt in batch.members if batch else ():
        alone = row.task is None and not row.tasks
        if str(attempt) not in claimed or not (alone or row.is_about(row.id, place)):
            continue
        number = row.id if alone else f"{row.id}_{place}"
        trailing, _ = state.trailing.get(attempt, (None, False))
        one = state.of(attempt) or trailing
        if one is None or one.id != number:
            match state.records.start(attempt):
                case Withdrawn():
                    yield number
                case NodeStart(job=job, restart=restart) if job != number or row.restarts > restart:
                    yield number


# ── The records ─────────────────────────────────────────────────────────────────────────────────


def look(state: SlurmState) -> None:
    """Read the records and Slurm's last rows; post what has started or ended since."""
    started, ended = state.records.starts(), state.records.ends()
    for one in list(state.attempts.values()):
        if one.attempt not in state.attempts:
            continue  # an outage that was noticed meanwhile has ended it
        if one.start is None and not one.withdrawn and str(one.attempt) in started:
            begun(state, one.attempt)
        elif one.start is not None:
            _tell_start(state, one)
        _consider(state, one.attempt, str(one.attempt) in ended)
    give_up(state)
    if withdrawals.gives_up(state):
        state.post(OutOfReach(LeftInQueue(len(state.attempts))))


def begun(state: SlurmState, attempt: AttemptId) -> None:
    """Take in who has claimed the attempt, as soon as that can be read."""
    one, start = state.attempts[attempt], state.records.start(attempt)
    if start is None:
        return
    if isinstance(start, Withdrawn):  # by an earlier launcher that was killed meanwhile
        withdrawals.withdraw(state, [state.change(attempt, holder=start)])
        return
    sight = replace(one.sight, confirmed=UNCONFIRMED)
    if one.row is not None and one.row.inferred:  # of a task that had not begun
        sight = replace(sight, row=None)
    slurm = one.slurm
    if start.job and start.job != one.id:
        if not one.id:
            state.post(AttemptQueued(attempt, f"Slurm job {start.job}"))
        slurm = replace(slurm, id=start.job, title="")  # submitted twice: this is the job that runs
    one = state.change(attempt, holder=Began(start, state.now), sight=sight, slurm=slurm)
    _tell_start(state, one)


def _tell_start(state: SlurmState, one: SlurmAttempt, is_over: bool = False) -> None:
    """Post `AttemptStarted` with the cards' names, or their indices if the names come too late.

    The node writes the names a moment after its claim. An attempt that `is_over` is not kept
    waiting for them.
    """
    began = one.holder
    if not isinstance(began, Began) or began.told:
        return
    if began.start.awaits_cards:
        found = state.records.start(one.attempt)
        if isinstance(found, NodeStart):
            began = replace(began, start=found)
        late = state.now - began.seen_at >= CARD_NAMES_TIMEOUT
        if began.start.awaits_cards and not (is_over or late):
            return
    start = began.start
    state.change(one.attempt, holder=replace(began, told=True))
    state.post(AttemptStarted(one.attempt, start.pid, start.gpus, start.node))


def _consider(state: SlurmState, attempt: AttemptId, has_end: bool) -> None:
    """End the attempt if the records and Slurm's row allow it."""
    one = state.attempts[attempt]
    end = state.records.end(attempt) if has_end else None
    if one.withdrawn or (end is None and one.sight.unaccounted is None):
        return
    if end is not None and one.end_seen_at is None:
        one = state.change(attempt, end_seen_at=state.now)
    seen = AttemptEvidence(one, end, state.records.said(one.id), state.now)
    verdict = judge(seen)
    if verdict is None:
        _wait(state, one, end)
    elif end is None and one.start is None:
        _say_why_again(state, one)
        state.given_up[attempt] = verdict
    elif end is not None or not _still_beats(state, one):
        _end(state, one, verdict, seen)


def _wait(state: SlurmState, one: SlurmAttempt, end: EndRecord | None) -> None:
    """Ask Slurm soon, or remember the node's last sign of life: a record is awaited."""
    if end is not None:
        hurry(state)
    elif one.start is not None:
        gone = one.sight.unaccounted
        if gone is not None and gone.beat is None:
            beat = state.records.beat(one.attempt)
            state.sighted(one.attempt, unaccounted=replace(gone, beat=beat))
        if is_full_there(one.row) and state.first_time("full", one.attempt):
            where = f" on {one.row.node}" if one.row and one.row.node else ""
            text = f"is over{where}, where the run's disk is full: a record of its end is awaited"
            state.warn(text, one.attempt.job)


def _still_beats(state: SlurmState, one: SlurmAttempt) -> bool:
    """Return True if the node's side showed a sign of life since the last call.

    The attempt is then not over, whatever Slurm says.
    """
    before = one.sight.unaccounted.beat if one.sight.unaccounted else None
    beat = state.records.beat(one.attempt)
    if beat is None or beat == before:
        return False
    state.sighted(one.attempt, unaccounted=Unaccounted(state.now, beat))
    return True


def _end(state: SlurmState, one: SlurmAttempt, verdict: Over, seen: AttemptEvidence) -> None:
    """Post the end of an attempt that began; follow its job until Slurm is done with it."""
    _tell_start(state, one, is_over=True)
    one, record = state.attempts[one.attempt], seen.record
    outcome = withdrawals.as_asked(verdict.outcome, one.stop)
    end = record.end if record is not None else End(outcome)
    ended = Ended(one.attempt, replace(end, outcome=outcome, failure=verdict.failure))
    succeeded = isinstance(outcome, Exited) and outcome.code in one.job.success_codes
    if succeeded:  # Slurm's final state may come only after the run is over
        _say_hidden_kill(state, one, hidden_kill(seen))
    if one.id and one.sight.is_over:
        _compare(state, one, succeeded)
        state.do(a.ForgetSilence(one.id))
    elif one.id:
        state.trailing[one.attempt] = one, succeeded
    if one.is_to_begin_anew:
        state.cancel([one])
    withdrawals.gone(state, one)
    if record is None and one.start is not None:
        _leave_word(state, one.attempt)
    if verdict.failure is None:
        state.do(a.Diagnose(ended, one.job))
    else:
        state.post(ended)


def _compare(state: SlurmState, one: SlurmAttempt, succeeded: bool) -> None:
    """Note a success that Slurm takes for a failure, and warn of a process killed for memory.

    Slurm cancels what needs such a job; an exit status of 0 may hide the kill.
    """
    if succeeded and one.row is not None and one.row.kind != "completed":
        state.contrary[one.attempt] = one.row.state
        seen = AttemptEvidence(one, None, state.records.said(one.id), state.now)
        _say_hidden_kill(state, one, hidden_kill(seen))


def _say_hidden_kill(state: SlurmState, one: SlurmAttempt, killed: str) -> None:
    """Warn once that a process of an attempt that succeeded was killed for its memory."""
    if killed and state.first_time("killed", one.attempt):
        said = f"a process of {one.attempt} was killed for its memory ({killed}), yet it ended"
        more = advice((Hint("queue_memory"),))
        text = f"{said} as a success does: look at what it left. {more}"
        state.warn(text, one.attempt.job)


def _say_why_again(state: SlurmState, one: SlurmAttempt) -> None:
    """Warn that Slurm cancelled the attempt because of a need that did succeed."""
    for need in one.after if one.row is not None and one.row.kind == "dependency" else ():
        if taken := state.contrary.get(need):
            taken = f"which takes {need} for failed ({taken}); it is handed over again"
            state.warn(f"Slurm cancelled {one.attempt}, {taken}", one.attempt.job)


# ── What will not start ─────────────────────────────────────────────────────────────────────────


def give_up(state: SlurmState) -> None:
    """Withdraw attempts that by Slurm's word will not start.

    Withdrawing makes that certain: Slurm may remember a job after all, and the shared disk may
    show a start late.
    """
    if some := [attempt for attempt in state.given_up if attempt in state.attempts]:
        state.do(a.ClaimAttempts("give up", {Withdrawn("interrupted", _GIVEN_UP): some}))


def keep_given_up(state: SlurmState, seen: a.Claimed) -> None:
    """End what was given up and is ours now; on a full disk, what Slurm has finished.

    That never starts without a claim. The rest is claimed again later, and what waits in Slurm's
    queue is judged anew before.
    """
    (some,) = seen.claim.groups.values()
    for attempt in some:
        one, verdict = state.attempts.get(attempt), state.given_up.get(attempt)
        if one is None or verdict is None:
            continue
        waits = one.sight.phase == "queued"
        if waits and attempt in seen.won:
            state.withdrawals.there[attempt] = one
            state.cancel([one])
        if attempt in seen.won or one.sight.phase == "over":
            withdrawals.over(state, one, verdict.outcome, verdict.failure)
        elif waits:
            del state.given_up[attempt]
