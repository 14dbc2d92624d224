"""Signals, cards and ranges of numbers as people read them. Pure text, no state."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
