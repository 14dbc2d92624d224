"""Jobs that are archived are forgotten wherever the core remembers jobs."""

from __future__ import annotations

from gpulaunch.core.events import Archived, Relisted
from gpulaunch.core.facts import JobAdded
from tests.core.table import Table, job


def test_one_that_came_after_a_job_that_is_back_is_not_linked_to_it_any_more() -> None:
    run = Table(0, cpus=2)
    first, later = job("first", gpus=0), job("later", gpus=0, needs=("first",))
    last = job("last", gpus=0, after=("later",))
    run.submit(first, later, last)
    run.on(Relisted((job("last", gpus=0, after=("later",), priority=1),), gone=("later",)))
    run.started("last.1")
    run.ended("last.1")
    assert run.run.archivable(0) == ["last"]
    run.on(Archived(("last",), "0001"))
    run.facts.clear()
    run.on(Relisted((later,)))
    assert [fact.name for fact in run.facts if isinstance(fact, JobAdded)] == ["later"]
    assert not run.run._state.jobs.nodes["later"].followers
    assert not run.run._state.jobs.missed
