"""From the command's start to what it is for: its answer, its command, its first job, its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import launchers
from tests.benchmarks.stamps import Stamps, build, middle

COMMANDS = {
    "status": ["status", "made"],
    "check": ["check", "jobs.yaml", "--simulate", "1"],
    "logs": ["logs", "-r", "made"],
    "wait": ["wait", "made"],
    "run": ["run", "jobs.yaml", "--simulate", "1", "--new"],
}
"""What is measured to its end, at a run of one job."""
PLANNED = 100_000
"""Explicit jobs of the file whose plan is printed."""


def measure(quick: bool) -> dict[str, object]:
    rounds = 1 if quick else 9
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        place = Path(name)
        program = build(place)
        ours = [sys.executable, "-m", "gpulaunch"]
        measured: dict[str, Callable[[], float]] = {
            "python_ms": lambda: _whole([sys.executable, "-c", "pass"], place),
            "version_ms": lambda: _whole([*ours, "--version"], place),
            "exec_ms": lambda: _whole([*ours, "exec", "--simulate", "1", "--", "true"], place),
            "run_ms": lambda: _first_job(place, program),
        }
        times: dict[str, list[float]] = {name: [] for name in measured}
        for _ in range(rounds):
            for name, take in measured.items():
                times[name].append(take())
        whole = _to_the_end(place, rounds)
        plan = _planned(place, 100 if quick else PLANNED)
    return {
        **{name: middle(values) for name, values in times.items()},
        "whole_ms": whole,
        "plan_s": plan,
    }


def _to_the_end(place: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of CPU and of time that commands take, to their ends."""
    (place / "jobs.yaml").write_text("jobs: [{name: one, run: 'true'}]")
    _spent(["run", "jobs.yaml", "--simulate", "1", "--run-dir", "made"], place)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            found[name].append(_spent(command, place))
    return {
        name: {
            "cpu": middle([cpu * 1000 for cpu, _ in each]),
            "time": middle([seconds * 1000 for _, seconds in each]),
        }
        for name, each in found.items()
    }


def _planned(place: Path, jobs: int) -> dict[str, float]:
    """Seconds that `check` takes for a file of so many jobs, each written out."""
    lines = (f"  - {{name: job-{n}, run: echo {n}}}" for n in range(jobs))
    (place / "many.yaml").write_text("jobs:\n" + "\n".join(lines))
    cpu, seconds = _spent(["check", "many.yaml", "--simulate", "1"], place)
    return {"jobs": jobs, "cpu": round(cpu, 2), "time": round(seconds, 2)}


def _spent(arguments: list[str], place: Path) -> tuple[float, float]:
    """Seconds of CPU, that of what the command started and waited for included, and of time."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "gpulaunch", *arguments],
        cwd=place,
        env=launchers.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, arguments)
    return used.ru_utime + used.ru_stime, time.monotonic() - begun


def _whole(command: list[str], place: Path) -> float:
    begun = time.monotonic()
    subprocess.run(
        command, cwd=place, env=launchers.environment(), stdout=subprocess.DEVNULL, check=True
    )
    return (time.monotonic() - begun) * 1000


def _first_job(place: Path, program: list[str]) -> float:
    with tempfile.TemporaryDirectory(dir=place) as name:
        file = Path(name) / "stamps"
        begun = time.monotonic()
        launchers.gpulaunch(Path(name), 1, 1, [*program, str(file), "0"])
        return Stamps.read(file).rows[0][0] / 1e6 - begun * 1000


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=1))
