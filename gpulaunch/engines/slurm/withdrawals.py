"""Attempts that end without having begun, and what is said while Slurm's controller is silent.

    withdrawn ─▶ scancel ─▶ answered ─▶ over
                    └─ no answer in time, or an outage ─▶ over; cancelled once it answers

Whatever becomes of such a job in Slurm's queue, no node starts its attempt any more. No stop waits
for the controller: attempts that run are stopped through the run directory. A run that is to end at
once leaves behind only attempts of which no node reports an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulaunch.base.text import shell_word
from gpulaunch.core.events import Ended, StopAttempt
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    End,
    Failure,
    Interrupted,
    NotStarted,
    Outcome,
    Stopped,
    status_of,
)
from gpulaunch.engines.slurm.actions import (
    CancelJobs,
    ForgetAttempt,
)
from gpulaunch.engines.slurm.attempt import QueueSnapshot, SlurmAttempt, in_parts, ranges
from gpulaunch.engines.slurm.node_files import Withdrawn
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.engines.slurm.state import SlurmState
from gpulaunch.journal.ends import cause_of

WITHDRAWAL_TIMEOUT = 5.0
"""Seconds to wait for scancel's answer before an attempt is over without it."""
OUT_OF_REACH_TIMEOUT = 30.0
"""Seconds without an answer from Slurm after which a run that is to end at once gives up."""
MAX_NUMBERS_SHOWN = 8
"""Slurm's job numbers, and ranges of them, in a line for people."""
SILENT = "Slurm's controller does not answer"


# ── The end of an attempt that never began ────────────────────────────────────────────────────────


def over(
    state: SlurmState, one: SlurmAttempt, outcome: Outcome, failure: Failure | None = None
) -> None:
    """Forget an attempt that never began, and post its end."""
    gone(state, one)
    outcome = as_asked(outcome, one.stop)
    failure = failure if isinstance(outcome, NotStarted) else None
    state.post(Ended(one.attempt, End(outcome, failure)))


def gone(state: SlurmState, one: SlurmAttempt) -> None:
    """Forget an attempt that is over; let go what waited for it."""
    del state.attempts[one.attempt]
    state.given_up.pop(one.attempt, None)
    for known in (state.stops.asked, state.stops.written, state.stops.signalled):
        known.pop(one.attempt, None)
    state.do(ForgetAttempt(one.attempt))
    state.room_made(one.slurm.lane if one.id else None)
    if state.postponed:  # after the core has handled this end: it may cancel them
        state.wake("postponed", 0.0)


def as_asked(outcome: Outcome, stop: StopAttempt | None) -> Outcome:
    """Return the outcome of an end that was asked for, named as the demand says."""
    if stop is None or not isinstance(outcome, Cancelled | Interrupted | Stopped):
        return outcome
    status = status_of(outcome)
    match stop.reason:
        case "cancelled":
            return Cancelled(status)
        case "stopped":
            return Stopped(status)
    return Interrupted(stop.by, status)


# ── What was withdrawn, and Slurm may still have ──────────────────────────────────────────────────


def withdraw(state: SlurmState, some: Sequence[SlurmAttempt]) -> None:
    """Cancel these withdrawn attempts in Slurm; while it is silent, `let_go` follows."""
    until = state.now + WITHDRAWAL_TIMEOUT
    for one in some:
        state.withdrawals.there[one.attempt] = one
        state.withdrawals.waiting[one.attempt] = until
    if not state.outage.why:
        cancel(state, some)
    _wake(state)


def cancel(state: SlurmState, some: Sequence[SlurmAttempt]) -> None:
    for part in in_parts([one for one in some if one.id and one.reachable]):
        ids, attempts = (one.id for one in part), (one.attempt for one in part)
        state.do(CancelJobs(tuple(ids), tuple(attempts)))


def late(state: SlurmState) -> None:
    """Take a silence for an outage where scancel's answer has not come in time."""
    if any(until <= state.now for until in state.withdrawals.waiting.values()):
        away(state, f"no answer within {WITHDRAWAL_TIMEOUT:g} s")
    _wake(state)


def _wake(state: SlurmState) -> None:
    if at := min(state.withdrawals.waiting.values(), default=None):
        state.wake("withdrawal", max(0.0, at - state.now))


def answered(state: SlurmState, attempts: Iterable[AttemptId]) -> None:
    """End attempts that scancel has taken. `look` cancels again until the queue shows it."""
    for attempt in attempts:
        if state.withdrawals.waiting.pop(attempt, None) is not None:
            _left(state, attempt)


def let_go(state: SlurmState) -> None:
    """End all attempts that wait for Slurm's answer, without it."""
    answered(state, list(state.withdrawals.waiting))


def forget(state: SlurmState, attempts: Iterable[AttemptId]) -> None:
    """Forget attempts that Slurm will not start, and end those that waited for that."""
    for attempt in attempts:
        state.withdrawals.there.pop(attempt, None)
        answered(state, [attempt])


def _left(state: SlurmState, attempt: AttemptId) -> None:
    one = state.attempts.get(attempt)
    if one is not None and isinstance(one.holder, Withdrawn):
        by = Interrupted(cause_of(one.holder.by))
        over(state, one, Cancelled() if one.holder.reason == "cancelled" else by)


def look(state: SlurmState, rows: Sequence[QueueRow], asked_at: float, whole: bool) -> None:
    """Cancel again what the queue, read at that monotonic time, still shows of them.

    `whole`: Slurm does not have a job that `rows` lack.
    """
    snapshot = QueueSnapshot(rows)
    there = []
    for one in list(state.withdrawals.there.values()):
        if not one.id:
            if whole and state.outbox.batch_of(one.attempt) is None:
                forget(state, [one.attempt])
        elif one.slurm.known_at < asked_at:
            row = snapshot.row_of(one)
            if row is not None and row.phase != "over":
                there.append(state.put(one.looked(row, asked_at, state.now)))
            elif whole:
                forget(state, [one.attempt])
    cancel(state, there)


# ── A controller that does not answer ─────────────────────────────────────────────────────────────


def away(state: SlurmState, why: str) -> None:
    """Note that the controller does not answer, and say so once."""
    first, state.outage.why = not state.outage.why, f"{SILENT}: {why}"
    if not say(state) and first:
        state.warn(f"{SILENT}, what runs goes on: {why}")
    let_go(state)


def back(state: SlurmState, asked_at: float) -> None:
    """Note an answer to a question asked at that monotonic time; say so after an outage."""
    state.outage.heard_at = asked_at
    if state.outage.why:
        state.warn("Slurm's controller answers again")
    state.outage.why = ""
    state.outage.said.clear()


def say(state: SlurmState) -> bool:
    """Warn how the attempts that are to end do so without Slurm; return True if anything was said.

    Once for each attempt, and once more when it is to end at once.
    """
    stopping = state.which(lambda one: one.stop or one.withdrawn)
    new = [one for one in stopping if (one.attempt, one.at_once) not in state.outage.said]
    state.outage.said.update((one.attempt, one.at_once) for one in new)
    waited = sum(one.withdrawn for one in new)
    told = []
    if waited:
        removed_by = _removed_by(state)
        by = f" ({removed_by} takes them out of its queue)" if removed_by else ""
        told.append(f"{_count(waited)} withdrawn: what it still starts ends at once{by}")
    if ran := len(new) - waited:
        told.append(f"{_count(ran)} told through the run directory, within a minute")
        if any(one.at_once for one in new):
            told.append(f"what has not ended in {OUT_OF_REACH_TIMEOUT:g} s is left in its hands")
    if told:
        state.warn(f"{SILENT}: {'; '.join(told)}")
    return bool(told)


def gives_up(state: SlurmState) -> bool:
    """Tell whether a run that is to end at once has waited long enough for Slurm's answer."""
    followed = state.attempts.values()
    if not (state.outage.why and followed and all(one.at_once for one in followed)):
        return False
    silent_since = max(state.outage.heard_at, state.stops.now_since)
    return state.now - silent_since >= OUT_OF_REACH_TIMEOUT


def _removed_by(state: SlurmState) -> str:
    """Return the commands by which a person can cancel those that wait for Slurm's answer."""
    there = state.withdrawals.there
    waiting = [there[attempt] for attempt in state.withdrawals.waiting if attempt in there]
    words = [term for term, _ in ranges(one.id for one in waiting if one.id)]
    if len(words) > MAX_NUMBERS_SHOWN:
        words[MAX_NUMBERS_SHOWN:] = ["..."]
    titles = dict.fromkeys(one.slurm.title for one in waiting if one.slurm.title and not one.id)
    lines = [f"scancel {' '.join(words)}"] if words else []
    return ", ".join([*lines, *(f"scancel --name={shell_word(title)}" for title in titles)])


def _count(count: int) -> str:
    return "1 attempt is" if count == 1 else f"{count:,} attempts are"
