"""Eight torch jobs of unlike sizes on one real card: one at a time, shared, and shared through MPS.

    python -m tests.benchmarks.packing --python /path/with/torch/bin/python [--rounds 2] [--gpu 0]

Together they hold more memory than the card has, so that not all can be on it at once. How much
each may count on is learned (`gpu_memory: auto`) from the first way, in which each was alone. Every
job must succeed at its first attempt. Two lists: of jobs that wait for their CPU, as an embedding
that prepares its batches does, and of jobs that keep the card busy with small kernels. The section
of `python -m tests.benchmarks` takes the interpreter that GPULAUNCH_TEST_TORCH names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from gpulaunch.core.model import Gpu
from gpulaunch.engines.local.mps.system import PROGRAM
from gpulaunch.gpus.discover import find
from gpulaunch.gpus.machine import MIB
from tests.benchmarks import launchers
from tests.explain.test_real import TORCH

JOBS = 8
ALL = 1.1
"""Times the card's memory is what the jobs hold together."""
WIDTHS = 256, 320, 384, 448, 512, 640, 768, 1024
STEPS = 1000
SCRIPT = """
import sys, torch
hold, width, steps = map(int, sys.argv[2:])
torch.manual_seed(width)
torch.set_num_threads(1)
layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 8).half().to("cuda").eval()
held = torch.empty(hold, dtype=torch.uint8, device="cuda").fill_(1)
total = torch.zeros((), device="cuda")

def fed():
    for _ in range(steps):
        batch = torch.randn(8, 128, width).half()
        total.add_(model(batch.to("cuda")).float().abs().mean())
        torch.cuda.synchronize()

def busy():
    batch = torch.randn(8, 128, width).half().to("cuda")
    for _ in range(3):
        model(batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total.add_(model(batch).float().abs().mean())
    for number in range(4 * steps):
        graph.replay()
        if number % 20 == 0:
            torch.cuda.synchronize()

with torch.inference_mode():
    {"fed": fed, "busy": busy}[sys.argv[1]]()
assert total.isfinite().item() and int(held[-1]) == 1
print(total.item())
"""
ENTRY = """\
  - name: embed-{width}
    run: {python} embed.py {kind} {hold} {width} {steps}
"""
ALONE = "one at a time"
WAYS = {
    ALONE: "{share: true, per_gpu: 1}",
    "shared": "{share: true}",
    "shared with MPS": "{share: true, mps: true}",
}
LISTS = {"fed": "that wait for their CPU", "busy": "that keep it busy"}


def measure(quick: bool) -> dict[str, Any]:
    """The section of `python -m tests.benchmarks`."""
    if TORCH is None:
        return {"absent": {"torch": "GPULAUNCH_TEST_TORCH names no interpreter that has it"}}
    cards = find(os.environ).gpus
    if not cards:
        return {"absent": {"card": "there is no card here"}}
    return compare(TORCH, cards[0], rounds=1 if quick else 2, steps=100 if quick else STEPS)


def compare(
    python: str, card: Gpu, rounds: int, steps: int, lists: Sequence[str] = tuple(LISTS)
) -> dict[str, Any]:
    ways = dict(WAYS)
    absent = {}
    if shutil.which(PROGRAM) is None:
        ways.pop("shared with MPS")
        absent["MPS"] = f"there is no {PROGRAM}"
    held = [int(ALL * card.memory * size / sum(range(JOBS + 1))) for size in range(1, JOBS + 1)]
    return {
        "card": card.name,
        "card_gib": _gib(card.memory),
        "held_gib": _gib(sum(held)),
        "jobs": JOBS,
        "absent": absent,
        **{kind: in_turns(python, card, kind, ways, held, rounds, steps) for kind in lists},
    }


def in_turns(
    python: str,
    card: Gpu,
    kind: str,
    ways: dict[str, str],
    held: Sequence[int],
    rounds: int,
    steps: int,
) -> dict[str, Any]:
    """A list in each of the ways, so many times."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        place = Path(name)
        (place / "embed.py").write_text(SCRIPT)
        entries = "".join(
            ENTRY.format(python=python, kind=kind, hold=hold, width=width, steps=steps)
            for hold, width in zip(held, WIDTHS, strict=True)
        )
        for _ in range(rounds):
            for way, defaults in ways.items():
                (place / "jobs.yaml").write_text(f"defaults: {defaults}\njobs:\n{entries}")
                found[way].append(one(place, card))
                print(kind, way, json.dumps(found[way][-1]), file=sys.stderr, flush=True)
    return summary(found)


def one(place: Path, card: Gpu) -> dict[str, Any]:
    """The list once, in seconds of the whole command. Raises RuntimeError unless all succeed."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "gpulaunch", "run", "jobs.yaml", "--gpus", f"{card.index},"]
    done = subprocess.run(
        command, cwd=place, env=launchers.environment(), capture_output=True, text=True, check=False
    )
    took = time.monotonic() - begun
    told = json.loads(
        subprocess.check_output(
            [sys.executable, "-m", "gpulaunch", "status", "--json"],
            cwd=place,
            env=launchers.environment(),
        )
    )
    attempts = [attempt for job in told["jobs"] for attempt in job["attempts"]]
    if done.returncode or len(attempts) != JOBS:
        raise RuntimeError(f"{done.stdout}{done.stderr}{json.dumps(attempts, indent=1)}")
    return {
        "seconds": round(took, 1),
        "at_once": most_at_once([(one["started"], one["ended"]) for one in attempts]),
        "peaks_gib": [_gib(one.get("peak_gpu_memory") or 0) for one in attempts],
        "kilojoules": round((told["run"].get("energy") or 0) / 1000, 1),
    }


def most_at_once(spans: Sequence[tuple[str, str]]) -> int:
    """How many of these times, from start to end, share a moment at most."""
    turns = sorted(
        (datetime.fromisoformat(at), step)
        for begun, ended in spans
        for at, step in ((begun, 1), (ended, -1))
    )
    now = most = 0
    for _, step in turns:
        now += step
        most = max(most, now)
    return most


def summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    seconds = {way: median(one["seconds"] for one in some) for way, some in found.items()}
    alone = seconds[ALONE]
    return {
        "rounds": len(found[ALONE]),
        "seconds": seconds,
        "times_as_fast": {way: round(alone / took, 2) for way, took in seconds.items()},
        "at_once": {way: max(one["at_once"] for one in some) for way, some in found.items()},
        "kilojoules": {
            way: median(one["kilojoules"] for one in some) for way, some in found.items()
        },
    }


def _gib(size: float) -> float:
    return round(size / MIB / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=TORCH, help="an interpreter that has torch")
    parser.add_argument("--gpu", type=int, default=0, help="the card's number")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", action="append", choices=LISTS, help="this list alone")
    asked = parser.parse_args()
    card = next((gpu for gpu in find(os.environ).gpus if gpu.index == asked.gpu), None)
    if card is None or asked.python is None:
        parser.error(f"there is no card {asked.gpu} here, or --python names none with torch")
    lists = asked.only or tuple(LISTS)
    print(json.dumps(compare(asked.python, card, asked.rounds, asked.steps, lists), indent=2))


if __name__ == "__main__":
    main()
