from __future__ import annotations

import pytest

from gpulaunch.diagnose.failure.edge import is_bar


@pytest.mark.parametrize(
    "line",
    [
        " 42%|████▏     | 42/100 [00:01<00:02, 30.1it/s]",
        "epoch 3:   7%|#         | 7/100 [00:00<00:01]",
        "1042it [00:03, 330.00it/s]",
        "Epoch 0 ━━━━━━━━━━━━━╸━━━━━━━━━━ 120/180 0:00:12 • 0:00:05 9.81it/s",
        "313/313 ━━━━━━━━━━━━━━━━━━━━ 1s 2ms/step - loss: 0.29",
        "120/313 [===========>..................] - ETA: 0s - loss: 0.31",
    ],
)
def test_a_state_of_a_progress_bar_is_known(line: str) -> None:
    assert is_bar(line)


@pytest.mark.parametrize(
    "line",
    [
        "Segmentation fault (core dumped)",
        "=========== 1 failed, 3 passed in 0.12s ===========",
        "loss 0.31, 42% of the residues are covered",
        "########## 12 errors ##########",
        "step 120/313 done",
    ],
)
def test_what_only_looks_a_little_like_one_is_not(line: str) -> None:
    assert not is_bar(line)
