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
from dataclasses import dataclass
from pathlib import Path

from gpulaunch.core.model import AttemptId
from gpulaunch.journal.rundir import RunDir


@dataclass(slots=True, eq=False)
class Batch:
    """Attempts that went to Slurm as one job, or as one array: each one's place is its number there.

    `name` is unique in the run; `title` is how Slurm shows it; `id` is Slurm's number, empty while
    it is not known. `options` are those of sbatch.
    """

    name: str
    title: str
    attempts: tuple[AttemptId, ...]
    options: tuple[str, ...]
    id: str = ""

    def task_of(self, place: int) -> str:
        """Slurm's number of the attempt at that place: `12`, or `12_3` of an array."""
        return self.id if len(self.attempts) == 1 else f"{self.id}_{place}"


def write(batch: Batch, run: RunDir) -> None:
    """Lay the intent down, for good. Raises OSError."""
    intent = {
        "title": batch.title,
        "attempts": [str(attempt) for attempt in batch.attempts],
        "options": list(batch.options),
    }
    _write(run.batch_file(batch.name), json.dumps(intent))


def confirm(batch: Batch, number: str, run: RunDir) -> None:
    """Slurm has it as `number`. Raises OSError."""
    batch.id = number
    _write(run.batch_id(batch.name), number + "\n")


def read_all(run: RunDir) -> list[Batch]:
    """Every batch of the run that can be read, in the order in which they were made."""
    found = []
    for path in sorted(run.batches.glob("*.json"), key=lambda path: (len(path.stem), path.stem)):
        try:
            found.append(_read(path, run))
        except (OSError, ValueError, KeyError):
            continue  # it was never whole, and so never handed over
    return found


def _read(path: Path, run: RunDir) -> Batch:
    intent = json.loads(path.read_bytes())
    attempts = tuple(_attempt(text) for text in intent["attempts"])
    batch = Batch(path.stem, intent["title"], attempts, tuple(intent["options"]))
    try:
        batch.id = run.batch_id(batch.name).read_text().strip()
    except FileNotFoundError:
        pass
    return batch


def _attempt(text: str) -> AttemptId:
    job, _, number = text.rpartition(".")
    return AttemptId(job, int(number))


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def names(attempts: Sequence[AttemptId]) -> str:
    """What people are to read of a batch: the first job, and how many more."""
    first = attempts[0].job
    return first if len(attempts) == 1 else f"{first}+{len(attempts) - 1}"
