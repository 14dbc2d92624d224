"""GpuExecutor beside ProcessPoolExecutor: time per item, and throughput of large arrays.

Both have one worker (pretend card, spawned process), and take turns. `ratio` is GpuExecutor's time
over the other's in the same round, `cpu_ratio` the same of both processes' processor time, which
others on the machine disturb less; medians, below 1 is faster. The arrays need numpy.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from gpulaunch import GpuExecutor
from tests.executor.work import double, echo

ITEMS = 500
CHUNK = 50
MEGABYTES = 100


def measure(quick: bool) -> dict[str, object]:
    rounds = 1 if quick else 15
    ways = {
        "items one by one": one_by_one,
        "items of a map": all_at_once,
        f"items of a map in chunks of {CHUNK}": chunked,
    }
    absent: dict[str, str] = {}
    if importlib.util.find_spec("numpy") is None:
        absent["arrays"] = "numpy is not installed"
    else:
        ways[f"{MEGABYTES} MB array there and back"] = arrays
    found = {name: compared(way, rounds) for name, way in ways.items()}
    kinds = ("ms", "ratio", "cpu_ratio")
    return {kind: {name: one[kind] for name, one in found.items()} for kind in kinds} | {
        "absent": absent
    }


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
    for _ in executor.map(double, range(ITEMS * 10), chunksize=CHUNK):
        pass
    return (time.perf_counter() - begun) / ITEMS / 10


def arrays(executor: Executor) -> float:
    """Seconds for an array of 100 MB there and back."""
    import numpy

    array = numpy.arange(MEGABYTES * 10**6 // 8)
    begun = time.perf_counter()
    assert executor.submit(echo, array).result()[-1] == array[-1]
    return time.perf_counter() - begun


def compared(way: Callable[[Executor], float], rounds: int) -> dict[str, Any]:
    """The medians: of the time in milliseconds, and of the ratios."""
    context = multiprocessing.get_context("spawn")
    wall: dict[str, list[float]] = {"gpu": [], "processes": []}
    cpu: dict[str, list[float]] = {"gpu": [], "processes": []}
    with GpuExecutor(simulate=1) as gpu, ProcessPoolExecutor(1, mp_context=context) as processes:
        executors = {"gpu": gpu, "processes": processes}
        for executor in executors.values():
            way(executor)
        for _ in range(rounds):
            for name in reversed(executors):
                before = _cpu(executors[name])
                wall[name].append(way(executors[name]))
                cpu[name].append(_cpu(executors[name]) - before)
            executors = {name: executors[name] for name in reversed(executors)}
    return {
        "ms": {name: round(1000 * statistics.median(took), 4) for name, took in wall.items()},
        "ratio": _ratio(wall),
        "cpu_ratio": _ratio(cpu),
    }


def _cpu(executor: Executor) -> float:
    """Seconds of processor time that this process and the worker have taken."""
    return executor.submit(time.process_time).result() + time.process_time()


def _ratio(found: dict[str, list[float]]) -> float:
    pairs = zip(found["gpu"], found["processes"], strict=True)
    return round(statistics.median(ours / theirs for ours, theirs in pairs), 2)


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=1))
