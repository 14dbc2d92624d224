"""Finds `{path}` in a command where `{{path}}` is what the job has: one brace is text to gpulaunch.

Of a script, what stands in no quotes is looked at, as code in a string has braces of its own
(f"{path}", awk '{print}'); of a list, the elements that are one word. `${path}` is the shell's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from gpulaunch.core.model import Job
from gpulaunch.jobfile.placeholders import OF_PATHS, START
from gpulaunch.jobfile.shell import outline

SINGLE = re.compile(r"(?<![{$\\])\{([^\W\d][\w-]*)\}(?![}<>])")
_OTHERS = re.compile(r"\b(?:xargs|parallel)\b")
"""Programs in whose commands a person may call an item as they like: xargs -I {path}."""
_NO_PATHS = frozenset({"csv", "fasta", "cards"})
_WORD = re.compile(r"[\w./=:,+@%{}-]+")


def names_of(job: Job, foreach: str | None) -> frozenset[str]:
    """Return the names that a job's placeholders may have.

    `foreach`: which kind of items it has, empty for paths and None for none.
    """
    names = {*START, "job", *job.params, *(job.ladder.names if job.ladder else ())}
    if job.batch is not None:
        return frozenset({*names, "index", "batch_dir"})
    if foreach is not None:
        names |= {"item", "index"}
        names |= {"path"} if foreach == "fasta" else set()
        names |= set() if foreach in _NO_PATHS else {*OF_PATHS}
    return frozenset(names)


def single_in(typed: str, kind: str, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the number among SINGLE's matches in a text, and the name, of each that is meant so.

    `typed`: the text as it stands in the file; `kind`: the shell that runs it, empty for an element
    of a list. `names` are those of the job's placeholders.
    """
    found = list(SINGLE.finditer(typed))
    if not any(match[1] in names for match in found):
        return
    if kind:
        code = "" if _OTHERS.search(typed) else outline(typed, kind)
    else:
        code = typed if _WORD.fullmatch(typed) else ""
    for number, match in enumerate(found):
        if match[1] in names and code[match.start() : match.end()] == match[0]:
            yield number, match[1]
