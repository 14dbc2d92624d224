"""Jobs that are archived are forgotten wherever the core remembers jobs."""

from __future__ import annotations

from msgspec.structs import replace

from gpulaunch.core.events import Archived, Ended, Relisted
from gpulaunch.core.model import End, Exited, MissingOutput
from tests.core.table import Table, attempt, job


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


def test_what_a_failed_job_needs_is_kept_while_another_runs_behind_it() -> None:
    table = Table(1)
    first, fold0 = job("first", gpus=0), job("fold0", needs=("first",), worker="fold")
    table.submit(first, fold0, job("fold1", after=("first",), worker="fold"))
    table.started("first.1")
    table.ended("first.1")
    table.granted(0)
    assert table.started("fold0.1") == ["launch fold1.1 on 0 in fold0.1 behind fold0.1"]
    table.on(Ended(attempt("fold0.1"), End(MissingOutput(("x",), Exited(0))), kept=True))
    table.started("fold1.1")
    assert table.states() == {"first": "succeeded", "fold0": "failed", "fold1": "running"}
    assert table.run.archivable(0) == []
