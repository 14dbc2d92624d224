"""Real pairs, real children, and the ground truth of who is still alive."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest

from gpulaunch.agent.client import PROGRAM
from gpulaunch.engines import programs
from gpulaunch.engines.client import AttemptOver, Gone, Pair, Report, Spawner
from gpulaunch.engines.command import Command
from gpulaunch.engines.local.preload_client import PreloadServer
from gpulaunch.journal.ends import EndRecord, read_end
from tests.helpers import wait_until

R = TypeVar("R")
PATIENCE = 60.0
CLOCK_REALTIME_COARSE = 5
"""The clock by which file systems stamp files."""
SANITIZERS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TRACED = [
    "traced",
    "traced-tracer",
    "traced-stopped",
    "traced-left",
    "traced-exit",
    "traced-unreaped",
]
"""Modes of nasty.c in which a process that is to end waits for its tracer, a process below it."""


def copied(folder: Path) -> Path:
    """Return a copy of the programs beside jobs that every user can read."""
    copy = folder / "agent"
    shutil.copytree(Path(PROGRAM).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def compiled(program: Path, sources: Sequence[Path], *more: str) -> Path:
    """Compile parts of the keepers' program, under the sanitizers of addresses and of C itself."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) here")
    command = [
        compiler,
        *SANITIZERS,
        *more,
        "-std=gnu11",
        f"-I{programs.PROGRAM.parent}",
        "-o",
        str(program),
    ]
    subprocess.run([*command, *map(str, sources), "-lm"], check=True)
    return program


def token() -> str:
    return f"marker-{uuid.uuid4().hex}"


def marked(mark: str, where: str = "cmdline") -> list[int]:
    """The live processes that carry `mark` in /proc/PID/cmdline (or environ)."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if mark.encode() in Path(f"/proc/{name}/{where}").read_bytes():
                    found.append(int(name))
            except OSError:
                pass  # it ended meanwhile
    return found


def until(file: Path) -> str:
    """A shell's words that wait until the test makes that file."""
    return f"until [ -e '{file}' ]; do sleep 0.01; done"


def made_before(path: Path) -> None:
    """Make a file that is older than whatever begins after this call."""
    path.write_text("from before")
    made = path.stat().st_ctime_ns
    wait_until(
        lambda: time.clock_gettime_ns(CLOCK_REALTIME_COARSE) > made,
        PATIENCE,
        "the clock to move on",
    )


def children_of(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def keepers_of(spawner: Spawner) -> tuple[int, int]:
    """Guardian and monitor of the spawner's only pair, once they are born."""
    (guardian,) = wait_until(lambda: children_of(spawner.pid))
    (monitor,) = wait_until(lambda: children_of(guardian))
    return guardian, monitor


class Slot:
    """A pair in a directory of its own, with the waiting that a supervisor's loop would do."""

    def __init__(
        self, spawner: Spawner, folder: Path, leases: tuple[int, ...] = (), alive: int | None = None
    ) -> None:
        self.folder = folder
        self.spawner = spawner
        self.leases, self.name = leases, alive
        self.pair: Pair = spawner.pair(leases, alive)
        self.reports: list[Report] = []
        self.number = 0

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.pair.close()

    @property
    def log(self) -> Path:
        return self.folder / f"{self.number}.log"

    @property
    def end_file(self) -> Path:
        return self.folder / f"{self.number}.end"

    def launch(self, *argv: str, behind: bool = False, **limits: Any) -> Command:
        """Launch the next command, `behind` the one that runs; a preload server's on a new pair."""
        if self.number and isinstance(self.spawner, PreloadServer):
            self.pair.close()
            self.pair = self.spawner.pair(self.leases, self.name)
            self.reports.clear()
        self.number += 1
        files: dict[str, Any] = {"log": str(self.log), "end": str(self.end_file)}
        command = Command(f"job.{self.number}", argv, **({"grace": 5.0} | files | limits))
        (self.pair.launch_behind if behind else self.pair.launch)(command)
        return command

    def expect(self, kind: type[R], patience: float = PATIENCE) -> R:
        """The next report of this kind; reports before it are dropped."""
        end = time.monotonic() + patience
        while True:
            while self.reports:
                report = self.reports.pop(0)
                if isinstance(report, kind):
                    return report
                assert not isinstance(report, Gone), f"gone, {kind} expected: {self.spawner.said()}"
            left = end - time.monotonic()
            assert left > 0, f"no {kind} within {patience} s: {self.spawner.said()}"
            select.select([self.pair], [], [], left)
            self.reports.extend(self.pair.on_readable())

    def run(self, *argv: str, **limits: Any) -> AttemptOver:
        self.launch(*argv, **limits)
        return self.expect(AttemptOver)

    def end(self) -> EndRecord | None:
        return read_end(self.end_file)

    def finish(self) -> None:
        self.pair.end()
        self.expect(Gone)


class WorkerSlot(Slot):
    """The same for workers, which carry `mark` in their environment as `MARK`."""

    def __init__(self, spawner: Spawner, folder: Path, leases: tuple[int, ...] = ()) -> None:
        super().__init__(spawner, folder, leases)
        self.mark = token()

    @property
    def alive(self) -> list[int]:
        """The worker and what it has started; its keepers have another environment."""
        return marked(self.mark, "environ")

    def text(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text()
