"""Measure what a job costs, and write it down as what it may cost: `python -m tests.costs`.

    --dry-run [N]     write nothing; measure N times (1)

Each Python has its own record: run it with each of those that record.json has.
"""

from __future__ import annotations

import argparse
import json
import sys

from tests.costs import measure
from tests.costs.processes import UntraceableError


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.costs", description=__doc__)
    parser.add_argument("--dry-run", nargs="?", type=int, const=1, default=0, metavar="N")
    tries = parser.parse_args().dry_run
    for _ in range(tries or 1):
        try:
            costs = measure.instructions() | measure.calls()
        except UntraceableError as error:
            print(f"nothing is written: {error}", file=sys.stderr)
            return 1
        print(json.dumps({"python": measure.VERSION, **costs}), flush=True)
        if not tries:
            measure.record(costs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
