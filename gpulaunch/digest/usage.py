"""What a run used of its cards and of the machine: from attempts' intervals, and as measured.

Pure. What was not measured is left out of the words, instead of a zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant
from gpulaunch.core.records import AttemptRecord
from gpulaunch.digest import words
from gpulaunch.metrics.model import AttemptUse, Measured
from gpulaunch.text import clock, energy, listing, several, shell_word, size


class CardUse(Struct, frozen=True):
    """A card's use: `seconds` with an attempt on it, and their share of the run (0 to 1)."""

    uuid: str
    seconds: float
    share: float


def card_uses(ledger: Ledger, since: Instant, until: Instant) -> tuple[CardUse, ...]:
    """Return the use of each card, in the run's order. Jobs that share a card count once."""
    spans = _spans(ledger, ledger.clock(since), ledger.clock(until))
    length = until.mono - since.mono
    uses = []
    for uuid in ledger.gpus:
        seconds = covered(spans.get(uuid, ()))
        uses.append(CardUse(uuid, seconds, min(1.0, seconds / length) if length > 0 else 0.0))
    return tuple(uses)


def card_seconds(ledger: Ledger, until: Instant) -> float:
    """Return the used seconds of all cards, also of those that a later start does not have."""
    return sum(covered(spans) for spans in _spans(ledger, 0.0, ledger.clock(until)).values())


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def _spans(ledger: Ledger, since: float, until: float) -> dict[str, list[tuple[float, float]]]:
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for job in ledger.jobs.values():
        for attempt in job.attempts:
            start = until if attempt.unbegun else max(since, attempt.begins - _ahead_of(attempt))
            end = until if attempt.ends is None else min(until, attempt.ends)
            if end > start:
                for uuid in attempt.gpus:
                    spans[uuid].append((start, end))
    return spans


def _ahead_of(attempt: AttemptRecord) -> float:
    """Return the seconds that it had its cards before it started."""
    if attempt.ahead or attempt.started is None:
        return 0.0
    return max(0.0, attempt.started.mono - attempt.launched.mono)


LEAST_TOLD = 5.0
"""Seconds in which the driver must have named processes before a job was never on its card."""
LEAST_SHARE = 0.75
"""The share of an attempt's time that these seconds must be, at least."""


def touched(attempt: AttemptId, measured: Measured) -> bool | None:
    """Return whether a process of the attempt was ever seen on its cards; None: it is not known.

    False only where a driver that names processes was asked nearly all the time: it has named some
    of this run, or the cards did nothing.
    """
    use = measured.uses.get(attempt)
    if use is None or not use.gpu_seconds:
        return None
    if use.peak_gpu_memory:
        return True
    if attempt in measured.pins:  # a process was seen, somewhere
        return True if measured.pins[attempt][0] == "verified" else None
    if use.peak_gpu_memory is None or use.told < max(LEAST_TOLD, LEAST_SHARE * use.seconds):
        return None
    return False if use.peak_gpu_utilization == 0 or measured.names_processes else None


def untouched(ledger: Ledger, measured: Measured) -> list[str]:
    """Return the jobs that succeeded though their last attempt was never seen on its card."""
    return [
        job.name
        for job in ledger.jobs.values()
        if job.state == "succeeded"
        and job.attempts
        and touched(job.attempts[-1].id, measured) is False
    ]


def never_touched(names: Sequence[str]) -> str:
    """Return a line on such jobs: `2 jobs succeeded and were never seen on their card: a, b`."""
    who, was = several(len(names), "job"), "was" if len(names) == 1 else "were"
    shown = listing(map(words.visible, names))
    return f"{who} succeeded and {was} never seen on a card ({shown}): did they run on the CPU?"


def left_behind(ledger: Ledger) -> list[str]:
    """Return the jobs that succeeded though processes of their last attempt had to be killed."""
    return [
        job.name
        for job in ledger.jobs.values()
        if job.state == "succeeded" and job.attempts and job.attempts[-1].left
    ]


def processes_left(names: Sequence[str]) -> str:
    """Return a line on such jobs: `1 job succeeded and left processes behind ... (a): ...`."""
    who, shown = several(len(names), "job"), listing(map(words.visible, names))
    return (
        f"{who} succeeded and left processes behind, which gpulaunch killed ({shown}):"
        " did work go on in the background?"
    )


def doubtful(ledger: Ledger) -> dict[str, str]:
    """Return the notes on jobs that succeeded, by name: `exited 0, though its log says: ...`."""
    jobs = ledger.jobs
    return {
        name: text
        for name, text in ledger.noted.items()
        if name in jobs and jobs[name].state == "succeeded"
    }


def noted(notes: Mapping[str, str]) -> str:
    """Return a line on such jobs: `2 jobs succeeded, with a note (a: exited 0, ...; b)`."""
    who, (first, *rest) = several(len(notes), "job"), notes
    others = f"; also {listing(map(words.visible, rest))}" if rest else ""
    return f"{who} succeeded, with a note: {words.visible(f'{first} {notes[first]}')}{others}"


def outdated(ledger: Ledger) -> list[str]:
    """Return the jobs that succeeded, and of which the job file says something else by now."""
    return [job.name for job in ledger.jobs.values() if job.changed and not job.vanished]


def stands_for_other(names: Sequence[str], directory: str = "") -> str:
    """Return a line on such jobs: `1 job succeeded under another definition ... (a): ...`."""
    who, them = several(len(names), "job"), "it" if len(names) == 1 else "them"
    shown = listing(map(words.visible, names))
    where = f" {words.visible(shell_word(directory))}" if directory else ""
    return (
        f"{who} succeeded under another definition than the job file has now ({shown}):"
        f" gpulaunch resume --changed{where} runs {them} again"
    )


def energy_of(attempts: Iterable[AttemptRecord], measured: Measured) -> float | None:
    """Return the joules of these attempts, as far as they were measured; None: none was."""
    uses = (measured.uses.get(attempt.id) for attempt in attempts)
    known = [use.energy for use in uses if use is not None and use.energy is not None]
    return sum(known) if known else None


def use_of_one(use: AttemptUse | None) -> str:
    """`GPU memory at most 71.2 GiB, 63 % utilised, 12.1 GiB resident, 0:31 of CPU time, 94 Wh`."""
    if use is None:
        return ""
    parts = []
    # The attempt ended before the sampler saw it on its card: the card's figures are not its own.
    missed = use.peak_gpu_memory == 0
    if use.peak_gpu_memory:
        parts.append(f"GPU memory at most {size(use.peak_gpu_memory)}")
    elif use.peak_card_memory is not None and not missed:
        parts.append(f"memory of its cards, whoever's, at most {size(use.peak_card_memory)}")
    if use.mean_gpu_utilization is not None and not missed:
        parts.append(f"{use.mean_gpu_utilization:.0f} % utilised")
    if use.peak_resident is not None:
        parts.append(f"{size(use.peak_resident)} resident")
    if use.cpu_seconds is not None:
        parts.append(f"{clock(use.cpu_seconds)} of CPU time")
    if use.energy is not None:
        parts.append(energy(use.energy))
    return ", ".join(parts)


def use_of_all(measured: Measured) -> str:
    """Return the whole run's use: peaks with their jobs, and means over the cards' leased time.

    Peaks are of one attempt: the sum of attempts that ran at once is not known.
    """
    uses = list(measured.uses.values())
    parts = []
    memory = max((u for u in uses if u.peak_gpu_memory), key=_gpu_memory, default=None)
    if memory is not None:
        most = f"{size(_gpu_memory(memory))} ({words.visible(memory.attempt.job)})"
        parts.append(f"a job's GPU memory at most {most}")
    busy = [
        (u.mean_gpu_utilization, u.gpu_seconds)
        for u in uses
        if u.mean_gpu_utilization is not None and u.gpu_seconds
    ]
    if busy:
        share = sum(mean * seconds for mean, seconds in busy) / sum(s for _, s in busy)
        parts.append(f"the jobs' cards {share:.0f} % utilised")
    resident = max((u for u in uses if u.peak_resident), key=_resident, default=None)
    if resident is not None:
        most = f"{size(_resident(resident))} ({words.visible(resident.attempt.job)})"
        parts.append(f"resident memory at most {most}")
    cpu = [u.cpu_seconds for u in uses if u.cpu_seconds is not None]
    if cpu:
        parts.append(f"{clock(sum(cpu))} of CPU time")
    if measured.energy is not None:
        parts.append(energy(measured.energy))
    return ", ".join(parts)


def _gpu_memory(use: AttemptUse) -> int:
    return use.peak_gpu_memory or 0


def _resident(use: AttemptUse) -> int:
    return use.peak_resident or 0
