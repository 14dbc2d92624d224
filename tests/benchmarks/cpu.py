"""What a further empty job costs in CPU, by process, each by the kernel's own exact count."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.benchmarks import launchers
from tests.benchmarks.stamps import build
from tests.costs.processes import Tracer, UntraceableError, Used

SLOTS = 4


def measure(quick: bool) -> dict[str, object]:
    """`job` is from its first instruction on; its fork is the keepers'."""
    jobs, tries = ((10, 30), 1) if quick else ((500, 2500), 2)
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        place = Path(name)
        program = build(place)
        try:
            used = _least([_further(place, jobs, program) for _ in range(tries)])
        except UntraceableError as error:
            return {"absent": {"CPU by process": str(error)}}
    return {"slots": SLOTS, "jobs": list(jobs), "used": used}


def _least(tries: list[dict[str, float]]) -> dict[str, float]:
    return min(tries, key=lambda figures: figures["all_ms"])


def _further(place: Path, jobs: tuple[int, int], program: list[str]) -> dict[str, float]:
    few, many = (_used(place, count, program) for count in jobs)
    further = jobs[1] - jobs[0]
    spent = {kind: (many[kind].cpu_ms - few[kind].cpu_ms) / further for kind in many}
    faults = sum(many[kind].faults - few[kind].faults for kind in many) / further
    figures = {f"{kind}_ms": round(one, 3) for kind, one in spent.items()}
    return figures | {"all_ms": round(sum(spent.values()), 3), "page_faults": round(faults)}


def _used(place: Path, count: int, program: list[str]) -> dict[str, Used]:
    with tempfile.TemporaryDirectory(dir=place) as name:
        work = Path(name)
        tracer = Tracer(work, "time")
        words = [*program, str(work / "stamps"), "0"]
        command = launchers.prepare(work, SLOTS, map(str, range(count)), words)
        launchers.run(tracer.around(command), work, environ=launchers.environment())
        return tracer.used(program[0])


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=1))
