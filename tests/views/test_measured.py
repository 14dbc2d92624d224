"""What attempts used, in words."""

from __future__ import annotations

import pytest

from gpulaunch.core.model import AttemptId
from gpulaunch.digest.usage import use_of_one
from gpulaunch.metrics.model import AttemptUse

A = AttemptId("a", 1)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (AttemptUse(A), ""),
        (AttemptUse(A, cpu_seconds=61.0), "1:01 of CPU time"),
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
