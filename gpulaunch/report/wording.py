"""The report's words: causes, kinds of ends, cards. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpulaunch.core.ledger import AttemptRecord
from gpulaunch.core.model import AttemptState, Gpu
from gpulaunch.digest import words
from gpulaunch.report.fold import Period, cut_off
from gpulaunch.report.idle import Cause

KINDS: tuple[AttemptState | str, ...] = (
    "succeeded",
    "failed",
    "cancelled",
    "interrupted",
    "lost",
    "running",
    "unknown",
)
"""How a bar is drawn; `unknown`: it was running when the run was cut off."""

SHORT: Mapping[Cause, str] = {
    "busy": "jobs",
    "draining": "memory draining",
    "kept": "held",
    "memory": "waiting for memory",
    "nothing_ready": "nothing ready",
    "nothing_left": "nothing left",
    "limit": "beyond --gpus",
    "others": "in others' use",
    "given_back": "given back",
    "aside": "set aside",
    "paused": "paused",
    "stopping": "stopping",
    "away": "run not alive",
    "cluster": "not the run's",
}
LONG: Mapping[Cause, str] = {
    "busy": "at least one job was on the card",
    "draining": "the last job had ended, and its memory was not yet free",
    "kept": "leased, and about to start a job or kept for a job of several cards",
    "memory": "jobs waited for more free memory than the card had",
    "nothing_ready": "the jobs left waited for other jobs, a retry's delay, a token or a service",
    "nothing_left": "no job was waiting for a card any more",
    "limit": "the run had as many cards as --gpus allowed",
    "others": "another launcher's lease, or processes that no launcher knows of",
    "given_back": "a person gave it back (gpulaunch drain)",
    "aside": "it was unfit, or jobs failed on it that succeed elsewhere",
    "paused": "the run started no jobs until somebody said so",
    "stopping": "the run was told to stop",
    "away": "before the card belonged to the run, or between two starts of it",
    "cluster": "the cluster had it for others, or for nobody",
}


def card_name(gpu: Gpu) -> str:
    """`GPU 0`, `n1 GPU 0`; that cards are pretend ones is said once for all of them."""
    return words.card(gpu).replace("simulated ", "", 1) if gpu.simulated else words.card(gpu)


def cards_of(attempt: AttemptRecord, cards: Mapping[str, Gpu]) -> str:
    """`GPU 0, GPU 1`; `no card`, `n1, no card` on another machine; `–` of one that came nowhere."""
    if attempt.queued and not attempt.node:
        return "–"
    named = [card_name(cards[uuid]) for uuid in attempt.gpus if uuid in cards]
    return ", ".join(named or filter(None, [words.visible(attempt.node), "no card"]))


def ended(attempt: AttemptRecord, when: Period) -> str:
    """How an attempt ended, in words."""
    if cut_off(attempt, when):
        return "running when the run was cut off"
    return words.ending(attempt)


def percent(share: float) -> str:
    """`91 %`; what is not quite nothing, or not quite all, is not rounded to it."""
    if 0 < share < 0.005:
        return "< 1 %"
    if 0.995 <= share < 0.99999:
        return "99 %"
    return f"{share * 100:.0f} %"
