"""What was handed to Slurm together, and what is known of it: files of the run directory.

    BATCH.json   the intent, before sbatch is called: the attempts in order, the options
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

from gpulaunch.core.model import AttemptId
from gpulaunch.journal.rundir import RunDir
from gpulaunch.process.client import code
from gpulaunch.process.nodeside import put


@dataclass(slots=True, eq=False)
class Batch:
    """Attempts that go to Slurm as one job or one array, in which each has its place as number.

    `name` (`EPOCH-COUNT`) is unique in the run; `title` is how Slurm shows it; `id` is Slurm's
    number, empty while it is not known. `options` are those of sbatch; `after` are numbers of what
    has to succeed first.
    """

    name: str
    title: str
    attempts: tuple[AttemptId, ...]
    options: tuple[str, ...]
    after: tuple[str, ...] = ()
    id: str = ""

    def task_of(self, place: int) -> str:
        """Slurm's number of the attempt at that place: `12`, or `12_3` of an array."""
        return self.id if len(self.attempts) == 1 else f"{self.id}_{place}"


def write(batch: Batch, run: RunDir) -> None:
    """Lay the intent down, for good; `process/node.py` finds its attempt there. Raises OSError."""
    intent = {
        "title": batch.title,
        "attempts": [code(str(attempt)) for attempt in batch.attempts],
        "options": [code(option) for option in batch.options],
        "after": batch.after,
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
    intent = json.loads(path.read_bytes())
    attempts = tuple(_attempt(_decoded(text)) for text in intent["attempts"])
    options = tuple(map(_decoded, intent["options"]))
    batch = Batch(path.stem, intent["title"], attempts, options, tuple(intent["after"]))
    with suppress(FileNotFoundError):
        batch.id = run.batch_id(batch.name).read_text().strip()
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
