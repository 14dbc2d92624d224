"""What was handed to Slurm together, and what is known of it: files of the run directory.

    BATCH.json   the intent, before sbatch is called: the attempts by place, the options
    BATCH.id     Slurm's number of it, once that is known

A launcher that was killed in between finds the intent without the number: Slurm is asked for a job
of that name before the batch is handed over again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm.limits import Lane, lane_of
from gpulaunch.files import read_bytes
from gpulaunch.journal.rundir import RunDir
from gpulaunch.process.client import code
from gpulaunch.process.nodeside import put


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms attempts are handed over; those that have them in common go together.

    `options` are sbatch's; `after` are Slurm's numbers of what has to succeed first. With `each`
    that is one array, and each attempt needs but the task whose place is its own. `share` is the
    token of which they may not take more together than its number of tasks at a time does.
    """

    options: tuple[str, ...]
    after: tuple[str, ...] = ()
    share: tuple[str, int] | None = None
    each: bool = False

    @property
    def lane(self) -> Lane:
        """Of which limits of the site they may be."""
        return lane_of(self.options)

    def needs_at(self, place: int) -> tuple[str, ...]:
        """Slurm's numbers of what the attempt at that place needs."""
        return (f"{self.after[0]}_{place}",) if self.each else self.after


@dataclass(frozen=True, slots=True)
class BatchReady:
    """It is to be handed over.

    `tries`: how often it was, without a clear answer, and Slurm turned out not to have it. With
    `tried` Slurm may yet have some of it. With `unneeded` Slurm refused what it was to wait for.
    """

    tries: int = 0
    tried: bool = False
    unneeded: bool = False


@dataclass(frozen=True, slots=True)
class BatchLeft:
    """An earlier launcher laid it down; whether Slurm has it nobody knows."""


@dataclass(frozen=True, slots=True)
class BatchHanded:
    """`sbatch` has not answered yet. `before` is what it was until then."""

    before: BatchReady


@dataclass(frozen=True, slots=True)
class BatchDoubted:
    """It was handed over; whether Slurm has it, its queue is to tell.

    `said` is what `sbatch` came to, empty where that was an earlier launcher's; with `failed` it is
    a failure, in words that are not Slurm's own.
    """

    before: BatchReady
    said: str = ""
    failed: bool = False


State: TypeAlias = BatchReady | BatchLeft | BatchHanded | BatchDoubted
"""Of a batch on its way. At most one of them is handed over, or in doubt, at a time."""


@dataclass(slots=True, eq=False)
class Batch:
    """Attempts that go to Slurm as one job or one array, in which each has its place as number.

    Places are 0, 1, ..., but for `terms.each`: there may be gaps then.
    `name` (`EPOCH-COUNT`) is unique in the run; `title` is how Slurm shows it; `id` is Slurm's
    number, empty while it is not known; `state` tells how far it has come until then.
    """

    name: str
    title: str
    attempts: tuple[AttemptId, ...]
    terms: Terms
    places: tuple[int, ...]
    id: str = ""
    state: State = BatchReady()

    @property
    def members(self) -> list[tuple[int, AttemptId]]:
        """Each attempt with its place."""
        return list(zip(self.places, self.attempts, strict=True))

    def task_of(self, place: int) -> str:
        """Slurm's number of the attempt at that place: `12`, or `12_3` of an array."""
        return self.id if len(self.attempts) == 1 else f"{self.id}_{place}"


def write(batch: Batch, run: RunDir) -> None:
    """Lay the intent down, for good; `process/node.py` finds its attempt there. Raises OSError."""
    listed = [""] * (batch.places[-1] + 1)
    for place, attempt in batch.members:
        listed[place] = code(str(attempt))
    intent = {
        "title": batch.title,
        "attempts": listed,
        "options": [code(option) for option in batch.terms.options],
        "after": batch.terms.after,
        "share": batch.terms.share,
        "each": batch.terms.each,
    }
    put(run.batch_list(batch.name), json.dumps(intent).encode(), durable=True)


def confirm(batch: Batch, number: str, run: RunDir) -> None:
    """Slurm has it as `number`. Raises OSError."""
    batch.id = number
    put(run.batch_id(batch.name), number.encode(), durable=True)


def forget(batch: Batch, run: RunDir) -> None:
    """Slurm never had it, nor will."""
    with suppress(OSError):
        os.unlink(run.batch_list(batch.name))


def read_all(run: RunDir) -> list[Batch]:
    """Every batch that was laid down, in the order in which they were made."""
    found = [_read(path, run) for path in run.batch_lists.glob("*.json")]
    return sorted(found, key=lambda batch: [int(part) for part in batch.name.split("-")])


def _read(path: Path, run: RunDir) -> Batch:
    intent = json.loads(read_bytes(path))
    listed = {place: text for place, text in enumerate(intent["attempts"]) if text}
    attempts = tuple(_attempt(_decoded(text)) for text in listed.values())
    share = tuple(intent["share"]) if intent["share"] else None
    options, after = tuple(map(_decoded, intent["options"])), tuple(intent["after"])
    terms = Terms(options, after, share, intent["each"])
    batch = Batch(path.stem, intent["title"], attempts, terms, tuple(listed))
    with suppress(FileNotFoundError):
        batch.id = read_bytes(run.batch_id(batch.name)).decode().strip()
    return batch


def _attempt(text: str) -> AttemptId:
    job, _, number = text.rpartition(".")
    return AttemptId(job, int(number))


def _decoded(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))


def names(attempts: Sequence[AttemptId]) -> str:
    """What people are to read of a batch: the first job, and how many more."""
    first = attempts[0].job
    return first if len(attempts) == 1 else f"{first}+{len(attempts) - 1}"
