"""The probe: a small job that goes first and tells whether the nodes see the run directory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpulaunch.core.model import Exited, Interrupted
from gpulaunch.engines.slurm import standstill
from tests.slurm.histories import History
from tests.slurm.scenes import attempt, good, outcomes, still_queued, submissions
from tests.slurm.world import Plan, Task

CANNOT_OPEN_ITS_OUTPUT = 53  # a signal, as 22.05 has it
UNFIT = 78 << 8


@pytest.fixture(autouse=True)
def calm(history: History) -> None:
    """Nothing goes wrong but what a test has go wrong."""
    history.calm = True


def longest(minutes: int) -> Callable[[Task], str]:
    """Of a partition that gives no more time: why a task is not begun."""

    def why(task: Task) -> str:
        return "PartitionTimeLimit" if task.minutes > minutes else ""

    return why


def test_the_nodes_are_looked_at_once_in_a_run(history: History) -> None:
    for number in range(3):
        history.add(f"j{number}", Plan(1.0))
        history.until(lambda: history.over)
        history.restart()
    assert history.cluster.submissions == 4
    history.finish()


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (CANNOT_OPEN_ITS_OUTPUT, "", "{run} is not to be seen on node n1: "),
        (UNFIT, "no such thing\n", "node n1 cannot run jobs of this run: no such thing"),
    ],
    ids=["is not seen", "cannot be used"],
)
def test_a_run_directory_that_the_nodes_cannot_use_stops_the_run_with_a_line(
    history: History, status: int, said: str, why: str
) -> None:
    history.cluster.probe_fails = status, said
    history.add("j", Plan(1.0))
    history.until(lambda: bool(history.asked_to_stop))
    (asked,) = history.asked_to_stop
    assert asked.startswith(why.format(run=history.run.path))
    history.stop()
    history.finish()
    assert isinstance(outcomes(history)["j"], Interrupted)
    assert not history.cluster.truth.began
    assert submissions(history) == 1


def test_where_the_nodes_seem_to_see_nothing_no_more_is_handed_over(history: History) -> None:
    """Newer versions make a missing directory on the node, and what is said there is not seen."""
    history.cluster.probe_fails = UNFIT, ""
    history.add("j", Plan(1.0))
    history.until(lambda: bool(history.told))
    assert isinstance(history.told[0].end.outcome, Interrupted)
    history.passes(0.8 * standstill.PROBE_FILE_TIMEOUT)
    assert submissions(history) == 1
    history.run.seen.touch()  # it was late, that is all
    history.finish()
    assert outcomes(history) == good("j")
    assert submissions(history) == 2
    assert not history.asked_to_stop


def test_the_nodes_are_looked_at_where_a_job_is_given_no_more_than_a_minute(
    history: History,
) -> None:
    history.cluster.keeps = longest(1)
    history.add("j", Plan(1.0))
    history.add("late", Plan(1.0), timeout=60.0)
    words = "asks for more time than its partition gives: a shorter timeout:, or another partition"
    history.until(lambda: f"{words} (PartitionTimeLimit)" in history.engine.why(attempt("late")))
    history.until(lambda: bool(history.told))
    assert outcomes(history) == good("j")
    history.cluster.keeps = longest(1000)
    history.finish()


def test_one_that_can_never_start_is_said_and_what_waits_for_it_says_so(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill, "PROBE_TIME_LIMIT", "5")
    history.cluster.keeps = longest(2)
    history.add("j", Plan(1.0))
    history.until(lambda: " (PartitionTimeLimit)" in history.engine.why(attempt("j")))
    why, (first, _) = history.engine.why(attempt("j")), history.cluster.tasks
    said = f"the probe of the run directory, {first}, goes first; it waits: asks for more time"
    assert said in why
    assert why.endswith(" (Dependency)")
    history.until(lambda: bool(history.warned))
    assert history.warned[0].startswith(
        f"the probe of the run directory, Slurm job {first}, does not start, and nothing of the"
        " run before it: asks for more time"
    )
    assert history.warned[0].endswith(" (PartitionTimeLimit)")
    history.cluster.keeps = longest(1000)
    history.finish()
    assert outcomes(history) == {"j": Exited(0)}


def test_a_run_that_is_stopped_leaves_none_in_the_queue(history: History) -> None:
    """Its partition starts nothing, and would begin it some day."""
    history.cluster.keeps = lambda task: "PartitionDown"
    history.add("j", Plan(1.0))
    history.until(lambda: len(still_queued(history)) == 2)
    history.stop()
    history.until(lambda: history.over)
    assert len(still_queued(history)) == 1
    history.restart()
    history.passes(1.0)
    assert not still_queued(history)
