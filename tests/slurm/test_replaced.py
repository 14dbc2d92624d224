"""A job may write wherever its user may: what stands in the place of a record on the shared disk is
that attempt's matter, and neither waited for nor believed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulaunch.core.model import Exited
from tests.slurm.histories import History
from tests.slurm.world import Plan


def _holds(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


MADE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "directory": os.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "list": _holds(b"[]"),
    "empty object": _holds(b"{}"),
    "deep": _holds(b"[" * 100_000),
    "endless": lambda path: path.touch() or os.truncate(path, 1 << 40),
    "wrong kinds": _holds(b'{"withdrawn": [], "by": 1}'),
}


@pytest.mark.parametrize("made", MADE)
def test_a_claim_that_is_none_neither_hangs_nor_ends_the_run(history: History, made: str) -> None:
    history.add("bad", Plan(20.0, 3))
    history.add("good", Plan(90.0))
    history.until(lambda: len(history.cluster.truth.alive) == 2)
    claim = history.run.starts / "bad.1"
    claim.unlink()
    MADE[made](claim)
    history.until(lambda: history.over)
    assert [ended.end.outcome for ended in history.told] == [Exited(3), Exited(0)]
