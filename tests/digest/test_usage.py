"""What attempts used, in words."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpulaunch.core import facts as f
from gpulaunch.core.model import AttemptId, Exited, PinState
from gpulaunch.observe.metrics.model import AttemptUse, Measured
from gpulaunch.observe.present import words
from gpulaunch.observe.present.events import LineFormatter
from gpulaunch.observe.present.usage import (
    never_touched,
    touched,
    untouched,
    use_of_all,
    use_of_one,
)
from tests.views.history import History

A = AttemptId("a", 1)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (AttemptUse(A), ""),
        (AttemptUse(A, cpu_seconds=61.0), "1:01 of CPU time"),
        (AttemptUse(A, cpu_seconds=61.0, energy=450_000.0), "1:01 of CPU time, 125 Wh"),
        (
            AttemptUse(A, peak_gpu_memory=3 * GIB, mean_gpu_utilization=62.6, peak_resident=GIB),
            "GPU memory at most 3 GiB, 63 % utilised, 1 GiB resident",
        ),
        (
            AttemptUse(A, peak_card_memory=3 * GIB, mean_gpu_utilization=5.0),
            "memory of its cards, whoever's, at most 3 GiB, 5 % utilised",
        ),
        (
            AttemptUse(A, peak_gpu_memory=0, peak_card_memory=0, mean_gpu_utilization=0.0),
            "",
        ),
    ],
)
def test_only_what_was_measured_is_mentioned(use: AttemptUse, text: str) -> None:
    assert use_of_one(use) == text


def test_the_whole_runs_energy_is_told_also_where_only_the_newest_attempts_are_known() -> None:
    assert use_of_all(Measured(energy=4_464_000.0)) == "1.24 kWh"
    assert use_of_all(Measured()) == ""


def on_card(**fields: Any) -> AttemptUse:
    """An attempt of 100 seconds on one card, on which the driver named none of its processes."""
    usual = {"gpu_seconds": 100.0, "seconds": 100.0, "told": 99.0, "peak_gpu_memory": 0}
    return AttemptUse(A, **{**usual, "peak_gpu_utilization": 0.0, **fields})


@pytest.mark.parametrize(
    ("use", "known"),
    [
        (on_card(), False),
        (on_card(peak_gpu_memory=5), True),
        (on_card(peak_gpu_memory=None), None),  # the driver names no process
        (on_card(gpu_seconds=None), None),  # a pretend card
        (on_card(gpu_seconds=0.0), None),  # no card
        (on_card(told=70.0), None),  # not looked at for too long
        (on_card(seconds=4.0, told=4.0), None),  # too short
        (on_card(peak_gpu_utilization=40.0), None),  # somebody computed, whom the driver hides
        (on_card(peak_gpu_utilization=None), None),
    ],
)
def test_a_card_is_untouched_only_where_somebody_would_have_seen_it(
    use: AttemptUse, known: bool | None
) -> None:
    assert touched(A, Measured({A: use})) is known


def test_beside_jobs_that_the_driver_names_one_that_it_does_not_was_never_there() -> None:
    beside = on_card(peak_gpu_utilization=40.0)
    assert touched(A, Measured({A: beside}, names_processes=True)) is False
    assert touched(A, Measured()) is None


@pytest.mark.parametrize(
    ("pin", "known"), [("verified", True), ("unverified", None), ("misplaced", None)]
)
def test_a_process_that_was_seen_without_its_memory_was_there(
    pin: PinState, known: bool | None
) -> None:
    assert touched(A, Measured({A: on_card()}, {A: (pin, "")})) is known


def test_jobs_that_never_touched_their_card_are_named_if_they_succeeded() -> None:
    run = History().open().jobs("a", "b", "c")
    uses = {}
    for name, outcome in (("a", Exited(0)), ("b", Exited(1)), ("c", Exited(0))):
        run.start(name, 0).end(name, outcome)
        run.add(f.JobSettled(name, "failed" if outcome.code else "succeeded"))
        who = AttemptId(name, 1)
        uses[who] = replace(on_card(peak_gpu_memory=7 if name == "c" else 0), attempt=who)
    assert untouched(run.ledger, Measured(uses, names_processes=True)) == ["a"]
    assert never_touched(["a", "d"]) == (
        "2 jobs succeeded and were never seen on a card (a, d): did they run on the CPU?"
    )


def test_a_job_that_holds_its_card_unused_is_named_where_it_runs() -> None:
    run = History().open().jobs("a").start("a", 1)
    attempt = run.ledger.jobs["a"].attempts[-1]
    assert words.idle(attempt, run.ledger) == ""
    run.add(f.AttemptIdle(attempt.id, 3665.0, 38 * GIB))
    said = "used 0 % of GPU 1 for 1 h 1 min with 38 GiB held"
    assert words.idle(attempt, run.ledger) == said
    teller = LineFormatter()
    teller.tell(run.facts[0][0], run.now, run.ledger)
    line = teller.tell(run.facts[-1][0], run.now, run.ledger)[-1]
    assert (line.verb, line.subject) == ("idle", "a")
    assert line.detail == f"{said}; gpu_idle: ends such jobs"
