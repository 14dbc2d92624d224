"""The README's picture: a run's live view at one moment, drawn from its journal as an SVG.

python -m tests.views.picture RUN_DIRECTORY SECONDS > examples/run.svg
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant
from gpulaunch.journal.read import read
from gpulaunch.observe.terminal.progress import ProgressView

COLUMNS, ROWS = 92, 30
COMMAND = "examples/antibodies/jobs.yaml --simulate 2"


def picture(run: Path, seconds: float) -> str:
    """What the terminal showed so many seconds after the run began."""
    console = Console(
        file=io.StringIO(), record=True, width=COLUMNS, height=ROWS, force_terminal=True
    )
    view, ledger = ProgressView(console), Ledger()
    console.print(f" [bold]$[/bold] gpulaunch run {COMMAND}\n", highlight=False)
    until = None
    for fact, at in read(run / "events.jsonl"):
        until = until or Instant(at.mono + seconds, at.utc + seconds)
        if at.mono > until.mono:
            break
        ledger.apply(fact, at)
        view.see(fact, at, ledger)
    assert until is not None, "an empty journal"
    view._print_lines()
    console.print(view._picture(until, ledger))
    svg = console.export_svg(title="gpulaunch")
    # A picture asks nobody for a font: any fixed-width one will do.
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    sys.stdout.write(picture(Path(sys.argv[1]), float(sys.argv[2])))
