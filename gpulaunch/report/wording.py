"""The report's words: causes, kinds of ends, cards. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gpulaunch.core.model import AttemptState, Gpu
from gpulaunch.core.records import AttemptRecord
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

CAUSE_WORDS: Mapping[Cause, tuple[str, str]] = {
    "busy": ("jobs", "at least one job was on the card"),
    "draining": ("memory draining", "the last job had ended, and its memory was not yet free"),
    "kept": ("held", "leased, and about to start a job or kept for a job of several cards"),
    "memory": ("waiting for memory", "jobs waited for more free memory than the card had"),
    "nothing_ready": (
        "nothing ready",
        "the jobs left waited for other jobs, a retry's delay, their time, a token or a service",
    ),
    "nothing_left": ("nothing left", "no job was waiting for a card any more"),
    "limit": ("beyond --gpus", "the run had as many cards as --gpus allowed"),
    "others": (
        "in others' use",
        "another launcher's lease, or processes that no launcher knows of",
    ),
    "given_back": ("given back", "a person gave it back (gpulaunch drain)"),
    "aside": ("set aside", "it was unfit, or jobs failed on it that succeed elsewhere"),
    "paused": ("paused", "the run started no jobs until somebody said so"),
    "hours": ("outside its hours", "the run starts jobs within certain hours alone (--between)"),
    "stopping": ("stopping", "the run was told to stop"),
    "away": ("run not alive", "before the card belonged to the run, or between two starts of it"),
    "cluster": ("not the run's", "the cluster had it for others, or for nobody"),
}
"""Where a card's time went: in a column's head, and in a line beneath the table."""


@cache
def card_name(gpu: Gpu) -> str:
    """`GPU 0`, `n1 GPU 0`; that cards are pretend ones is said once for all of them."""
    return words.card(gpu).replace("simulated ", "", 1) if gpu.simulated else words.card(gpu)


def cards_of(attempt: AttemptRecord, cards: Mapping[str, Gpu]) -> str:
    """`GPU 0, GPU 1`; `no card`, `n1, no card` on another machine; `–` of one that came nowhere."""
    if attempt.unbegun or (attempt.queued and not attempt.node):
        return "–"
    named = [card_name(cards[uuid]) for uuid in attempt.gpus if uuid in cards]
    return ", ".join(named or filter(None, [words.visible(attempt.node), "no card"]))


def ended(attempt: AttemptRecord, when: Period) -> str:
    """Return how an attempt ended, and at which step of its ladder, in words."""
    if cut_off(attempt, when):
        return "running when the run was cut off"
    return ", ".join(filter(None, [words.ending(attempt), words.step(attempt.step)]))


def percent(share: float) -> str:
    """`91 %`; what is not quite nothing, or not quite all, is not rounded to it."""
    if 0 < share < 0.005:
        return "< 1 %"
    if 0.995 <= share < 0.99999:
        return "99 %"
    return f"{share * 100:.0f} %"
