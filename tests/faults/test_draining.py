"""Lists whose items end their workers, on cards whose memory comes back a while after each end.

GPULAUNCH_TEST_CRASHES says how many such lists are run (2); GPULAUNCH_TEST_SEED which.
"""

from __future__ import annotations

import os
import random
import sys
from textwrap import dedent

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import TAKES, FakeDriver

COUNT = int(os.environ.get("GPULAUNCH_TEST_CRASHES", "2"))
SEED = int(os.environ.get("GPULAUNCH_TEST_SEED", "1"))
DRAIN = 0.3

WORK = f"""
    import os, pathlib, signal, sys, time

    HELD = pathlib.Path(os.environ["FAKE_NVML_STATE"] + ".held")

    def load():
        card = os.environ["GPULAUNCH_GPU_INDEX"]
        for file in HELD.glob(card + ".*"):
            pid, gone = file.name.split(".")[1], file.with_name(file.name + ".gone")
            back = gone.exists() and time.time() - gone.stat().st_mtime >= {DRAIN}
            if not file.name.endswith(".gone") and not back:
                print("the memory of", pid, "was not back", file=sys.stderr)
                os._exit(70)
        (HELD / f"{{card}}.{{os.getpid()}}").write_text(str(1 << 30))

    def act(model, item):
        time.sleep(0.01)
        if item.attempt == "1":
            exec(WAYS[item["item"].partition("-")[0]])
"""
WAYS = {
    "good": "pass",
    "raise": "raise ValueError",
    "kill": "os.kill(os.getpid(), 9)",
    "segv": "os.kill(os.getpid(), 11)",
    "exit": "sys.exit(3)",
    "_exit": "os._exit(3)",
    "zero": "os._exit(0)",
    "lost": "print('CUDA error: an illegal memory access was encountered'); os._exit(1)",
}
"""What an item does at its first attempt, by name."""


def items(generator: random.Random) -> list[str]:
    """The ways of a list's items: most of the lists have few that go well."""
    good = generator.choice([0, 2, 10])
    ways = generator.choices(list(WAYS), [good, *[1] * (len(WAYS) - 1)], k=14)
    return [f"{way}-{number}" for number, way in enumerate(ways)]


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_whatever_items_do_to_their_workers_the_list_ends_and_none_begins_on_a_draining_card(
    on_cards: Launcher, driver: FakeDriver, seed: int
) -> None:
    generator = random.Random(seed)
    for index in range(2):
        driver.card(index, drain=DRAIN)
    on_cards.file("work.py", f"{dedent(WORK)}\nWAYS = {WAYS}\n")
    on_cards.file(
        "jobs.yaml",
        f"""
        defaults: {{grace: 1s, retries: 2}}
        jobs:
          - name: "{{{{item}}}}"
            foreach: {{values: {items(generator)}}}
            worker: {{function: "work.py:act", load: "work.py:load"}}
          - name: alone-{{{{n}}}}
            matrix: {{n: [1, 2, 3]}}
            run: |
              {TAKES}
          - name: shared-{{{{n}}}}
            matrix: {{n: [1, 2, 3, 4]}}
            share: true
            gpu_memory: 10GB
            run: |
              {TAKES}
          - name: server
            service: {{ready: "tcp:{{{{port}}}}"}}
            run: |
              {TAKES}
              {sys.executable} -m http.server {{{{port}}}} --bind 127.0.0.1
          - name: client-{{{{n}}}}
            matrix: {{n: [1, 2]}}
            needs: [server]
            run: |
              {TAKES}
        """,
    )
    result = on_cards("run", "jobs.yaml", "--breaker", "0", timeout=90)
    assert result.status == 0, result.err + str(on_cards.states())
    for name, job in on_cards.jobs().items():
        assert len(job["attempts"]) <= 6, f"{name} was launched {len(job['attempts'])} times"
