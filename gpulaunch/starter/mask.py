"""How many cards a `CUDA_VISIBLE_DEVICES=...` of a script means."""

from __future__ import annotations

import re

MASK = "CUDA_VISIBLE_DEVICES"
_ENTRY = re.compile(r"\d+|(?:GPU|MIG)-[\w/-]+|.*[$`].*", re.DOTALL)


def cards(mask: str) -> tuple[int, str]:
    """Count a mask's cards, and say what is odd about it ("" for nothing).

    As CUDA reads it: empty is none, an invalid entry ends the list, a card named twice gives none.
    """
    text = mask.strip("\"'")
    seen: list[str] = []
    for entry in text.split(",") if text else []:
        entry = entry.strip()
        if not _ENTRY.fullmatch(entry):
            if entry == "-1":
                break
            if digits := re.match(r"\d+", entry):
                seen.append(digits.group())
            return len(seen), f"CUDA stops reading this mask at {entry!r}"
        if entry in seen and "$" not in entry:
            return 0, f"names card {entry} twice: CUDA then shows none"
        seen.append(entry)
    return len(seen), ""
