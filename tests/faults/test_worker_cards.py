"""Workers on the pretend driver: what one holds is nobody else's, and gone before its card is."""

from __future__ import annotations

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import GIB, FakeDriver

pytestmark = pytest.mark.usefixtures("keeper")  # of both kinds

FOLD = """
    import atexit, os, shutil, sys

    def become(state):
        shutil.copy(state, "next")
        os.replace("next", os.environ["FAKE_NVML_STATE"])

    def load():
        become("busy")
        atexit.register(become, "free")

    def predict(model, item):
        print(os.getpid())
        if item.n == "1":
            print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")
            return False
"""


def test_the_memory_of_a_worker_is_no_strangers_and_its_card_is_free_after_it(
    on_cards: Launcher, driver: FakeDriver
) -> None:
    driver.card(0)
    on_cards.file("free", driver.state.read_text())
    driver.card(0, used=30 * GIB)
    driver.process(0, pid=1, memory=30 * GIB)
    on_cards.file("busy", driver.state.read_text())
    driver.no_processes()
    driver.card(0, used=0)
    on_cards.file("fold.py", FOLD)
    on_cards.file(
        "jobs.yaml",
        """
        jobs:
          - name: fold-{{n}}
            matrix: {n: [0, 1, 2, 3]}
            worker: {function: "fold.py:predict", load: "fold.py:load"}
            retries: 1
          - {name: other, after: ["fold-*"], run: echo other}
        """,
    )
    result = on_cards("run", "jobs.yaml")
    assert result.status == 1, result.err
    states = on_cards.states()
    assert states.pop("fold-1") == "failed"
    assert set(states.values()) == {"succeeded"}
    # A stranger's memory would have had it tried again, elsewhere or later.
    assert len(on_cards.jobs()["fold-1"]["attempts"]) == 1
    (fact,) = [e for e in on_cards.events("attempt_ended") if e["end"].get("failure")]
    assert (fact["job"], fact["end"]["failure"]["kind"]) == ("fold-1", "gpu_oom")
    pids = {on_cards.log(f"fold-{n}").split()[0] for n in range(4)}
    assert len(pids) == 1
    changes = [e["state"] for e in on_cards.events("gpu_changed")]
    assert changes == ["leased", "draining", "leased", "draining", "leased", "free"]
