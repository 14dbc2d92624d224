"""Proposes what a person can ask of the run from the screen: a question, then requests. Pure.

Returns why something cannot be asked, if so; sends nothing.
"""

from __future__ import annotations

from msgspec import Struct

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Cancel, GoOn, Pause, Request, Retry
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import SETTLED_STATES, RunState
from gpulaunch.core.reasons import RunReason
from gpulaunch.core.records import JobRecord
from gpulaunch.digest import words
from gpulaunch.wording import pause


class Proposal(Struct, frozen=True):
    """Requests with a `question` to confirm them; `done` is shown once they were sent."""

    question: str
    done: str
    requests: tuple[Request, ...]


def unable(state: RunState, past: bool, root: str, instead: str) -> str:
    """Return why nothing can be asked (only a live run can be, in the present); else "".

    `instead` is the command that serves on a run that is over.
    """
    if past:
        return "this is the past: n goes back to now"
    if state == "running":
        return ""
    over = "was interrupted" if state == "interrupted" else "is over"
    return f"the run {over}: gpulaunch {instead} {root}"


def to_cancel(job: JobRecord) -> Proposal | str:
    """Return the proposal, or why there is none."""
    if job.state in SETTLED_STATES:
        return f"{job.name} is over already ({job.state})"
    what = "It is running, and is stopped." if job.state == "running" else "It waits."
    question = f"Cancel {words.visible(job.name)}?\n{what} It will not be run again in this run."
    return Proposal(question, f"cancelled {job.name}", (Cancel((job.name,)),))


def to_retry(job: JobRecord) -> Proposal | str:
    """Return the proposal, or why there is none."""
    if job.state not in ("failed", "cancelled", "skipped") and job.not_before is None:
        return f"{job.name} has not failed ({job.state})"
    question = (
        f"Run {words.visible(job.name)} again?\n"
        "As the job file has it now, with what keeps it from running, and what was skipped"
        " because of it."
    )
    return Proposal(question, f"requeued {job.name}", (Retry((job.name,), as_filed=True),))


def pause_to_end(ledger: Ledger) -> RunReason | None:
    """Return the pause that a person can end: theirs, or one after many failures alike."""
    return ledger.pauses.get("breaker") or ledger.pauses.get("asked")


def to_pause(paused: RunReason | None) -> Proposal:
    """Return the proposal to pause, or to end the pause `paused`."""
    if paused is None:
        question = "Start no new jobs?\nThose that run go on."
        return Proposal(question, "paused", (Pause(Quoted("asked for in gpulaunch top")),))
    # One request ends a pause after many failures alike, the other a person's pause.
    question = f"Start jobs again?\nPaused: {words.visible(pause(paused))}"
    return Proposal(question, "goes on", (GoOn(), Pause(None)))
