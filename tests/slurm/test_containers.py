"""Jobs in containers on a cluster's nodes: the engine's line is what the node runs.

apptainer is a pretend one, which the nodes find in the PATH that Slurm hands on.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.slurm.test_runs import SLURM

pytestmark = pytest.mark.slow

FAKES = Path(__file__).parent.parent / "containers" / "fakes"


@pytest.fixture
def launcher(on_slurm: Launcher) -> Launcher:
    on_slurm.environ["PATH"] = f"{FAKES}:{on_slurm.environ['PATH']}"
    (on_slurm.path / "box.sif").write_bytes(b"gpulaunch fake image\n")
    return on_slurm


def test_a_job_sees_the_cards_that_slurm_granted_and_one_without_sees_none(
    launcher: Launcher,
) -> None:
    launcher.file(
        "jobs.yaml",
        """
        defaults: {container: box.sif, env: {MARK: here}}
        jobs:
          - name: card
            gpus: 2
            outputs: ['{{out}}/o']
            run: 'echo "[$CUDA_VISIBLE_DEVICES] $MARK $PWD" > {{out}}/o'
          - name: none
            gpus: 0
            run: 'echo "[$CUDA_VISIBLE_DEVICES]"'
        """,
    )
    record = launcher.path / "calls"
    launcher.environ["FAKE_ENGINE_RECORD"] = str(record)
    done = launcher("run", "jobs.yaml", *SLURM)
    assert done.status == 0, done.err
    seen = (launcher.run / "results" / "card" / "o").read_text()
    assert seen == f"[0,1] here {launcher.path}\n"
    assert launcher.log("none") == "[]\n"
    calls = [json.loads(line) for line in record.read_text().splitlines()]
    assert sorted("--nv" in call for call in calls) == [False, True]


def test_what_a_cluster_cannot_do_is_told_before_anything_is_handed_over(
    launcher: Launcher,
) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: a, container: {image: name, engine: docker}, run: 'true'}
        """,
    )
    done = launcher("run", "jobs.yaml", *SLURM)
    assert done.status == 2
    assert "jobs[0].container: a container of docker is not a descendant of its job" in done.err
