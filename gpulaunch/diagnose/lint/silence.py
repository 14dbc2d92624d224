"""`# gpulaunch: ok` and `# gpulaunch: ok RULE`: lines whose findings a person has looked at.

At the end of the line, of the last line of what is found, or alone on the line above.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpulaunch.diagnose.lint.finding import RULES, Placed

_MARK = re.compile(r"#\s*gpulaunch:\s*ok\b[ \t]*(.*)")
_RULE = re.compile(r"[a-z]+-[a-z]+|\b(?:spread|daemon)\b")


def silenced(line: str, rule: str) -> bool:
    """Whether the line's own comment speaks of this rule.

    A name that is no rule silences nothing: it was meant for one, and misspelt.
    """
    match = _MARK.search(line) if "gpulaunch" in line else None
    if match is None:
        return False
    named = _RULE.findall(match.group(1))
    return not named or rule in [name for name in named if name in RULES]


def heard(placed: Iterable[Placed], lines: Sequence[str]) -> list[Placed]:
    """Those that no comment silences."""
    return [one for one in placed if not any(_speak(one, lines))]


def _speak(one: Placed, lines: Sequence[str]) -> Iterable[bool]:
    rule = one.suspect.rule
    for number in {one.line, one.last}:
        if number < len(lines):
            yield silenced(lines[number], rule)
    above = lines[one.line - 1] if 0 < one.line <= len(lines) else ""
    yield above.lstrip().startswith("#") and silenced(above, rule)
