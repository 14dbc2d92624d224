"""Timers by name, as tables of histories have them: `job/fold-1`, `gpu/GPU-0`, `gather`."""

from __future__ import annotations

from gpulaunch.core.events import Timer, TimerKind

NAMES: dict[TimerKind, str] = {
    "retry": "job",
    "hold_out": "elsewhere",
    "card": "gpu",
    "worker": "worker",
    "due": "due",
    "gang": "gather",
    "deadlock": "stuck",
    "verdict": "verdict",
}
KINDS = {name: kind for kind, name in NAMES.items()}


def timer_name(timer: Timer) -> str:
    """The timer's name; also what decides which of those that are due at once fires first."""
    return f"{NAMES[timer.kind]}/{timer.of}".rstrip("/")


def timer_of(name: str) -> Timer:
    """The timer of that name."""
    kind, _, of = name.partition("/")
    return Timer(KINDS[kind], of)
