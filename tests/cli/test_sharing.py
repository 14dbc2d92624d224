"""Jobs that share cards: whole runs on the pretend driver."""

from __future__ import annotations

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import wait_until


@pytest.mark.parametrize("sharing", ["share: true, gpu_memory: 9GB", "per_gpu: 2"])
def test_a_job_waits_for_the_card_that_drains_and_does_not_join_another(
    on_cards: Launcher, driver: FakeDriver, sharing: str
) -> None:
    driver.card(0)
    driver.card(1)
    until = "until [ -e {0} ]; do sleep 0.02; done"
    on_cards.file(
        "jobs.yaml",
        f"""
        defaults: {{{sharing}}}
        jobs:
          - {{name: a, run: "{until.format("a-may-end")}"}}
          - {{name: b, run: "{until.format("b-may-end")}"}}
          - {{name: c, needs: [a], run: "touch b-may-end"}}
        """,
    )
    with on_cards.begun("run", "jobs.yaml") as process:
        wait_until(lambda: len(on_cards.events("attempt_started")) == 2, 40)
        driver.card(0, used=9 * GIB)
        driver.card(1, used=9 * GIB)
        on_cards.file("a-may-end", "")
        wait_until(lambda: on_cards.states()["a"] == "succeeded", 40)
        assert on_cards.states()["c"] == "waiting", "the memory of its card is not back yet"
        driver.card(0, used=0)
        driver.card(1, used=0)
        assert process.wait(60) == 0
    cards = {name: found["attempts"][0]["gpus"] for name, found in on_cards.jobs().items()}
    assert cards["c"] == cards["a"] != cards["b"]
