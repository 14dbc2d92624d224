"""Good files give jobs, bad files give exactly the messages kept beside them.

After a message was changed on purpose: GPULAUNCH_GOLDEN=write pytest tests/jobfile/test_files.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulaunch.base.errors import JobFileError
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load

HERE = Path(__file__).parent
GOOD = sorted((HERE / "good").glob("*.yaml"))
BAD = sorted((HERE / "bad").glob("*.yaml"))
ENVIRON = {"HOME": "/nonexistent", "PATH": os.defpath}


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_file_gives_jobs_with_unique_names(path: Path) -> None:
    plan = load(path, Surroundings(ENVIRON))
    names = [job.name for job in plan.jobs]
    assert names
    assert len(set(names)) == len(names)
    assert plan.text == path.read_bytes()


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_gives_all_its_mistakes_at_once(path: Path) -> None:
    with pytest.raises(JobFileError) as caught:
        load(path, Surroundings(ENVIRON))
    said = str(caught.value).replace(str(path), path.name).replace(str(path.parent), "HERE") + "\n"
    golden = path.with_suffix(".txt")
    if os.environ.get("GPULAUNCH_GOLDEN") == "write":
        golden.write_text(said)
    assert said == golden.read_text()
    assert caught.value.status == 2
