"""A worker with a real context: item after item without a drain, and its memory back after it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulaunch.core.model import Gpu
from gpulaunch.gpus.discover import ProbeClient, looks
from gpulaunch.gpus.machine import is_free
from tests.cli.launcher import Launcher

pytestmark = pytest.mark.gpu

HOLD = """
    import ctypes, os, sys
    sys.path.insert(0, {folder!r})
    import context

    def load():
        cuda = ctypes.CDLL("libcuda.so.1")
        context.check(cuda.cuInit(0), "cuInit")
        context.allocate(cuda, 4 << 30)
        return context.uuid_of(cuda, 0)

    def act(uuid, item):
        print(os.getpid(), uuid)
        if item.n == "2":
            print("torch.OutOfMemoryError: CUDA out of memory.")
            return False
"""


def test_items_follow_each_other_on_a_real_card(
    launcher: Launcher, client: ProbeClient, free: tuple[Gpu, ...]
) -> None:
    gpu = free[0]
    folder = str(Path(__file__).parent)
    launcher.environ |= {k: v for k, v in os.environ.items() if k.startswith("CUDA_")}
    launcher.file("hold.py", HOLD.format(folder=folder))
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: hold-{{n}}
            matrix: {n: [0, 1, 2, 3, 4, 5]}
            worker: {function: "hold.py:act", load: "hold.py:load", items: 4}
            retries: 1
          - {name: other, after: ["hold-*"], run: echo other}
        """,
    )
    result = launcher("run", "jobs.yaml", "--gpus", gpu.uuid)
    states = launcher.states()
    assert states.pop("hold-2") == "failed", result.err
    assert set(states.values()) == {"succeeded"}, result.err
    said = [launcher.log(f"hold-{n}").split()[:2] for n in range(6)]
    assert [uuid for _, uuid in said] == [gpu.uuid.split("-", 1)[1]] * 6
    assert len({pid for pid, _ in said[:4]}) == 1
    assert len({pid for pid, _ in said}) == 2
    assert len(launcher.jobs()["hold-2"]["attempts"]) == 1
    states_of_card = [e["state"] for e in launcher.events("gpu_changed")]
    assert "aside" not in states_of_card
    assert states_of_card.count("draining") == 3
    assert is_free(looks(client, [gpu])[gpu.uuid]) is None
