"""Groups a run's jobs that failed alike or wait for the same. Pure.

However many jobs there are, the groups are few: a person reads each sentence once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile

from msgspec import Struct

from gpulaunch.core.breaker import MIN_BREAKER, without_own
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Exited, Signaled, Status
from gpulaunch.core.reasons import JobReason, NotBefore, WaitReason
from gpulaunch.core.records import AttemptRecord, JobRecord
from gpulaunch.diagnose.failure.classes import title_of
from gpulaunch.digest import words
from gpulaunch.wording import job_reason

BEGINNING = 60
"""Characters of an evidence line that show it is in a sentence already, perhaps shortened."""
_NAME = re.compile(r"[^\s,;:()]+")
_NUMBER = re.compile(r"\d+(?::\d\d)*")


class Alike(Struct, frozen=True):
    """Jobs with one sentence in common, `text`; of failures also the line that shows it."""

    text: str
    names: tuple[str, ...]
    evidence: str = ""


def evidence_of(job: JobRecord) -> str:
    """Return the line that shows why the job failed; empty if unknown, or if it did not fail."""
    last = _last(job)
    return last.evidence if last is not None and job.state == "failed" else ""


def shown(said: str, attempt: AttemptRecord) -> str:
    """Return how an attempt ended, `said` in words, with the line that shows it, but only once."""
    if not attempt.evidence or attempt.evidence[:BEGINNING] in said:
        return said
    return f"{said}: {attempt.evidence}"


def how(job: JobRecord) -> str:
    """Return how a failed job ended, in words, without the line that shows it."""
    last = _last(job)
    if last is None:
        return job_reason(job.reason) or "never started"
    plain = job_reason(job.reason) or words.ending(last)
    if last.evidence:
        start = plain.find(f": {last.evidence[:BEGINNING]}")
        plain = plain[:start] if start > 0 else plain
    title = title_of(last.failure or "")
    return f"{title} ({plain})" if title and title not in plain else plain


def failures(jobs: Iterable[JobRecord]) -> list[Alike]:
    """Return failed jobs grouped by failure class, status and evidence, the most frequent first."""
    members: dict[tuple[object, ...], list[JobRecord]] = {}
    for job in jobs:
        last, text, evidence = _last(job), how(job), evidence_of(job)
        kind = (last.failure, _status(last)) if last else None
        own = (job.name, *job.definition.params.values())
        alike = (kind, _without(text, own), _without(evidence, own))
        members.setdefault(alike, []).append(job)
    return _sorted(
        Alike(how(one[0]), tuple(job.name for job in one), evidence_of(one[0]))
        for one in members.values()
    )


def reasons(
    jobs: Iterable[JobRecord],
    reason: Callable[[JobRecord], JobReason | WaitReason | None],
    ledger: Ledger,
) -> list[Alike]:
    """Return jobs grouped by their reasons, the most frequent first.

    Reasons that differ only in names of jobs and in numbers are one group (`needs fold-*, which
    is running`).
    """
    members: dict[object, list[tuple[str, str]]] = {}
    for job in jobs:
        why = reason(job)
        members.setdefault(_shape(why, ledger.jobs), []).append((job.name, job_reason(why)))
    return _sorted(
        Alike(_folded([text for _, text in one]), tuple(name for name, _ in one))
        for one in members.values()
    )


def _sorted(groups: Iterable[Alike]) -> list[Alike]:
    return sorted(groups, key=lambda one: -len(one.names))


def _without(text: str, own: Sequence[str]) -> str:
    """Return the text without the job's own name, values and numbers; short ones as whole words."""
    text = without_own(text, own)
    for value in own:
        if 0 < len(value) < MIN_BREAKER:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "*", text)
    return text


def _last(job: JobRecord) -> AttemptRecord | None:
    return job.attempts[-1] if job.attempts else None


def _status(attempt: AttemptRecord) -> Status | None:
    """Return the process's status if that is the attempt's outcome; else None."""
    return attempt.outcome if isinstance(attempt.outcome, (Exited, Signaled)) else None


def _shape(value: object, names: Mapping[str, object]) -> object:
    """Return the value without names of jobs and numbers, to be compared."""
    if isinstance(value, str):
        return _NAME.sub(lambda word: "*" if word[0] in names else _NUMBER.sub("0", word[0]), value)
    if isinstance(value, tuple):
        return tuple(dict.fromkeys(_shape(each, names) for each in value))
    if isinstance(value, NotBefore):
        return (NotBefore, value.utc)  # another moment is another reason
    if isinstance(value, Struct):
        own = (getattr(value, name) for name in value.__struct_fields__)
        return (type(value), *(_shape(each, names) for each in own))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if number else value


def _folded(texts: Sequence[str]) -> str:
    """Return one sentence for several of one shape, with patterns where their words differ."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) == 1:
        return distinct[0]
    columns = zip(*(_NAME.findall(text) for text in distinct), strict=False)
    folded = iter([_alike(column) for column in columns])
    return _NAME.sub(lambda found: next(folded, found[0]), distinct[0])


def _alike(texts: Sequence[str]) -> str:
    """Return a pattern for words: `fold-*` of fold-a and fold-b; numbers give a range."""
    if all(text.isdecimal() for text in texts):
        least, most = min(map(int, texts)), max(map(int, texts))
        return f"{least}" if least == most else f"{least} to {most}"
    return texts[0] if len(set(texts)) == 1 else pattern(texts)


def pattern(texts: Sequence[str]) -> str:
    """Return what texts have in common, `fold-*`; no number is cut in two: of 07 and 08, `*`."""
    start = _beginning(texts).rstrip("0123456789")
    ends = [text[len(start) :][::-1] for text in texts]
    return f"{start}*{_beginning(ends)[::-1].lstrip('0123456789')}"


def _beginning(texts: Sequence[str]) -> str:
    """Return what all the texts begin with."""
    pairs = zip(min(texts), max(texts), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
