"""Plays a trace into a fresh core: `python -m gpulaunch.journal.replay FILE`.

It reports the first events after which the core does something else than when the trace was
written. Status 0: it does the same throughout; 1: it does not; 2: the file is no trace.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpulaunch.core.events import Event
from gpulaunch.core.facts import RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.run import Run
from gpulaunch.errors import GpulaunchError
from gpulaunch.journal.read import fold, read
from gpulaunch.journal.trace import TraceStart, as_traced, decode_beginning, decode_step


class Difference(Struct, frozen=True):
    """The first line (from 1) at which the core does something else, and both results."""

    line: int
    events: list[Event]
    then: list[Any]
    now: list[Any]


def begun(path: Path) -> Run:
    """Return the run of this trace as it was before its first event."""
    with path.open("rb") as file:
        beginning = decode_beginning(file.readline())
    ledger = _ledger(beginning)
    ledger.apply(beginning.opened, beginning.at)
    return Run(beginning.opened.gpus, beginning.config, ledger)


def replay(path: Path, run: Run) -> tuple[int, Difference | None]:
    """Play the trace into `run`; return how many turns there were, and the first difference.

    A last line that a kill has cut short is left out.
    """
    with path.open("rb") as file:
        file.readline()
        count = 0
        for count, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return count - 1, None
            step = decode_step(line)
            now = as_traced(run.handle(step.events, step.at))
            if step.results != now:
                return count, Difference(count + 1, step.events, step.results, now)
    return count, None


def _ledger(beginning: TraceStart) -> Ledger:
    """Return the state that earlier supervisors left, as the run's journal has it."""
    ledger = Ledger()
    if beginning.opened.epoch > 1:
        for fact, at in read(Path(beginning.journal)):
            if isinstance(fact, RunOpened) and fact.epoch == beginning.opened.epoch:
                break
            fold(ledger, fact, at, beginning.journal)
    return ledger


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m gpulaunch.journal.replay FILE", file=sys.stderr)
        return 2
    path = Path(argv[0])
    try:
        count, found = replay(path, begun(path))
    except (OSError, ValueError, KeyError, GpulaunchError) as error:
        print(f"{path}: no trace of a run: {error}", file=sys.stderr)
        return 2
    if found is None:
        print(f"{path}: {count} turns, the same facts and instructions")
        return 0
    print(f"{path}:{found.line}: {', '.join(map(str, found.events))}")
    for mark, results in (("then", found.then), ("now ", found.now)):
        for result in results:
            print(f"  {mark} {result}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
