"""The README's picture of `gpulaunch top`, drawn from a made-up night by Textual's own test pilot.

python -m tests.views.top.picture > examples/top.svg
"""

from __future__ import annotations

import math
import re
import sys

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId, End, Exited, Failure
from gpulaunch.observe.metrics.model import CardSample
from tests.views.history import History
from tests.views.top.pilot import FakeLink, FakeSamples, Seat, watch

COLUMNS, ROWS = 118, 27
FAILURES = (
    (
        "gpu_oom",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
        "Ask for a card with more memory free (gpu_memory: 40GB), or make the input smaller.",
    ),
    (
        "device_mismatch",
        "RuntimeError: Expected all tensors to be on the same device, but got src is on cuda:3",
        "A card is written into the program: the job's own card is cuda:0. gpulaunch check finds"
        " the line.",
    ),
)


def night() -> History:
    """Sixty structures on four cards, two of which failed; one card is a colleague's."""
    run = History(4).open().jobs(*(f"fold-{n:02}" for n in range(60)))
    run.jobs("summary", group=1, cards=0)
    run.add(f.GpuChanged("GPU-3", "occupied", Quoted("python (pid 4711) of ann, 40 GiB")))
    for n in range(30):
        name = f"fold-{n:02}"
        run.start(name, n % 3).pass_(47 + 11 * math.sin(n))
        if n in (11, 26):
            kind, evidence, advice = FAILURES[n == 26]
            attempt = AttemptId(name, 1)
            run.add(
                f.AttemptEnded(
                    attempt,
                    End(Exited(1), Failure(kind, evidence, (Quoted(advice),))),
                    charged=True,
                )
            )
            run.add(f.JobSettled(name, "failed", Quoted("exited with status 1")))
        else:
            run.succeed(name)
    run.start("fold-30", 0).pass_(9).start("fold-31", 1).pass_(13).start("fold-32", 2)
    return run.pass_(8)


def samples(run: History) -> FakeSamples:
    """What those cards would have shown in the last ten minutes."""
    found, now = FakeSamples(), run.now.utc
    for step in range(200):
        at = now - 600 + 3 * step + 2
        for card in range(3):
            busy = 86 + 12 * math.sin(step / 9 + card) - 70 * (step % 47 == 12 * card)
            memory = int((41 + 9 * card + 6 * math.sin(step / 31 + card)) * 2**30)
            held = ("thermal",) if card == 2 else ()
            found.all.append(
                CardSample(
                    f"GPU-{card}", at, round(busy), memory, 612.0 + 9 * card, 61 + 12 * card, held
                )
            )
        found.all.append(CardSample("GPU-3", at, 34, 40 << 30, 240.0, 48))
    return found


def link() -> FakeLink:
    run = night()
    made = FakeLink(run)
    made.measured = samples(run)
    busy = "waits for a card: GPU 0 is busy with fold-30, GPU 1 with fold-31, GPU 2 with fold-32"
    made.why = {f"fold-{n:02}": busy for n in range(33, 60)}
    made.why["summary"] = "waits for fold-30 and 29 more to end"
    return made


def picture() -> str:
    """The screen as an SVG."""
    drawn = ""

    async def act(seat: Seat) -> None:
        nonlocal drawn
        drawn = seat.app.export_screenshot(title="gpulaunch top")

    watch(link(), act, COLUMNS, ROWS)
    # A picture asks nobody for a font: any fixed-width one will do.
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def words(svg: str) -> list[str]:
    """What the picture says, line by line: colours and ids change with the library's version."""
    rows: dict[float, str] = {}
    for y, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        rows[float(y)] = rows.get(float(y), "") + text
    return [" ".join(rows[y].replace("&#160;", " ").split()) for y in sorted(rows)]


if __name__ == "__main__":
    sys.stdout.write(picture())
