"""An attempt is claimed before its node has asked the driver for its cards' names.

What is told of it meanwhile, and where the node fails in between.
"""

from __future__ import annotations

from gpulaunch.core.model import Cancelled, Exited, Lost
from gpulaunch.engines.slurm import following
from gpulaunch.engines.slurm.node_files import NodeStart, read_start
from tests.slurm.histories import History
from tests.slurm.world import Plan, Task


def cards(history: History) -> list[tuple[str, str]]:
    """What was told of each start: the attempt, and its card."""
    return [(str(started.attempt), started.gpus[0].uuid) for _, started in history.begun]


def claimed(history: History) -> bool:
    return (history.run.starts / "j.1").exists()


def task(history: History) -> Task:
    (found,) = (task for task in history.cluster.tasks if task.attempt == "j.1")
    return found


def test_a_start_is_told_with_what_the_driver_calls_its_cards(history: History) -> None:
    history.cluster.driver_takes = 4.0
    history.add("j", Plan(20.0))
    history.until(lambda: claimed(history))
    at = history.loop.now
    history.until(lambda: history.begun)
    assert 4.0 <= history.begun[0][0] - at <= 4.0 + following.RECORDS_INTERVAL
    history.finish()
    assert cards(history) == [("j.1", "GPU-5f")]
    assert [ended.end.outcome for ended in history.told] == [Exited(0)]


def test_a_driver_that_is_never_heard_of_keeps_no_start_from_being_told(history: History) -> None:
    history.cluster.driver_takes = None
    history.add("j", Plan(20.0))
    history.until(lambda: claimed(history))
    at = history.loop.now
    history.until(lambda: history.begun)
    assert history.begun[0][0] - at <= following.CARD_NAMES_TIMEOUT + 2 * following.RECORDS_INTERVAL
    assert cards(history) == [("j.1", "n1/0")]


def test_a_node_that_dies_before_it_knows_its_cards_is_told_as_any_other(history: History) -> None:
    history.cluster.driver_takes = None
    history.add("j", Plan(20.0))
    history.until(lambda: claimed(history))
    history.cluster.driver_takes = 1.0
    history.cluster.fail_node(task(history))
    history.finish()
    assert [type(ended.end.outcome) for ended in history.told] == [Lost, Exited]
    assert cards(history) == [("j.1", "n1/0"), ("j.2", "GPU-5f")]
    assert history.starts("j") == 1


def test_a_launcher_that_comes_in_between_tells_the_cards_once(history: History) -> None:
    history.cluster.driver_takes = 5.0
    history.add("j", Plan(20.0))
    history.until(lambda: claimed(history))
    start = read_start(history.run.starts / "j.1")
    assert isinstance(start, NodeStart)
    assert start.awaits_cards
    history.restart()
    history.finish()
    assert cards(history) == [("j.1", "GPU-5f")]


def test_what_is_cancelled_in_between_is_ended_and_not_withdrawn(history: History) -> None:
    history.cluster.driver_takes = 5.0
    history.add("j", Plan(20.0))
    history.until(lambda: claimed(history))
    history.cancel("j")
    history.finish()
    assert [ended.end.outcome for ended in history.told] == [Cancelled(Exited(143))]
    assert history.starts("j") == 0
