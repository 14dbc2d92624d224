"""What the job of an added command is called."""

from __future__ import annotations

import pytest

from gpulaunch.app import changing


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--lr", "1"], "train"),
        (["torchrun", "--nproc", "2", "train.py"], "train"),
        (["python3", "-m", "lab.train"], "lab.train"),
        (["python3", "-c", "import torch; print(torch)"], "python3"),
        (["python -c 'import torch'"], "python"),
        (["bash", "-c", "python fold.py > log"], "fold"),
        (["LR=1 python fold.py"], "fold"),
        (["/opt/bin/boltz", "predict", "a.yaml"], "boltz"),
        (["./run all.sh"], "run"),
        (["--"], "job"),
    ],
)
def test_it_is_called_as_its_script_or_its_program(command: list[str], name: str) -> None:
    assert changing.stem_of(command) == name
