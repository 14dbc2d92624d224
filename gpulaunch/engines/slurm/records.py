"""The run directory as a launcher on a cluster sees it. Nothing here decides anything.

What cannot be read counts as absent: usually a file server's doing, and looked for again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpulaunch.base.files import read_bytes
from gpulaunch.base.files import replace as replace_file
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import node_files, script
from gpulaunch.engines.slurm.attempt import REQUEUED
from gpulaunch.engines.slurm.node_files import NodeStart, Withdrawn
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.journal.ends import EndRecord, cause_of, read_end, record_bytes, record_of


class DiskRecords:
    """The records of one run."""

    def __init__(self, run: SlurmDir) -> None:
        self._run = run
        self._starts, self._ends = str(run.starts), str(run.ends)  # read every second

    def starts(self) -> frozenset[str]:
        """Return the names of the claimed attempts."""
        return _names(self._starts)

    def ends(self) -> frozenset[str]:
        """Return the names of the attempts whose end is recorded."""
        return _names(self._ends)

    def start(self, attempt: AttemptId) -> NodeStart | Withdrawn | None:
        with suppress(OSError):
            return node_files.read_start(self._run.start(attempt))
        return None

    def end(self, attempt: AttemptId) -> EndRecord | None:
        with suppress(OSError):
            return read_end(self._run.end(attempt))
        return None

    def beat(self, attempt: AttemptId) -> float | None:
        return node_files.last_beat(self._run.start(attempt))

    def said(self, id: str) -> str:
        return script.said(self._run, id)

    def probe_was_here(self) -> bool:
        return self._run.seen.exists()

    def held(self) -> frozenset[str]:
        """Return the names of the attempts that an earlier launcher has held."""
        with suppress(OSError, ValueError, TypeError, RecursionError):
            return frozenset(map(str, json.loads(read_bytes(self._run.held))))
        return frozenset()

    def left_word(self, attempt: AttemptId) -> bool:
        """Return True if an earlier launcher told the attempt's start to end."""
        try:
            stop = record_of(record_bytes(self._run.stop(attempt)))
            return cause_of(str(stop["by"])) == REQUEUED
        except (OSError, ValueError, KeyError):
            return False

    # ── What a launcher writes ──────────────────────────────────────────────────────────────────

    def claim(
        self, groups: Mapping[Withdrawn, Sequence[AttemptId]]
    ) -> tuple[frozenset[AttemptId], frozenset[AttemptId]]:
        """Claim attempts; return those that are ours now, and those that a node has.

        The others could not be claimed: the disk is full.
        """
        won: set[AttemptId] = set()
        lost: set[AttemptId] = set()
        for why, attempts in groups.items():
            with suppress(OSError):
                paths = [self._run.start(attempt) for attempt in attempts]
                ours = node_files.withdraw(paths, why.reason, why.by)
                for attempt, mine in zip(attempts, ours, strict=True):
                    (won if mine else lost).add(attempt)
        return frozenset(won), frozenset(lost)

    def write_stop(self, attempt: AttemptId, why: Withdrawn, now: bool) -> bool:
        """Write the stop file; return False if that failed."""
        try:
            node_files.write_stop(self._run.stop(attempt), why.reason, why.by, now)
        except OSError:
            return False
        return True

    def hold(self, names: frozenset[str]) -> bool:
        """List the attempts that are held; return True if a later launcher can rely on it."""
        try:
            replace_file(self._run.held, json.dumps(sorted(names)).encode(), durable=True)
        except OSError:
            return False
        return True


def _names(directory: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError:
        return frozenset()
