"""Measure, section by section, and write the figures, the documents' table and the plot.

python -m tests.benchmarks                    everything, ten minutes at most
python -m tests.benchmarks --only overhead    one section; the others keep their figures
python -m tests.benchmarks --quick --dry-run  tiny sizes, nothing written
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.benchmarks import machine, shown

RESULTS = Path(__file__).with_name("results.json")
SECTIONS = (
    "overhead", "cpu", "scale", "startup", "waiting", "order", "shortcuts", "preload", "worker",
    "executor", "igfold", "slurm", "packing",
)  # fmt: skip


def main() -> int:
    options = _options()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = False
    took: dict[str, int] = {}
    if not (options.dry_run or shown.can_draw()):
        print(
            f"{shown.PLOT.name} stays as it is: matplotlib is missing (pip install -e '.[bench]')",
            file=sys.stderr,
        )
    for name in options.only or SECTIONS:
        if importlib.util.find_spec(f"tests.benchmarks.{name}") is None:
            print(f"{name}: not here", file=sys.stderr)
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        begun = time.monotonic()
        try:
            section = importlib.import_module(f"tests.benchmarks.{name}").measure(options.quick)
        except Exception:
            traceback.print_exc()
            failed = True
            continue
        took[name] = round(time.monotonic() - begun)
        results[name] = {"machine": machine.describe(), "took_seconds": took[name], **section}
        print(json.dumps({name: results[name]}, indent=1), flush=True)
        if not options.dry_run:
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if not options.dry_run:
        shown.write(results)
    each = ", ".join(f"{name} {seconds} s" for name, seconds in took.items())
    print(f"{each}; {sum(took.values())} s in all", file=sys.stderr)
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section alone")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it work at all?")
    parser.add_argument("--dry-run", action="store_true", help="print; write no file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
