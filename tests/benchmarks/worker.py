"""A worker against one process per item: a function that imports something heavy, and an empty one.

    python -m tests.benchmarks.worker [--python PYTHON] [--module torch] [--quick]

`--python` is the interpreter of the jobs, `--module` what they import; without it the heaviest of a
few that it has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.benchmarks import launchers
from tests.benchmarks.stamps import Stamps, middle

MODULES = ("torch", "numpy", "textual.app", "pydantic", "asyncio")
CARDS = 2
FILES = {
    "heavy.py": "import {module}\ndef act(item): pass\nif __name__ == '__main__': act(None)\n",
    "empty.py": "def act(item): pass\n",
    "loop.py": "import sys\nanswers = open(3, 'w', buffering=1)\n"
    "for line in sys.stdin:\n    answers.write('0\\n')\n",
}
STAMPED = """
import time
stamps = open({file!r}, "a", buffering=1)
def act(item):
    began = time.monotonic_ns()
    time.sleep({nap})
    stamps.write(f"{{began}} {{time.monotonic_ns()}}\\n")
"""
NAP = 0.005
"""Seconds of an item where the gap is measured."""


def measure(quick: bool, python: str = sys.executable, module: str = "") -> dict[str, object]:
    """`per_item_ms` is the time between two items' ends on one card, `process` a process each."""
    module = module or next((name for name in MODULES if _imports(python, name)), "asyncio")
    items, many, rounds = (6, 40, 1) if quick else (24, 1000, 2)
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        place = Path(name)
        for file, text in FILES.items():
            (place / file).write_text(text.format(module=module))
        heavy: dict[str, list[float]] = {"process": [], "worker": []}
        for _ in range(rounds):
            heavy["process"].append(_run(place, items, python, "run: [python, heavy.py]"))
            heavy["worker"].append(_run(place, items, python, "worker: 'heavy.py:act'"))
        empty = {
            "process": [_spacing(place, many // 4, python, "run: [python, empty.py]")],
            "worker": [_spacing(place, many, python, "worker: 'empty.py:act'")],
            "lines": [_spacing(place, many, python, "worker: {run: [python, loop.py]}")],
            "true": [_spacing(place, many // 4, python, "run: ['true']")],
        }
        gaps = _stamped(place, many // 2, python, NAP).gaps_ms(1)
        rate = _stamped(place, many, python, 0).per_second
    whole = {name: median(values) for name, values in heavy.items()}
    each = {name: median(values) for name, values in empty.items()}
    return {
        "module": module,
        "items": items,
        "cards": CARDS,
        "heavy_process_seconds": round(whole["process"], 2),
        "heavy_worker_seconds": round(whole["worker"], 2),
        "heavy_process_over_worker_ratio": round(whole["process"] / whole["worker"], 2),
        "empty_items": many,
        "empty_process_per_item_ms": round(each["process"], 2),
        "empty_worker_per_item_ms": round(each["worker"], 2),
        "empty_lines_per_item_ms": round(each["lines"], 2),
        "true_per_item_ms": round(each["true"], 2),
        "empty_process_over_worker_ratio": round(each["process"] / each["worker"], 2),
        "one_card_gap_ms": middle(gaps),
        "one_card_items_per_second": round(rate, 1),
    }


def _imports(python: str, module: str) -> bool:
    done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    return done.returncode == 0


def _stamped(place: Path, items: int, python: str, nap: float) -> Stamps:
    """What the items of a worker say on one card, each of so many seconds."""
    file = place / f"stamps-{nap}"
    (place / "stamped.py").write_text(STAMPED.format(file=str(file), nap=nap))
    _run(place, items, python, "worker: 'stamped.py:act'", cards=1)
    return Stamps.read(file)


def _run(place: Path, items: int, python: str, what: str, cards: int = CARDS) -> float:
    """Seconds of the whole command."""
    file = place / "jobs.yaml"
    numbers = ", ".join(map(str, range(items)))
    file.write_text(
        f"jobs:\n  - name: j-{{{{n}}}}\n    matrix: {{n: [{numbers}]}}\n"
        f"    python: {python}\n    {what}\n"
    )
    begun = time.monotonic()
    command = [sys.executable, "-m", "gpulaunch", "run", str(file), "--simulate", str(cards)]
    environment = launchers.environment()
    subprocess.run(command, cwd=place, env=environment, capture_output=True, check=True)
    return time.monotonic() - begun


def _spacing(place: Path, items: int, python: str, what: str) -> float:
    """Milliseconds between the ends of two items that follow each other on a card."""
    _run(place, items, python, what)
    journal = place / "gpulaunch-runs" / "latest" / "events.jsonl"
    lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
    ends: dict[str, list[float]] = {}
    where = {}
    for line in lines:
        if line["e"] == "attempt_launched":
            where[line["job"]] = line["gpus"][0]
        elif line["e"] == "attempt_ended":
            ends.setdefault(where[line["job"]], []).append(line["end"]["ended"]["mono"])
    gaps = []
    for times in ends.values():
        times.sort()
        gaps += [after - before for before, after in pairwise(times)]
    return 1000 * median(gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--module", default="")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    print(json.dumps(measure(given.quick, given.python, given.module), indent=1))


if __name__ == "__main__":
    main()
