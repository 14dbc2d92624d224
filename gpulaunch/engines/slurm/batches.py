"""Batches, the attempts that go to Slurm together, and their files in the run directory.

    BATCH.json   the intent, before sbatch is called: the attempts by place, the options
    BATCH.id     Slurm's number of the batch, once that is known

A launcher that was killed in between finds the intent without the number: Slurm is asked for a job
of that name before the batch is handed over again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.agent.wire import coded, decoded
from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import read_bytes
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.text import ranges
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm.limits import Lane, lane_of
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.journal.ends import record_of

Member: TypeAlias = tuple[int, AttemptId]
"""A place in a batch and its attempt. The place is kept only in a batch with `terms.each`."""


class Terms(Struct, frozen=True):
    """What attempts have in common that go to Slurm in one batch.

    `options` are sbatch's; `after` are Slurm's numbers of what has to succeed first. With `each`
    that is one array, and each attempt needs only the task at its own place. `share` is a token and
    how many of its holders may run at a time. `environ` names the environment that was lent to
    them, which is in this launcher's memory alone: 0 is the launcher's own.
    """

    options: tuple[str, ...]
    after: tuple[str, ...] = ()
    share: tuple[str, int] | None = None
    each: bool = False
    environ: int = 0

    @property
    def lane(self) -> Lane:
        """The options by which the site's limits go."""
        return lane_of(self.options)

    def needs_at(self, place: int) -> tuple[str, ...]:
        """Return Slurm's numbers of what the attempt at that place needs."""
        return (f"{self.after[0]}_{place}",) if self.each else self.after

    def behind(self, numbers: tuple[str, ...]) -> tuple[Terms, int]:
        """Return the terms of an attempt that needs these, and its place in an array (or 0)."""
        array, _, task = numbers[0].partition("_") if len(numbers) == 1 else ("", "", "")
        if task:
            return replace(self, after=(array,), each=True), int(task)
        return replace(self, after=numbers), 0


class BatchReady(Struct, frozen=True):
    """The batch is to be submitted.

    `tries`: how many submissions ended in doubt before Slurm turned out not to have it. `tried`:
    Slurm may still get it from one of those. `unneeded`: Slurm refused its dependencies.
    """

    tries: int = 0
    tried: bool = False
    unneeded: bool = False


class BatchHanded(Struct, frozen=True):
    """The batch was given to `sbatch`, which has not answered. `before` is its state until then."""

    before: BatchReady


class BatchDoubted(Struct, frozen=True):
    """The batch was submitted without a clear answer; Slurm's queue will show if Slurm has it.

    `said` is what `sbatch` printed, empty for an earlier launcher's. `failed`: it exited with a
    failure, in words that are not Slurm's own.
    """

    before: BatchReady
    said: str = ""
    failed: bool = False


State: TypeAlias = BatchReady | BatchHanded | BatchDoubted
"""The state of a batch on its way. One at a time is submitted, and none while one is in doubt."""


class Batch(Struct, eq=False):
    """Attempts that go to Slurm as one job or one array, where each attempt's place is its index.

    Places are 0, 1, ...; with `terms.each` there may be gaps. `name` (`EPOCH-COUNT`) is unique in
    the run; `title` is its job name in Slurm; `id` is Slurm's number, empty while unknown; `state`
    tells how far the batch has come until then.
    """

    name: str
    title: str
    attempts: tuple[AttemptId, ...]
    terms: Terms
    places: tuple[int, ...]
    id: str = ""
    state: State = BatchReady()

    @property
    def members(self) -> list[Member]:
        """Each attempt with its place."""
        return list(zip(self.places, self.attempts, strict=True))

    def options(self, depends: Sequence[str]) -> tuple[str, ...]:
        """Return the options of sbatch, with those of what the batch depends on."""
        array: tuple[str, ...] = ()
        if len(self.attempts) > 1:
            at_once = f"%{self.terms.share[1]}" if self.terms.share else ""
            array = (f"--array={ranges(self.places)}{at_once}",)
        return (*self.terms.options, *array, *depends, f"--job-name={self.title}")

    def task_of(self, place: int) -> str:
        """Return Slurm's number of the attempt at that place: `12`, or `12_3` of an array."""
        return self.id if len(self.attempts) == 1 else f"{self.id}_{place}"


def layers(members: Iterable[Member]) -> list[list[Member]]:
    """Return the members in lists sorted by place, with no place twice in one list."""
    found: list[dict[int, AttemptId]] = []
    for place, attempt in members:
        layer = next((layer for layer in found if place not in layer), None)
        if layer is None:
            found.append(layer := {})
        layer[place] = attempt
    return [sorted(layer.items()) for layer in found]


def write(batch: Batch, run: SlurmDir) -> None:
    """Write the intent durably, where `agent/node` finds its attempt. Raises OSError."""
    listed = [""] * (batch.places[-1] + 1)
    for place, attempt in batch.members:
        listed[place] = coded(str(attempt))
    intent = {
        "title": batch.title,
        "attempts": listed,
        "options": [coded(option) for option in batch.terms.options],
        "after": batch.terms.after,
        "share": batch.terms.share,
        "each": batch.terms.each,
    }
    replace_file(run.batch_list(batch.name), json.dumps(intent).encode(), durable=True)


def confirm(batch: Batch, number: str, run: SlurmDir) -> None:
    """Record durably that Slurm has the batch as `number`. Raises OSError."""
    batch.id = number
    replace_file(run.batch_id(batch.name), number.encode(), durable=True)


def read_all(run: SlurmDir) -> list[Batch]:
    """Return every batch that was written, in the order in which they were made.

    Raises UsageError where a file is damaged, OSError where it cannot be read.
    """
    found = [_read(path, run) for path in run.batch_lists.glob("*.json")]
    return sorted(found, key=lambda batch: [int(part) for part in batch.name.split("-")])


def _read(path: Path, run: SlurmDir) -> Batch:
    try:
        return _batch(record_of(read_bytes(path)), path.stem, run)
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None


def _batch(intent: Mapping[str, Any], name: str, run: SlurmDir) -> Batch:
    listed = {place: text for place, text in enumerate(intent["attempts"]) if text}
    attempts = tuple(_attempt(decoded(text)) for text in listed.values())
    share = tuple(intent["share"]) if intent["share"] else None
    options, after = tuple(map(decoded, intent["options"])), tuple(intent["after"])
    terms = Terms(options, after, share, intent["each"])
    batch = Batch(name, intent["title"], attempts, terms, tuple(listed))
    with suppress(FileNotFoundError):
        batch.id = read_bytes(run.batch_id(batch.name)).decode().strip()
    return batch


def _attempt(text: str) -> AttemptId:
    job, _, number = text.rpartition(".")
    return AttemptId(job, int(number))


def names(attempts: Sequence[AttemptId]) -> str:
    """Return a batch's name for people: its first job, and how many more."""
    first = attempts[0].job
    return first if len(attempts) == 1 else f"{first}+{len(attempts) - 1}"
