"""The paths by which the launcher and a cluster's nodes talk; see `engines/slurm/node_files.py`.

slurm/agent-0.1.0.zip                 `agent/node`, of the gpulaunch that submits
slurm/agent-0.1.0-x86_64              the compiled keepers, for nodes of this architecture
slurm/batch.sh                        what Slurm runs: it starts `agent/node`
slurm/batches/1-2.json, 1-2.id        a batch's attempts by place; Slurm's number of it
slurm/tickets/JOB.1                   what to run
slurm/starts/JOB.1  slurm/stops/JOB.1 who has claimed it; that it is to end
slurm/said/12_3     slurm/seen        what Slurm's script printed; a node has been here
slurm/held                            what is held in Slurm's queue since the run was paused
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpulaunch import __version__
from gpulaunch.core.model import AttemptId
from gpulaunch.journal.rundir import Below, RunDir

TITLES = "gl:"
"""With this the name of every job of ours in Slurm begins; the run's id follows."""


PROGRAM = f"agent-{__version__}"
"""How the nodes' programs are called. What is in Slurm's queue when another version goes on with
the run still starts as its own: the tickets of one version are not for the programs of another."""


class SlurmDir(RunDir, frozen=True):
    """The paths of a run on a cluster."""

    slurm = Below("slurm")
    node_program = Below("slurm", f"{PROGRAM}.zip")
    batch_script = Below("slurm", "batch.sh")
    batch_lists = Below("slurm", "batches")
    tickets = Below("slurm", "tickets")
    starts = Below("slurm", "starts")
    stops = Below("slurm", "stops")
    said = Below("slurm", "said")
    seen = Below("slurm", "seen")
    held = Below("slurm", "held")

    def keepers(self, machine: str = os.uname().machine) -> Path:
        """Return the path of the compiled keepers for nodes of that architecture."""
        return self.slurm / f"{PROGRAM}-{machine}"

    def batch_list(self, batch: str) -> Path:
        return self.batch_lists / f"{batch}.json"

    def batch_id(self, batch: str) -> Path:
        return self.batch_lists / f"{batch}.id"

    def ticket(self, attempt: AttemptId) -> Path:
        return self.tickets / self.end(attempt).name

    def start(self, attempt: AttemptId) -> Path:
        return self.starts / self.end(attempt).name

    def stop(self, attempt: AttemptId) -> Path:
        return self.stops / self.end(attempt).name


def forget(path: Path) -> None:
    """Remove a file that nobody needs any more, if it can be removed."""
    with suppress(OSError):
        os.unlink(path)
