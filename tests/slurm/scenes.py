"""What tests of single histories on the pretend cluster begin with, wait for, and look at."""

from __future__ import annotations

from collections.abc import Callable

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import StopAttempt, StopReason
from gpulaunch.core.model import AttemptId, Exited, Outcome
from tests.slurm.histories import History
from tests.slurm.world import Plan, Task

ENDLESS = 1e6


def attempt(name: str) -> AttemptId:
    return AttemptId(name, 1)


def outcomes(history: History) -> dict[str, Outcome]:
    """By job: how its last attempt ended."""
    return {ended.attempt.job: ended.end.outcome for ended in history.told}


def ends(history: History) -> dict[str, Outcome]:
    """By attempt."""
    return {str(ended.attempt): ended.end.outcome for ended in history.told}


def good(*names: str) -> dict[str, Outcome]:
    return dict.fromkeys(names, Exited(0))


def submissions(history: History) -> int:
    return len(list(history.run.batch_lists.glob("*.id")))


def begun(history: History, count: int) -> Callable[[], bool]:
    return lambda: len(history.cluster.truth.alive) == count


def queued(history: History, count: int) -> Callable[[], bool]:
    return lambda: len(history.queued) >= count


def still_queued(history: History) -> set[str]:
    return {str(task) for task in history.cluster.tasks if not task.over}


def task_of(history: History, attempt: str) -> Task:
    """The job or task that runs it."""
    (found,) = (task for task in history.cluster.tasks if task.attempt == attempt)
    return found


def busy(history: History, *waiting: str) -> None:
    """Three endless jobs have the cards; behind them these wait."""
    for number in range(3):
        history.add(f"a{number}", Plan(ENDLESS))
    history.until(begun(history, 3))
    for name in waiting:
        history.add(name, Plan(1.0))
    history.until(queued(history, 3 + len(waiting)))


def free(history: History) -> None:
    history.cluster.ends("a0", "a1", "a2")


def stop(history: History, name: str, reason: StopReason = "interrupted") -> None:
    history.wanted[name].stopped = True
    history.engine.carry_out(StopAttempt(attempt(name), reason, Quoted("a test")))


def launcher_is_killed(history: History) -> None:
    """What goes on, goes on without one, until `restart`."""
    history.loop.drop("slurm:", "answer ")
