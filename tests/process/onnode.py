"""A node's program as Slurm would start it, without Slurm: the variables set by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpulaunch.core.model import AttemptId, Outcome
from gpulaunch.engines import programs
from gpulaunch.engines.command import Command, NodeSlots
from gpulaunch.engines.programs import FOLDER, archived
from gpulaunch.engines.slurm import batches, script
from gpulaunch.engines.slurm import script as launch_files
from gpulaunch.engines.slurm.batches import Batch, Terms
from gpulaunch.engines.slurm.node_files import NodeStart, read_start, write_ticket
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.journal.ends import EndRecord, read_end
from tests.helpers import goes_along

PATIENCE = 60.0
BATCH = "b1"


class Node:
    """A run directory on a "shared file system", and a node that runs what is in its list."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.run = SlurmDir(folder)
        self.python = python
        self.attempts: list[AttemptId] = []
        run = self.run
        for each in (run.logs, run.ends, run.batch_lists, run.tickets, run.starts, run.stops):
            each.mkdir(parents=True, exist_ok=True)
        run.node_program.write_bytes(archived())
        shutil.copy(programs.PROGRAM, run.keepers())

    def ticket(self, *argv: str, job: str = "job", gpus: int = 0, **limits: Any) -> AttemptId:
        """An attempt that is to be run; the next index of the batch."""
        slots, after = limits.pop("slots", NodeSlots.fresh(gpus)), limits.pop("after", ())
        attempt = AttemptId(job, 1)
        log, end = str(self.run.log(attempt)), str(self.run.end(attempt))
        command = Command(str(attempt), argv, log, end, **limits)
        write_ticket(self.run.ticket(attempt), command, slots, after)
        self.attempts.append(attempt)
        self.list()
        return attempt

    def list(self) -> None:
        terms, places = Terms(()), tuple(range(len(self.attempts)))
        batches.write(Batch(BATCH, "test", tuple(self.attempts), terms, places), self.run)

    def start(
        self,
        index: int = 0,
        mask: str | None = None,
        environ: Mapping[str, str | None] | None = None,
        patience: float = PATIENCE,
    ) -> subprocess.Popen[bytes]:
        """The shim on the attempt with that index, as Slurm job 12_INDEX on n1."""
        own: dict[str, str | None] = {
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": str(13 + index),
            "SLURM_ARRAY_JOB_ID": "12",
            "SLURM_ARRAY_TASK_ID": str(index),
            "SLURMD_NODENAME": "n1",
            "SLURM_CPUS_ON_NODE": "6",
            "CUDA_VISIBLE_DEVICES": mask,
            "SLURM_JOB_GPUS": mask,
            **(environ or {}),
        }
        program = [self.python, "-I", "-S", str(self.run.node_program), "node"]
        return subprocess.Popen(
            [*program, str(self.run.path), BATCH, str(patience)],
            env={name: value for name, value in own.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=goes_along(),
        )

    def batch_command(self) -> list[str]:
        """The batch script and its argument, as a launcher hands them to Slurm."""
        launch_files.lay_out_launch_files(self.run)
        script.lay_out(self.run)
        return [str(self.run.batch_script), BATCH]

    def change_program(self, name: str, *changes: tuple[str, str]) -> None:
        """Replace text in a module of its program."""
        folder = self.run.path / "agent"
        if not folder.exists():
            shutil.copytree(FOLDER, folder)
        text = (folder / name).read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text)
        self.run.node_program.write_bytes(archived(folder=folder))

    def hasten(self) -> None:
        """Have its side look for stops, and give signs of life, several times a second."""
        self.change_program("node/attempt.py", ("BEAT = 15.0", "BEAT = 0.2"))
        self.change_program("node/run.py", ("LOOK = 5.0", "LOOK = 0.1"))

    def serve(self, index: int = 0, **how: Any) -> tuple[int, str]:
        """Its exit status, and what it said."""
        return finished(self.start(index, **how))

    def end(self, attempt: AttemptId) -> EndRecord:
        end = read_end(self.run.end(attempt))
        assert end is not None
        return end

    def outcome(self, attempt: AttemptId) -> Outcome:
        return self.end(attempt).end.outcome

    def began(self, attempt: AttemptId) -> NodeStart:
        start = read_start(self.run.start(attempt))
        assert isinstance(start, NodeStart)
        return start

    def log(self, attempt: AttemptId) -> str:
        return self.run.log(attempt).read_text()


def finished(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    said = process.communicate(timeout=PATIENCE)[0].decode(errors="replace")
    return process.returncode, said


def driver(folder: Path, script: str) -> dict[str, str | None]:
    """A PATH on which `nvidia-smi` is this shell script."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def listing(uuids: Sequence[str]) -> str:
    lines = [f"GPU {n}: NVIDIA H100 (UUID: {uuid})" for n, uuid in enumerate(uuids)]
    return "\n".join(["cat <<'END'", *lines, "END"])
