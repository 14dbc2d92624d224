"""Jobs that are archived are forgotten wherever the core remembers jobs."""

from __future__ import annotations

from msgspec.structs import replace

from gpulaunch.core.events import Archived, Relisted
from tests.core.table import Table, job


def test_one_that_waited_for_a_job_that_the_list_had_no_more_is_not_kept_for_it() -> None:
    run = Table(0)
    first, later = job("first", gpus=0), job("later", gpus=0, needs=("first",))
    last = job("last", gpus=0, needs=("first",), after=("later",))
    run.submit(first, later, last)
    run.on(Relisted((), gone=("later",)))
    run.on(Relisted((replace(last, priority=1),)))
    run.started("first.1")
    assert run.ended("first.1") == ["launch last.1 on none"]
    run.started("last.1")
    run.ended("last.1")
    assert run.run._state.jobs.missed
    assert run.run.archivable(0) == ["last"]
    run.on(Archived(("last",), "0001"))
    assert not run.run._state.jobs.missed
