"""GpuExecutor beside ProcessPoolExecutor: time per item, and throughput of large arrays.

    python -m tests.benchmarks.executor [--rounds N]

Both have one worker (pretend card, spawned process); rounds alternate between them. Prints one JSON
object: medians of each, and the ratio GpuExecutor / ProcessPoolExecutor (of times: below 1 is
faster). The machine is named, as the figures are its own. Needs numpy for the arrays.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from gpulaunch import GpuExecutor
from tests.executor.work import double, echo

ITEMS = 500
MEGABYTES = 100


def one_by_one(executor: Executor) -> float:
    """Seconds per item, each submitted when the one before is done."""
    begun = time.perf_counter()
    for n in range(ITEMS):
        executor.submit(double, n).result()
    return (time.perf_counter() - begun) / ITEMS


def all_at_once(executor: Executor) -> float:
    """Seconds per item of a map."""
    begun = time.perf_counter()
    for _ in executor.map(double, range(ITEMS)):
        pass
    return (time.perf_counter() - begun) / ITEMS


def chunked(executor: Executor) -> float:
    begun = time.perf_counter()
    for _ in executor.map(double, range(ITEMS * 10), chunksize=50):
        pass
    return (time.perf_counter() - begun) / ITEMS / 10


def arrays(executor: Executor) -> float:
    """Seconds for an array of 100 MB there and back."""
    import numpy

    array = numpy.arange(MEGABYTES * 10**6 // 8)
    begun = time.perf_counter()
    assert executor.submit(echo, array).result()[-1] == array[-1]
    return time.perf_counter() - begun


def compared(measure: Callable[[Executor], float], rounds: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[float]] = {"gpu": [], "processes": []}
    with GpuExecutor(simulate=1) as gpu, ProcessPoolExecutor(1, mp_context=context) as processes:
        executors = {"gpu": gpu, "processes": processes}
        for executor in executors.values():
            executor.submit(double, 1).result()
        for _ in range(rounds):
            for name, executor in executors.items():
                found[name].append(measure(executor))
    ratios = [g / p for g, p in zip(found["gpu"], found["processes"], strict=True)]
    medians = {name: statistics.median(values) for name, values in found.items()}
    return {"seconds": medians, "ratio": round(statistics.median(ratios), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    result = {
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "one by one, per item": compared(one_by_one, rounds),
        "map, per item": compared(all_at_once, rounds),
        "map in chunks of 50, per item": compared(chunked, rounds),
        f"{MEGABYTES} MB array there and back": compared(arrays, rounds),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
