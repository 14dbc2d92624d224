"""Cancels this run's jobs in Slurm's queue whose start would do nothing.

A batch may be in the queue twice (the answer to its first submission was lost), or although
`sbatch` failed, or it was withdrawn while Slurm did not answer. Once another start or a launcher
has claimed an attempt, a job that still waits for it would take cards for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import batches, commands
from gpulaunch.engines.slurm.attempt import MAX_NUMBERS_PER_CALL
from gpulaunch.engines.slurm.batches import Batch
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.journal.rundir import RunDir
from gpulaunch.process.nodeside import NodeStart, Withdrawn, read_start


class Strays:
    """The search for such jobs. `prefix` begins the titles of this run.

    `is_known` tells if the engine follows an attempt under a number of Slurm's.
    """

    def __init__(
        self,
        slurm: commands.Slurm,
        run: RunDir,
        prefix: str,
        is_known: Callable[[AttemptId, str], bool],
    ) -> None:
        self._slurm = slurm
        self._run = run
        self._prefix = prefix
        self._is_known = is_known
        self._titled: dict[str, Batch] = {}

    def look(self, rows: Sequence[QueueRow], started: frozenset[str]) -> None:
        """Cancel the stray jobs among the rows. `started`: the names of claimed attempts."""
        waiting = [row for row in rows if row.waits and row.name.startswith(self._prefix)]
        if any(row.name not in self._titled for row in waiting):
            self._titled = {batch.title: batch for batch in batches.read_all(self._run)}
        found = [number for row in waiting for number in self._of(row, started)]
        for start in range(0, len(found), MAX_NUMBERS_PER_CALL):
            self._slurm.cancel(found[start : start + MAX_NUMBERS_PER_CALL], lambda answer: None)

    def _of(self, row: QueueRow, started: frozenset[str]) -> Iterable[str]:
        batch = self._titled.get(row.name)
        for place, attempt in batch.members if batch else ():
            alone = row.task is None and not row.tasks
            if str(attempt) not in started or not (alone or row.is_about(row.id, place)):
                continue
            number = row.id if alone else f"{row.id}_{place}"
            if not self._is_known(attempt, number) and self._is_anothers(attempt, number, row):
                yield number

    def _is_anothers(self, attempt: AttemptId, number: str, row: QueueRow) -> bool:
        """True if another job, an earlier start of this one, or a launcher claimed the attempt."""
        with suppress(OSError):
            match read_start(self._run.start(attempt)):
                case Withdrawn():
                    return True
                case NodeStart(job=job, restart=restart):
                    return job != number or row.restarts > restart
        return False
