"""What each process of a command has used, by what it is: tracer.c sees it, this adds it up."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class UntraceableError(Exception):
    """Processes cannot be traced here: no compiler, or the machine does not let us."""


@dataclass(frozen=True)
class Used:
    """By one kind of process: milliseconds of CPU, minor page faults, system calls."""

    cpu_ms: float = 0.0
    faults: int = 0
    calls: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.cpu_ms + other.cpu_ms, self.faults + other.faults, self.calls + other.calls
        )


class Tracer:
    """Traces one command, in a directory of its own. Raises UntraceableError."""

    def __init__(self, place: Path, mode: Literal["time", "calls"]) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise UntraceableError("no C compiler (cc) to build tests/costs/tracer.c with")
        self._program, self._told, self._mode = place / "tracer", place / "traced", mode
        source = Path(__file__).with_name("tracer.c")
        subprocess.run([compiler, "-O1", "-o", self._program, source], check=True)
        tried = subprocess.run(self.around(["true"]), capture_output=True, text=True, check=False)
        if tried.returncode:
            raise UntraceableError(f"no process may be traced here: {tried.stderr.strip()}")

    def around(self, command: Sequence[str]) -> list[str]:
        """The command line under which the command is traced."""
        return [str(self._program), str(self._told), self._mode, *command]

    def used(self, job: str) -> dict[str, Used]:
        """What was used by kind; see `by_kind`."""
        with self._told.open(errors="replace") as lines:
            return by_kind(lines, job)


def by_kind(lines: Iterable[str], job: str) -> dict[str, Used]:
    """Sum up what a tracer wrote, as `supervisor`, `keepers`, `job` and `others`.

    `job` is what the jobs' command lines begin with; what their fork and exec cost is the
    keepers'. Keepers are those that bear jobs, and all that are the same program: nothing here
    knows how a keeper is started.
    """
    program: dict[str, str] = {}
    spent: defaultdict[str, Used] = defaultdict(Used)
    keepers: set[str] = set()
    supervisor = ""
    for line in lines:
        what, thread, *rest = line.split(" ", 5)
        if what == "fork":  # the child may have become another program before this line
            program.setdefault(rest[0].strip(), program.get(thread, ""))
            continue
        before = program.get(thread, "")
        nanoseconds, faults, calls = map(int, rest[:3])
        spent[before] += Used(nanoseconds / 1e6, faults, calls)
        if what == "exit":
            program.pop(thread, None)
            continue
        program[thread] = words = rest[3].strip()
        supervisor = supervisor or words
        if words.startswith(job):
            keepers.add(before)
    kinds = dict.fromkeys(("supervisor", "keepers", "job", "others"), Used())
    for words, some in spent.items():
        kind = "job" if words.startswith(job) else "keepers" if words in keepers else "others"
        kinds["supervisor" if words in ("", supervisor) else kind] += some
    return kinds
