"""The state machine of a cluster's engine: an observation in, actions out. Pure: told the time.

Launch ─▶ Prepare ─▶ Prepared ─▶ submission ─▶ Submit ─▶ Answered ─▶ AttemptQueued
Due ─▶ AskQueue ─▶ Answered ─▶ following ─▶ AttemptStarted, Ended
StopAttempt ─▶ cancellation ─▶ ClaimAttempts ─▶ Claimed ─▶ withdrawals: Ended
                                                        └▶ WriteStop, SignalJobs, CancelJobs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gpulaunch.base.text import span
from gpulaunch.core.causes import ByCluster
from gpulaunch.core.events import Ended, HoldQueue, Launch, StopAttempt
from gpulaunch.core.model import AttemptId, End, Interrupted, NotStarted
from gpulaunch.engines.context import SCARCITY_RETRY_DELAY
from gpulaunch.engines.slurm import actions as a
from gpulaunch.engines.slurm import (
    cancellation,
    commands,
    following,
    standstill,
    submission,
    withdrawals,
)
from gpulaunch.engines.slurm.attempt import REQUEUED, Sighting, SlurmAttempt
from gpulaunch.engines.slurm.batches import Terms
from gpulaunch.engines.slurm.outcome import NFS_VISIBILITY_TIMEOUT, found_its_claim
from gpulaunch.engines.slurm.reading import DEPENDENCY, SUSPENDED, in_words
from gpulaunch.engines.slurm.state import SlurmState


def step(state: SlurmState, observation: a.Observation, now: float) -> list[a.Action]:
    """Take the observation in; return what is to be done, in that order. Changes `state`."""
    state.now = now
    _observe(state, observation)
    actions, state.out = state.out, []
    return actions


def _observe(state: SlurmState, observation: a.Observation) -> None:
    match observation:
        case a.Due(timer):
            state.planned.discard(timer)
            _WHEN_DUE[timer](state)
        case a.Answered():
            _answered(state, observation)
        case a.Claimed():
            cancellation.claimed(state, observation)
        case Launch():
            state.do(a.Prepare(observation))
        case a.Prepared(launch, options, environ):
            attempt = launch.attempt
            state.attempts[attempt] = SlurmAttempt(attempt, launch.job, after=launch.after)
            terms = Terms(options, share=launch.share, environ=environ)
            submission.add(state, attempt, terms, launch.after)
            following.plan(state)
        case a.Unprepared():
            _unprepared(state, observation)
        case StopAttempt():
            _stop(state, observation)
        case HoldQueue(on):
            standstill.want(state, on)
            if not on:
                submission.send(state)
        case a.Unwritten(a.Submit(), why):
            submission.unwritten(state, why)
        case a.Unwritten(a.Hold() as hold):
            standstill.answered(state, hold, None)
        case a.Unwritten(a.WriteStop(attempt)):
            cancellation.unwritten(state, attempt)
        case a.Adopted():
            _adopt(state, observation)


def _answered(state: SlurmState, seen: a.Answered) -> None:
    answer: Any = seen.answer
    match seen.action:
        case a.Submit():
            submission.submitted(state, answer)
        case a.SubmitProbe():
            standstill.submitted(state, answer)
        case a.AskConfig():
            submission.configured(state, answer)
        case a.AskQueue():
            _queue_seen(state, answer, seen.asked_at)
        case a.Show(attempt):
            following.shown(state, attempt, answer, seen.asked_at)
            following.plan(state)
        case a.Hold() as hold:
            standstill.answered(state, hold, answer)
        case a.CancelJobs(_, withdrawn) if not isinstance(answer, commands.Unreachable):
            withdrawals.answered(state, withdrawn)
        case a.SignalJobs(attempts) if isinstance(answer, commands.Unreachable):
            cancellation.unsignalled(state, attempts)
            withdrawals.away(state, answer.text)
        case a.CancelJobs():
            withdrawals.away(state, answer.text)


def _look(state: SlurmState) -> None:
    following.look(state)
    following.plan(state)


def _queue_seen(state: SlurmState, answer: commands.QueueAnswer, asked_at: float) -> None:
    if asked_at != state.asked_at:
        return
    state.asked_at = None
    if isinstance(answer, commands.Unreachable):
        withdrawals.away(state, answer.text)
        following.plan(state)
        return
    rows = answer.rows
    withdrawals.back(state, asked_at)
    doubted = following.place(state, rows, asked_at)
    whole = not doubted  # a doubtful answer may lack jobs that Slurm does have
    submission.look_up(state, rows, whole)
    following.trail(state, rows, asked_at, whole)
    withdrawals.look(state, rows, asked_at, whole)
    if whole:
        standstill.probe_queue(state, rows)
    following.cancel_strays(state, rows)
    following.recall(state)
    standstill.give_up_hope(state)
    standstill.check_queue_hold(state)
    following.look(state)
    following.confirm(state, doubted)
    cancellation.insist(state)
    following.plan(state)


# ── Launches ────────────────────────────────────────────────────────────────────────────────────


def _unprepared(state: SlurmState, seen: a.Unprepared) -> None:
    """Postpone a launch that failed, or post its end when nothing that it needs is under way.

    What it lacked may come: descriptors, memory, disk; a job that it needs may be about to make the
    missing file.
    """
    attempt = seen.launch.attempt
    if seen.scarce:
        submission.waits(state, seen.why)
        state.postponed[attempt] = seen.launch, seen.why
        state.wake("scarce", SCARCITY_RETRY_DELAY)
    elif any(state.id_of(need) is not None for need in seen.launch.after):
        state.postponed[attempt] = seen.launch, ""
    else:
        state.post(Ended(attempt, End(NotStarted(seen.why))))


def _take_scarce(state: SlurmState) -> None:
    for attempt, (launch, scarce) in list(state.postponed.items()):
        if scarce:
            del state.postponed[attempt]
            state.do(a.Prepare(launch))


def _take_postponed(state: SlurmState) -> None:
    for attempt, (launch, scarce) in list(state.postponed.items()):
        if not scarce and all(state.id_of(need) is None for need in launch.after):
            del state.postponed[attempt]
            state.do(a.Prepare(replace(launch, after=())))


def _stop(state: SlurmState, stop: StopAttempt) -> None:
    attempt = stop.attempt
    if state.postponed.pop(attempt, None):
        state.post(Ended(attempt, End(withdrawals.as_asked(Interrupted(stop.by), stop))))
    elif attempt in state.attempts:
        one = state.change(attempt, stop=stop)
        if stop.now:
            state.stops.now_since = state.stops.now_since or state.now
        if not one.id and submission.drop(state, attempt):
            withdrawals.over(state, one, Interrupted(stop.by))
        else:
            cancellation.ask(state, attempt)
    elif not state.adopted:
        state.early[attempt] = stop


def _adopt(state: SlurmState, left: a.Adopted) -> None:
    """Follow an earlier launcher's attempts; post the end of those that Slurm never got.

    The core launches the latter again.
    """
    state.adopted = True
    unknown = set(left.attempts)
    # Batches with a number first: an attempt may also stand in an older batch, without a number,
    # that was split before it was handed over.
    for batch in sorted(left.batches, key=lambda batch: not batch.id):
        state.outbox.titled[batch.title] = batch
        mine = [attempt for attempt in batch.attempts if attempt in unknown]
        if not mine:
            continue
        unknown.difference_update(mine)
        for attempt in mine:
            state.attempts[attempt] = SlurmAttempt(
                attempt,
                left.jobs[attempt],
                sight=Sighting(recalled=REQUEUED if attempt in left.ended else None),
                stop=state.early.get(attempt),
                adopted=True,
            )
        if batch.id:
            submission.numbered(state, batch)
        else:
            submission.take_up(state, batch)
    for one in state.which(lambda one: one.stop):
        cancellation.ask(state, one.attempt)
    for attempt in sorted(unknown):
        state.post(Ended(attempt, End(Interrupted(ByCluster("never_handed")))))
    following.plan(state)


# ── Why an attempt has not started ──────────────────────────────────────────────────────────────


def why(state: SlurmState, attempt: AttemptId) -> str:
    """Return why an attempt has not started, or what is in doubt of one that has; else ""."""
    one, silent = state.attempts.get(attempt), state.outage.why
    if one is None:
        _, scarce = state.postponed.get(attempt, (None, ""))
        return scarce or ("waits for what it needs" if attempt in state.postponed else "")
    if one.begun:
        return _doubt(state, one)
    if not one.id:
        handed = "not yet" if state.hold.on else "is being"
        waits = state.outbox.waits or silent or submission.why(state, attempt)
        return waits or f"{handed} handed to Slurm"
    queued = f"in Slurm's queue as {one.id}"
    if silent or one.row is None or one.row.phase != "queued":
        return queued + (f": {silent}" if silent else "")
    return queued + in_words(one.row.reason, _known_here(state, one, one.row.reason))


_SUSPENDED = "Slurm has suspended it; scontrol resume lets it go on"


def _doubt(state: SlurmState, one: SlurmAttempt) -> str:
    """Return why an attempt that a node has may not run: its end, or what Slurm says of it."""
    gone, row = one.sight.unaccounted, one.row
    if one.end_seen_at is not None:
        return "it has ended; what Slurm says of its end is awaited"
    if gone is None:
        return _SUSPENDED if row is not None and row.state in SUSPENDED else ""
    node = one.start.node if one.start else ""
    at = f"node {node}" if node else "its node"
    left = max(0.0, gone.since + NFS_VISIBILITY_TIMEOUT - state.now)
    if row is None:
        said = "Slurm knows it no longer"
    elif row.kind in ("node_fail", "boot_fail"):
        said = f"{at} is down, Slurm says"
    elif one.sight.recalled or row.phase == "queued" or found_its_claim(row):
        said = f"Slurm has put it back into its queue, as when {at} fails"
    else:
        said = f"Slurm has ended it ({row.state})"
    ago = span(round(state.now - gone.since))
    return f"{said}, for {ago}; without a record of its end it is over in {span(round(left))}"


def _known_here(state: SlurmState, one: SlurmAttempt, reason: str) -> str:
    """Return why Slurm lets the attempt wait, where only this launcher knows; else "".

    The core names the jobs that it needs.
    """
    if standstill.holds(state, one):
        return "held until the run goes on"
    if reason != DEPENDENCY:
        return ""
    if state.probe.id:
        return standstill.why(state)
    return f"others with a token of {one.slurm.token} go first" if one.slurm.token else ""


_WHEN_DUE: dict[a.Timer, Callable[[SlurmState], None]] = {
    "records": _look,
    "queue": following.ask,
    "confirm": following.confirm_next,
    "gather": submission.gather_what_is_ripe,
    "send": submission.send,
    "room": submission.send,
    "stop": cancellation.begin,
    "withdrawal": withdrawals.late,
    "hold": standstill.check_queue_hold,
    "scarce": _take_scarce,
    "postponed": _take_postponed,
}
