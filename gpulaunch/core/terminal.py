r"""What a terminal shows of a line in the end: without escapes and overwritten states. Pure.

"50%|##  |\r100%|####|"  ->  "100%|####|"
"""

from __future__ import annotations

import re

# Each alternative stops at the next ESC, so that unfinished sequences cost linear time.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC (titles, links), DCS and their kin
    r"|\x1b[ -/]*[0-Z\\^-~]"  # two-character sequences
    r"|\x9b[0-?]*[ -/]*[@-~]"
)


def shown(line: str) -> str:
    """Return the line's last state; blanks and other control characters stay."""
    plain = _ESCAPES.sub("", line)
    if "\r" in plain:
        plain = next((state for state in reversed(plain.split("\r")) if state.strip()), "")
    return _backspaced(plain)


def _backspaced(text: str) -> str:
    if "\b" not in text:
        return text
    out: list[str] = []
    for char in text:
        if char != "\b":
            out.append(char)
        elif out:
            out.pop()
    return "".join(out)
