"""What a job of `import torch` costs, cold and forked from a preload server, in turns.

    python -m tests.benchmarks.preload --python /path/with/torch/bin/python [--modules torch]

Prints JSON: medians, and their ratios. Times are seconds from the launch to the script's first
line after its imports, and to the job's recorded end; `cpu` is the job's own, in seconds; `memory`
what it has for itself alone (private pages, MiB) once it has imported. The section of
`python -m tests.benchmarks` takes the interpreter that GPULAUNCH_TEST_TORCH names.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpulaunch.engines.client import Spawner
from gpulaunch.engines.local.preload_client import Preload, PreloadReady, PreloadServer
from gpulaunch.engines.local.preloads import EARLY, forkable
from gpulaunch.engines.programs import find_keepers
from tests.explain.test_real import TORCH
from tests.process.preloaded import news_of
from tests.process.support import Slot

SCRIPT = """
import {modules}
import sys, time
first = time.monotonic() - float(sys.argv[1])
import json
private = sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if "Private" in line)

print(json.dumps({{"first": first, "cpu": time.process_time(), "memory": private / 1024}}))
"""
NAMES = {
    "first": "time_to_the_first_line_ratio",
    "cpu": "cpu_to_the_first_line_ratio",
    "memory": "memory_of_its_own_ratio",
    "end": "time_to_the_end_ratio",
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def measure(quick: bool) -> dict[str, Any]:
    """The section of `python -m tests.benchmarks`."""
    if TORCH is None:
        return {"absent": {"torch": "GPULAUNCH_TEST_TORCH names no interpreter that has it"}}
    return compare(TORCH, ["torch"], 2 if quick else 11)


def compare(python: str, modules: Sequence[str], count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT.format(modules=", ".join(modules)))
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ONE_THREAD
        found = forkable([python, "script.py"], name, env, False)
        preload = Preload(found.python, found.start, found.target, name, env, tuple(modules), EARLY)
        with (
            PreloadServer(preload, f"{name}/imports", env) as server,
            Spawner(find_keepers(), env) as cold,
        ):
            ready = news_of(server, 600)
            assert isinstance(ready, PreloadReady), ready
            slots = {}
            for kind, spawner in (("cold", cold), ("preload", server)):
                (folder / kind).mkdir()
                slots[kind] = Slot(spawner, folder / kind)
            rounds: dict[str, list[dict[str, float]]] = {"cold": [], "preload": []}
            for _ in range(count):
                for kind, slot in slots.items():
                    rounds[kind].append(one(slot, python, name, env))
            for slot in slots.values():
                slot.finish()
    return summary(modules, ready, rounds)


def one(slot: Slot, python: str, cwd: str, env: dict[str, str]) -> dict[str, float]:
    began = time.monotonic()
    argv = [python, "script.py", repr(began)]
    main = forkable(argv, cwd, env, False).main
    ended = slot.run(*argv, cwd=cwd, env_set=ONE_THREAD, env_unset=("PYTHONPATH",), main=main)
    figures: dict[str, float] = json.loads(slot.log.read_text())
    assert ended.end.ended is not None
    return {**figures, "end": ended.end.ended.mono - began}


def summary(
    modules: Sequence[str], ready: PreloadReady, rounds: dict[str, list[dict[str, float]]]
) -> dict[str, Any]:
    medians = {
        kind: {key: statistics.median(one[key] for one in some) for key in some[0]}
        for kind, some in rounds.items()
    }
    cold, forked = medians["cold"], medians["preload"]
    return {
        "modules": list(modules),
        "rounds": len(rounds["cold"]),
        "importing_once_seconds": round(ready.seconds, 2),
        **{kind: {k: round(v, 4) for k, v in found.items()} for kind, found in medians.items()},
        **{NAMES[key]: round(cold[key] / max(forked[key], 1e-9), 1) for key in cold},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="an interpreter that has the modules")
    parser.add_argument("--modules", nargs="+", default=["torch"])
    parser.add_argument("--rounds", type=int, default=11)
    asked = parser.parse_args()
    print(json.dumps(compare(asked.python, asked.modules, asked.rounds), indent=2))


if __name__ == "__main__":
    main()
