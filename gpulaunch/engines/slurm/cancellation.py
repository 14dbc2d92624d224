"""Ending attempts: withdrawn before they begin, or stopped by the node's side. Pure.

    ask ─▶ claim ─▶ ours: no node starts it any more (`withdrawals`)
                 └▶ a node's: it runs ─▶ stops/JOB.N, which the node reads by itself
                                      ─▶ USR1 to the batch script alone (now: USR2, which kills)
                                            └─ long after its grace: scancel

No stop waits for Slurm's controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from gpulaunch.core.model import (
    AttemptId,
)
from gpulaunch.engines.slurm.actions import (
    ClaimAttempts,
    Claimed,
    SignalJobs,
    WriteStop,
)
from gpulaunch.engines.slurm.attempt import SlurmAttempt, in_parts
from gpulaunch.engines.slurm.following import begun, keep_given_up
from gpulaunch.engines.slurm.node_files import Reason, Withdrawn
from gpulaunch.engines.slurm.outcome import refused
from gpulaunch.engines.slurm.state import SlurmState
from gpulaunch.engines.slurm.withdrawals import forget, let_go, say, withdraw
from gpulaunch.journal.ends import text_of

HARD_END_DELAY = 30.0
"""Seconds beyond a job's grace after which it is cancelled through Slurm."""
GATHER_DELAY = 0.02
"""Seconds for which stops are gathered, so that one call carries many."""
WRITE_RETRY_DELAY = 5.0
"""Seconds after which a stop or a claim that could not be written is tried again."""


def ask(state: SlurmState, attempt: AttemptId) -> None:
    """Stop the attempt as was demanded: at first, or again with a stronger demand."""
    state.stops.asked[attempt] = None
    state.wake("stop", GATHER_DELAY)


def begin(state: SlurmState) -> None:
    """Stop all that was asked for since the last time."""
    asked, state.stops.asked = state.stops.asked, {}
    _tell(state, tuple(attempt for attempt in asked if attempt in state.attempts))


def insist(state: SlurmState) -> None:
    """Repeat the stops after a look at the queue: attempts may wait still, or have begun."""
    _tell(state, tuple(one.attempt for one in state.which(lambda one: one.stop)))


def again(state: SlurmState, attempts: Iterable[AttemptId]) -> None:
    """Repeat stops that could not be written, in a while."""
    state.stops.asked.update(dict.fromkeys(attempts))
    state.wake("stop", WRITE_RETRY_DELAY)


def _tell(state: SlurmState, attempts: tuple[AttemptId, ...]) -> None:
    groups: dict[Withdrawn, list[AttemptId]] = {}
    for one in map(state.attempts.__getitem__, attempts):
        if not (one.begun or one.withdrawn):
            groups.setdefault(_why(one), []).append(one.attempt)
    if groups:
        state.do(ClaimAttempts("stop", groups, attempts))
    else:
        _go_on(state, attempts)


def claimed(state: SlurmState, seen: Claimed) -> None:
    """Take in who has which attempt, and go on with what the claim was for."""
    for why, attempts in seen.claim.groups.items():
        for attempt in attempts:
            one = state.attempts.get(attempt)
            if one is None:
                continue
            if attempt in seen.lost:
                state.given_up.pop(attempt, None)
                state.change(attempt, holder="a node")
                begun(state, attempt)
            elif attempt in seen.won and seen.claim.purpose == "stop":
                state.change(attempt, holder=why)
    if seen.claim.purpose == "give up":
        keep_given_up(state, seen)
        return
    if won := [state.attempts[attempt] for attempt in seen.won if attempt in state.attempts]:
        withdraw(state, won)
    if unclaimed := set(chain(*seen.claim.groups.values())) - seen.won - seen.lost:
        again(state, sorted(unclaimed))  # a full disk: Slurm is asked meanwhile
    _go_on(state, seen.claim.all)


def refuse(state: SlurmState, attempts: Sequence[AttemptId], why: str) -> None:
    """End attempts that Slurm has refused, for good: they are claimed before."""
    for attempt in attempts:
        one = state.attempts.get(attempt)
        if one is not None and not one.withdrawn:
            state.given_up[attempt] = refused(why)
    forget(state, attempts)


def _go_on(state: SlurmState, attempts: Sequence[AttemptId]) -> None:
    """Stop those of the attempts that a node has, or that could not be claimed."""
    known = (state.attempts.get(attempt) for attempt in attempts)
    some = [one for one in known if one is not None and not one.withdrawn]
    for one in some:
        _write(state, one)
    some = [one for one in some if one.id and one.reachable]
    running = [one for one in some if one.runs]
    late = {one.attempt for one in running if _is_late(state, one)}
    state.cancel([one for one in some if not one.runs or one.attempt in late])
    for word, now in (("USR1", False), ("USR2", True)):
        told = [one for one in running if one.at_once == now and one.attempt not in late]
        _signal(state, told, word)
    if state.outage.why:
        say(state)
        let_go(state)


def _write(state: SlurmState, one: SlurmAttempt) -> None:
    """Write the stop file that the node reads. Without it the end would look like Slurm's."""
    written = _why(one), one.at_once
    if state.stops.written.get(one.attempt) != written:
        state.stops.written[one.attempt] = written
        state.do(WriteStop(one.attempt, *written))


def unwritten(state: SlurmState, attempt: AttemptId) -> None:
    """Try again, in a while, a stop that could not be written."""
    if state.stops.written.pop(attempt, None) is not None:
        again(state, [attempt])


def _is_late(state: SlurmState, one: SlurmAttempt) -> bool:
    word, since = state.stops.signalled.get(one.attempt, ("", state.now))
    grace = 0.0 if word == "USR2" else one.job.grace
    return bool(word) and state.now - since > HARD_END_DELAY + grace


def _signal(state: SlurmState, running: Sequence[SlurmAttempt], word: str) -> None:
    told = state.stops.signalled
    new = [one for one in running if told.get(one.attempt, ("",))[0] != word]
    told.update({one.attempt: (word, state.now) for one in new})
    for some in in_parts(new):
        ids = tuple(one.id for one in some)
        state.do(SignalJobs(tuple(one.attempt for one in some), ids, word))


def unsignalled(state: SlurmState, attempts: Iterable[AttemptId]) -> None:
    """Forget signals that did not reach Slurm: they are sent again."""
    for attempt in attempts:
        state.stops.signalled.pop(attempt, None)


def _why(one: SlurmAttempt) -> Withdrawn:
    """Return why the attempt is to end, as the claim and stop files spell it."""
    stop = one.stop
    reason: Reason = "cancelled" if stop and stop.reason == "cancelled" else "interrupted"
    return Withdrawn(reason, text_of(stop.by) if stop else "")
