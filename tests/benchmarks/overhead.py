"""What a launcher costs beside the others: from exit to next start, jobs a second, CPU a job.

All take turns, and of each the round counts that was disturbed least: that with the lowest median
gap, the most jobs a second, the least CPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import launchers
from tests.benchmarks.stamps import Stamps, build, middle, spread

NAP = 0.1
"""Seconds of a job where the gap is measured: an empty one ends while its start is recorded."""
GAPS = {1: 20, 4: 50, 16: 130}
"""Jobs of that, by slots."""
SLOTS = 4
"""Where jobs a second are counted: of empty jobs."""
PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 10.0
"""Seconds for which a launcher's last processes are waited for, once it is over."""

WHOLE_SECONDS = 20.0
"""Seconds of whole commands after which a launcher gets no further turn; it has two at least."""

Figures = defaultdict[str, list[float]]
Rounds = defaultdict[str, list[list[float]]]


def measure(quick: bool) -> dict[str, object]:
    rounds, jobs = (1, {1: 8, 2: 12}) if quick else (4, GAPS)
    whole_rounds, empty = (1, 12) if quick else (6, 4000)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        place = Path(name)
        program = build(place)
        found, absent = launchers.have(place)
        gaps = {slots: Rounds(list) for slots in jobs}
        rates, spent = Figures(list), Figures(list)
        for number in range(max(rounds, whole_rounds)):
            for name, launcher in list(found.items()):
                try:
                    for slots, count in jobs.items() if number < rounds else ():
                        one = _gaps(place, launcher.launch, slots, count, program)
                        gaps[slots][name].append(one)
                    took = sum(empty / rate for rate in rates[name])
                    enough = len(rates[name]) >= 2 and took >= WHOLE_SECONDS
                    if number < whole_rounds and not enough:
                        rate, cpu = _whole(place, launcher.whole, empty, program)
                        rates[name].append(rate)
                        spent[name].append(cpu)
                except launchers.TROUBLE as error:
                    absent[name] = f"failed: {error}"[:200]
                    del found[name]
    return _figures(gaps, rates, spent, empty) | {"absent": absent}


def _gaps(
    place: Path, launch: launchers.Launch, slots: int, count: int, program: Sequence[str]
) -> list[float]:
    work = _fresh(place)
    file = work / "stamps"
    launch(work, slots, count, [*program, str(file), str(NAP)])
    _reap()
    return Stamps.read(file).gaps_ms(slots)


def _fresh(place: Path) -> Path:
    """Return a directory that stays to the end of the measurement.

    An ext4 without a journal passes over every inode that was deleted in the last minutes, so that
    whoever makes files after a deletion would pay for it.
    """
    return Path(tempfile.mkdtemp(dir=place))


def _whole(
    place: Path, whole: launchers.Launch, count: int, program: Sequence[str]
) -> tuple[float, float]:
    """Jobs a second, from the command's start to its end, and milliseconds of CPU a job."""
    work = _fresh(place)
    file = work / "stamps"
    before, begun = _cpu(), time.monotonic()
    whole(work, SLOTS, count, [*program, str(file), "0"])
    took = time.monotonic() - begun
    _reap()
    done = len(Stamps.read(file).rows)
    if done != count:
        raise launchers.FailedError(f"{done} of {count} jobs were run")
    return count / took, 1000 * (_cpu() - before) / count


def _reap() -> None:
    """Wait for what was left to this process: its CPU counts, and it is in nobody's way."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
        except ChildProcessError:
            return


def _cpu() -> float:
    """Seconds of CPU of all processes that ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _figures(gaps: dict[int, Rounds], rates: Figures, spent: Figures, count: int) -> dict[str, Any]:
    least = {
        slots: {name: min(rounds, key=median) for name, rounds in all_of_them.items()}
        for slots, all_of_them in gaps.items()
    }
    middles = {
        slots: {name: median(values) for name, values in all_of_them.items()}
        for slots, all_of_them in least.items()
    }
    alone = min(gaps)
    rate = {name: max(values) for name, values in rates.items()}
    return {
        "gap_ms": {name: spread(values) for name, values in least[alone].items()},
        "gap_ratio_to_xargs": _ratios(middles[alone]).get("xargs -P"),
        "gap_ms_by_slots": {
            str(slots): {name: middle([one]) for name, one in found.items()}
            for slots, found in middles.items()
        },
        "gap_ratio_by_slots": {str(slots): _ratios(found) for slots, found in middles.items()},
        "jobs_per_second": {name: round(one, 1) for name, one in rate.items()},
        "jobs_per_second_ratio": _ratios(rate),
        "cpu_ms_per_job": {name: middle([min(values)]) for name, values in spent.items()},
        "jobs": count,
        "slots": {"gap": alone, "jobs_per_second": SLOTS},
    }


def _ratios(found: dict[str, float]) -> dict[str, float]:
    """Ours over each of the others."""
    ours = found["gpulaunch"]
    return {
        name: round(ours / one, 2) for name, one in found.items() if one and name != "gpulaunch"
    }


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=1))
