"""Whether it stays as it is: by the list's length, by slots; memory, and CPU while jobs run."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks import launchers
from tests.benchmarks.stamps import Stamps, build, middle

NAP = 0.02
PATIENCE = 120.0


def measure(quick: bool) -> dict[str, object]:
    lengths = (10, 30) if quick else (100, 1_000, 10_000, 100_000)
    slots = (1, 2) if quick else (1, 4, 16, 64)
    looked_at, empty, jobs, seconds = (8, 20, 2, 1.0) if quick else (80, 400, 8, 10.0)
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        place = Path(name)
        program = build(place)
        return {
            "list": {str(n): _long_list(place, n, looked_at, program) for n in lengths},
            "slots": {str(n): _rate(place, n, empty, program) for n in slots},
            "idle_jobs": jobs,
            **_idle(place, jobs, seconds),
        }


def _long_list(place: Path, count: int, looked_at: int, program: list[str]) -> dict[str, float]:
    """A list of so many jobs: its first ones run, then it is stopped."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        work, file = Path(name), Path(name) / "stamps"
        items = map(str, range(count))
        command = launchers.prepare(work, 1, items, [*program, str(file), str(NAP)])
        begun = time.monotonic()
        with _running(command, work) as process:
            wanted = min(looked_at, count)
            _until(lambda: len(Stamps.read(file).rows) >= wanted)
            memory = _status(process.pid, "VmHWM") / 1024
        stamps = Stamps.read(file)
        return {
            "first_job_seconds": round(stamps.rows[0][0] / 1e9 - begun, 2),
            "gap_ms": middle(stamps.gaps_ms(1)),
            "memory_mb": round(memory, 1),
        }


def _rate(place: Path, slots: int, count: int, program: list[str]) -> float:
    with tempfile.TemporaryDirectory(dir=place) as name:
        file = Path(name) / "stamps"
        launchers.gpulaunch(Path(name), slots, count, [*program, str(file), "0"])
        return round(Stamps.read(file).per_second, 1)


def _idle(place: Path, jobs: int, seconds: float) -> dict[str, object]:
    """Percent of a core that the supervisor uses, and megabytes of a pair of keepers."""
    percent, megabytes = _resting(place, jobs, seconds)
    return {"idle_cpu_percent": round(percent, 3), "pair_mb": round(megabytes, 2)}


def _resting(place: Path, jobs: int, seconds: float) -> tuple[float, float]:
    """The same while long jobs run, after their first seconds."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        work = Path(name)
        command = launchers.prepare(work, jobs, map(str, range(jobs)), ["sleep", "600"])
        with _running(command, work) as process:
            journal = work / "run/events.jsonl"
            _until(lambda: journal.exists() and journal.read_text().count("_started") == jobs)
            time.sleep(seconds / 3)
            before, at = _cpu(process.pid), time.monotonic()
            time.sleep(seconds)
            percent = 100 * (_cpu(process.pid) - before) / (time.monotonic() - at)
            return percent, middle(_pairs(journal))


def _pairs(journal: Path) -> list[float]:
    """Megabytes of each pair: of a job's parent and that one's, in proportion where shared."""
    facts = map(json.loads, journal.read_text().splitlines())
    inner = [_status(fact["pid"], "PPid") for fact in facts if fact["e"] == "attempt_started"]
    return [(_shares(pid) + _shares(_status(pid, "PPid"))) / 1024 for pid in inner]


def _shares(pid: int) -> int:
    """KiB of memory: shared pages count by their share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pss:")))


@contextmanager
def _running(command: list[str], work: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        command,
        cwd=work,
        env=launchers.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # SIGINT is ignored below a script's `&`
            process.wait(PATIENCE)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the run did not come as far as it should")
        time.sleep(0.1)


def _status(pid: int, key: str) -> int:
    """A figure of /proc/PID/status; of memory, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(key + ":")))


def _cpu(pid: int) -> float:
    """Seconds of CPU that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=1))
