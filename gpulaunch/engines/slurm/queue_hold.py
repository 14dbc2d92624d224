"""A paused run's attempts in Slurm's queue: held there, and released when the run goes on. Pure.

    pause ─▶ slurm/held, which names them ─▶ scontrol hold ┄▶ they wait, however free the cards
    go on, or a later launcher ─▶ scontrol release ─▶ slurm/held is gone

The file is written first: if this launcher dies, the next one releases the attempts that the file
names, and no others. A job that a person held in Slurm stays held.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch.engines.slurm import commands
from gpulaunch.engines.slurm.actions import ForgetHeld, Hold
from gpulaunch.engines.slurm.attempt import MAX_NUMBERS_PER_CALL, SlurmAttempt, ranges
from gpulaunch.engines.slurm.reasons import HELD
from gpulaunch.engines.slurm.state import SlurmState
from gpulaunch.farside.wire import coded

GATHER_DELAY = 0.02
"""Seconds for which pauses are gathered: one that is over at once holds nothing."""


def want(state: SlurmState, on: bool) -> None:
    """Hold all attempts that wait, now and later, while `on`; else release them."""
    hold = state.hold
    if on != hold.on:
        hold.on, hold.told = on, frozenset()
        state.wake("hold", GATHER_DELAY)


def look(state: SlurmState) -> None:
    """Send the next hold or release for the attempts that no call has covered yet.

    After each look at the queue too. One call at a time, so that a release cannot overtake its
    hold.
    """
    hold = state.hold
    if hold.busy:
        return
    untold = state.which(lambda one: _name(one) not in hold.told)
    if hold.on:
        waiting = [one for one in untold if one.id and one.row and one.row.phase == "queued"]
        free = [o for o in waiting if _name(o) in hold.ever or not (o.row and o.row.reason in HELD)]
        if free:
            names = frozenset(map(_name, free))
            hold.ours, hold.ever = hold.ours | names, hold.ever | names
            _tell(state, free)
    elif hold.ours:
        _release(state, [one for one in untold if _name(one) in hold.ours])


def holds(state: SlurmState, one: SlurmAttempt) -> bool:
    """Return True if the attempt waits because the run is paused."""
    return state.hold.on and _name(one) in state.hold.ours


def _release(state: SlurmState, some: Sequence[SlurmAttempt]) -> None:
    """Release these; delete the file if none is left. One without a number waits for it."""
    known = [one for one in some if one.id and not one.withdrawn]
    if known:
        _tell(state, known)
    elif not some:
        state.hold.ours = frozenset()
        state.do(ForgetHeld())


def _tell(state: SlurmState, some: Sequence[SlurmAttempt]) -> None:
    """Call for as many of these as one call takes; the rest follows its answer."""
    terms = ranges(one.id for one in some)[:MAX_NUMBERS_PER_CALL]
    ids = {id for _, members in terms for id in members}
    names = frozenset(_name(one) for one in some if one.id in ids)
    hold = state.hold
    hold.busy = True
    state.do(Hold(hold.on, tuple(term for term, _ in terms), names, hold.ours))


def answered(state: SlurmState, call: Hold, answer: commands.CancelAnswer | None) -> None:
    """Take in an answer of scontrol; without one, `look` asks again after the next look."""
    hold = state.hold
    hold.busy = False
    if isinstance(answer, commands.SubmissionRefused):
        _say(state, answer.text, call.on)
    if answer is not None and not isinstance(answer, commands.Unreachable):
        if call.on == hold.on:
            hold.told |= call.names
        look(state)


def _say(state: SlurmState, why: str, on: bool) -> None:
    if why != state.hold.refused:
        what = "hold back what is in its queue" if on else "release what was held back"
        state.warn(f"Slurm does not {what}: {why}")
    state.hold.refused = why


def _name(one: SlurmAttempt) -> str:
    return coded(str(one.attempt))
