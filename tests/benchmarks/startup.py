"""From the command's start to what it is for: its answer, its command, its first job."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import launchers
from tests.benchmarks.stamps import Stamps, build, middle


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
    return {name: middle(values) for name, values in times.items()}


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
