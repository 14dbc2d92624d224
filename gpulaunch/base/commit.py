"""The commit that this gpulaunch is of. Runs no program: a checkout's is read from `.git`."""

from __future__ import annotations

import re
from pathlib import Path

RECORDED = "$Format:%H$"
"""What `git archive` or hatch_build.py wrote in this place; in a checkout nobody has."""
CHECKOUT = ", a checkout"
_SHOWN_DIGITS = 7


def commit() -> str:
    """Return the commit's 40 digits, and what else is known; empty where there is none to know.

    `, with changes`: files differed from the commit when this was built. `, a checkout`: these are
    a checkout's own files, which may differ from it at any time.
    """
    if not RECORDED.startswith("$"):
        return RECORDED
    # No folder above is asked: it may be another project's.
    found = _checked_out(Path(__file__).parents[2] / ".git")
    return found + CHECKOUT if re.fullmatch("[0-9a-f]{40,64}", found) else ""


def with_commit(version: str, of: str) -> str:
    """Return `0.1.0 (1a2b3c4)`; the version alone where the commit it is of is not known."""
    digits, comma, more = of.partition(",")
    return f"{version} ({digits[:_SHOWN_DIGITS]}{comma}{more})" if of else version


def _checked_out(git: Path) -> str:
    """Return what HEAD leads to: a branch, in a file of its own or in a line of packed-refs.

    A worktree's `.git` is a file that names its own folder; that one names the repository's.
    """
    try:
        if git.is_file():
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        kind, colon, branch = (git / "HEAD").read_text().strip().partition(": ")
        if not colon:
            return kind
        shared = git / "commondir"
        repository = git / shared.read_text().strip() if shared.exists() else git
        for place in (git, repository):
            if (place / branch).is_file():
                return (place / branch).read_text().strip()
        packed = (repository / "packed-refs").read_text()
    except (OSError, ValueError):
        return ""
    found = re.search(rf"^(\S+) {re.escape(branch)}$", packed, re.MULTILINE)
    return found[1] if found else ""
