"""What the job of an added command is called, and where it goes if a queue moves meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.journal.rundir import RunDir
from gpulaunch.run import edit
from gpulaunch.run.control_protocol import Add, GivenNames, NoAnswerError


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
    assert edit.stem_of(command) == name


def test_jobs_that_a_full_directory_of_a_queue_refuses_are_added_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, later = RunDir(tmp_path / "queue"), RunDir(tmp_path / "queue-2")
    asked: list[tuple[str, str]] = []

    def call(run: str, asking: Add, *more: object) -> object:
        asked.append((run, asking.addition))
        if run == "queue":
            raise NoAnswerError("it only writes its report")
        return GivenNames(("a",))

    for name, stand_in in {
        "_where": lambda run, observer: full,
        "living_queue": lambda: later,
        "queue_dirs": lambda: [later, full],
        "require_own": lambda run: None,
        "own_id": lambda run: run.path.name,
        "additions_in": lambda events: iter(()),
        "call": call,
    }.items():
        monkeypatch.setattr(edit, name, stand_in)
    added = edit.add("{}", "add", tmp_path)
    assert (added.run, added.names) == (later, ("a",))
    assert [run for run, _ in asked] == ["queue", "queue-2"]
    assert len({addition for _, addition in asked}) == 1
    monkeypatch.setattr(edit, "living_queue", lambda: None)
    with pytest.raises(NoAnswerError):
        edit.add("{}", "add", tmp_path)
