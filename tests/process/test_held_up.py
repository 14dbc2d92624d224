"""A forked child that ends before it is the job is no end of the job."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from gpulaunch.farside.keeper.attempt import KeeperAttempt


def test_a_child_that_hooks_end_just_before_it_is_reaped_was_not_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reaped = iter([(7, 0)])

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        for found in reaped:
            return found
        raise ChildProcessError

    monkeypatch.setattr(os, "waitpid", waitpid)
    held_up: list[bool] = []
    attempt = SimpleNamespace(
        child=SimpleNamespace(pid=7, ready_by=9.0),
        result=SimpleNamespace(status=None, cause=None),
        alone=True,
        main_ended=lambda: False,  # it was alive a moment ago
        read_child=lambda: None,
        main_reaped=lambda pid, status: pytest.fail("it was taken for the job's end"),
        phase=SimpleNamespace(
            reaped=lambda pid: None, held_up=lambda *, reaped: held_up.append(reaped)
        ),
    )
    KeeperAttempt.reap(attempt)  # type: ignore[arg-type]
    assert held_up == [True]
