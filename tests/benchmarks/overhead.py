"""What a launcher costs between two jobs: from exit to next start, and how many a second."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks import launchers
from tests.benchmarks.stamps import Stamps, build, middle, spread

NAP = 0.02
"""Seconds of a job where the gap is measured: an empty one ends while its start is recorded."""
SLOTS = 4
"""Where jobs a second are counted: of empty jobs."""


def measure(quick: bool) -> dict[str, object]:
    rounds, lasting, empty = (1, 8, 12) if quick else (3, 60, 300)
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        place = Path(name)
        program = build(place)
        found, absent = launchers.have(place)
        gaps: dict[str, list[float]] = {name: [] for name in found}
        rates: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(rounds):
            for name, launch in list(found.items()):
                try:
                    gap = _stamps(place, launch, 1, lasting, program, NAP)
                    rate = _stamps(place, launch, SLOTS, empty, program, 0.0)
                except launchers.TROUBLE as error:
                    absent[name] = f"failed: {error}"[:200]
                    del found[name]
                    continue
                gaps[name] += gap.gaps_ms(1)
                rates[name].append(rate.per_second)
    gaps = {name: values for name, values in gaps.items() if len(values) > 1}
    rates = {name: values for name, values in rates.items() if values}
    return _figures(gaps, rates) | {"absent": absent}


def _stamps(
    place: Path,
    launch: launchers.Launch,
    slots: int,
    count: int,
    program: list[str],
    seconds: float,
) -> Stamps:
    with tempfile.TemporaryDirectory(dir=place) as name:
        file = Path(name) / "stamps"
        launch(Path(name), slots, count, [*program, str(file), str(seconds)])
        return Stamps.read(file)


def _figures(gaps: dict[str, list[float]], rates: dict[str, list[float]]) -> dict[str, Any]:
    gap = {name: spread(values) for name, values in gaps.items()}
    rate = {name: middle(values) for name, values in rates.items()}
    ours, theirs = gap["gpulaunch"]["median"], gap.get("xargs -P", {}).get("median")
    return {
        "gap_ms": gap,
        "gap_ratio_to_xargs": round(ours / theirs, 2) if theirs else None,
        "jobs_per_second": rate,
        "jobs_per_second_ratio": {
            name: round(rate["gpulaunch"] / other, 2) for name, other in rate.items() if other
        },
        "slots": {"gap": 1, "jobs_per_second": SLOTS},
    }


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=1))
