"""Measures the costs of a further job, and holds them to their record."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks import launchers
from tests.costs.processes import Tracer, Used

RECORD = Path(__file__).with_name("record.json")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
MORE = 1.1
"""Times its record is the most that a cost may be."""
JOBS = 20, 120
"""Of a short and of a long run: the difference is what further jobs cost."""
TRIES = 2
JOB = shutil.which("dd") or "dd"
"""A job's program, by its path: how long a search for it takes depends on who runs the tests."""

Costs = dict[str, float]


def instructions() -> Costs:
    """The supervisor's bytecode instructions per job."""
    first, last = JOBS
    with _work() as work:
        _run(work, _gated(work, first, last, last))
        return {"supervisor_instructions": round(float((work / "result").read_text()))}


def calls() -> Costs:
    """System calls per job. Raises UntraceableError.

    What is done once a second adds to a run that a busy machine draws out, so the least counts.
    """
    short, long = (
        {kind: min(used[kind].calls for used in tries) for kind in ("supervisor", "keepers")}
        for tries in zip(*(_traced() for _ in range(TRIES)), strict=True)
    )
    jobs = JOBS[1] - JOBS[0]
    return {f"{kind}_calls": round((long[kind] - short[kind]) / jobs, 1) for kind in short}


def _traced() -> Iterator[dict[str, Used]]:
    """What was used in a short run, and in a long one."""
    for count in JOBS:
        with _work() as work:
            tracer = Tracer(work, "calls")
            _run(work, tracer.around(_gated(work, 1, 0, count)))
            yield tracer.used(f"{JOB} ")


def recorded(version: str = VERSION) -> Costs:
    """Empty where this Python has no record."""
    found: Costs = _read().get(version, {})
    return found


def record(costs: Costs) -> None:
    """Write what this Python measured; the records of others stay."""
    all_of_them = _read() | {VERSION: costs}
    RECORD.write_text(json.dumps(all_of_them, indent=1, sort_keys=True) + "\n")


def grown(costs: Costs, known: Costs) -> list[str]:
    """A line for each cost that is too far above its record."""
    return [
        f"{name.replace('_', ' ')} a job, Python {VERSION}: {cost:,.0f}, "
        f"{100 * (cost / known[name] - 1):.0f} % above the record of {known[name]:,.0f}; "
        "where that is worth it: python -m tests.costs"
        for name, cost in costs.items()
        if cost > MORE * known[name]
    ]


def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


@contextmanager
def _work() -> Iterator[Path]:
    """A directory whose name is always as long: paths are taken apart."""
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as name:
        yield Path(name)


def _gated(work: Path, first: int, last: int, count: int) -> list[str]:
    gate = work / "gate"
    os.mkfifo(gate)
    job = [JOB, f"if={gate}", "bs=1", "count=1", "status=none"]
    command = launchers.prepare(work, 1, map(str, range(count)), job)
    here = command.index("gpulaunch")
    ours = ["tests.costs.gated", str(work / "result"), str(gate), str(first), str(last)]
    return command[:here] + ours + command[here + 1 :]


def _run(work: Path, command: list[str]) -> None:
    launchers.run(command, work, environ=launchers.environment())
