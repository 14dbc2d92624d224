"""What Slurm is told of tasks that are held together."""

from __future__ import annotations

from gpulaunch.engines.slurm.attempt import ranges


def test_tasks_that_follow_each_other_are_one_term() -> None:
    ids = ["7", "12_3", "9_0", "12_4", "12_5", "12_8", "12_11", "12_10"]
    assert ranges(ids) == [
        ("7", ["7"]),
        ("12_[3-5]", ["12_3", "12_4", "12_5"]),
        ("12_8", ["12_8"]),
        ("12_[10-11]", ["12_10", "12_11"]),
        ("9_0", ["9_0"]),
    ]
