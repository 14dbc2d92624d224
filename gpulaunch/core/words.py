"""Durations, amounts of memory and signals as people read them. Pure text, no state."""

from __future__ import annotations

import re
from collections.abc import Iterable

GIB = 1 << 30
_ESCAPED = re.compile(r"\[([*?[])\]")

# Linux's numbers, the same on every architecture that has CUDA; `signal` itself would not be pure.
_SIGNALS = {
    1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL",
    10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT",
    17: "CHLD", 18: "CONT", 19: "STOP", 20: "TSTP", 21: "TTIN", 22: "TTOU", 23: "URG",
    24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH", 29: "IO", 30: "PWR", 31: "SYS",
}  # fmt: skip


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11; `signal 40` where there is no name."""
    if number in _SIGNALS:
        return f"SIG{_SIGNALS[number]}"
    return f"signal {number}"


def duration(seconds: float) -> str:
    """`2 h`, `1 h 30 min`, `90 s`, `0.5 s`: as it would be typed into a job file."""
    if seconds < 120 or seconds != int(seconds):
        return f"{seconds:.3g} s" if seconds < 120 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if rest:
        return f"{int(seconds)} s"
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes)
    return " ".join(parts)


def clock(seconds: float) -> str:
    """Elapsed time: `0:12`, `1:02:03`."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{second:02}"
    return f"{minutes}:{second:02}"


def memory(amount: int) -> str:
    """Bytes as `20 GiB`, `1.5 GiB`, `512 MiB`."""
    if amount >= GIB:
        return f"{amount / GIB:.3g} GiB" if amount < 1000 * GIB else f"{amount / GIB:.0f} GiB"
    return f"{amount / (1 << 20):.3g} MiB"


def cards(count: int) -> str:
    return "a card" if count == 1 else f"{count} cards"


def ranges(numbers: Iterable[int]) -> str:
    """`0, 2-7`: numbers as people write many of them."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(
        f"{first}-{last}" if last > first + 1 else ", ".join(map(str, sorted({first, last})))
        for first, last in runs
    )


def unescaped(pattern: str) -> str:
    """Return a glob pattern as people read it: what `glob.escape` did is undone."""
    return _ESCAPED.sub(r"\1", pattern)
