"""What `gpulaunch doctor` says of Slurm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpulaunch.engines.slurm.health import finding
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.xdist_group("slurm")


def test_without_a_program_of_slurms_there_is_nothing_to_say() -> None:
    assert finding({"PATH": "/nonexistent"}) is None


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    for name in ("sbatch", "squeue", "scontrol"):
        (tmp_path / name).symlink_to("/bin/true")
    found = finding({"PATH": str(tmp_path)})
    assert found is not None
    assert (found.level, found.what) == ("warning", "of Slurm's programs scancel not found in PATH")


def test_a_cluster_that_answers_is_named_by_its_version(cluster: Cluster) -> None:
    found = finding(cluster.environ)
    assert found is not None
    assert found.level == "ok"
    assert found.what.startswith("Slurm 2")
    assert "answers" in found.what


def test_a_controller_that_is_away_is_said_to_be(slurm_here: None, tmp_path: Path) -> None:
    path = str(Path(shutil.which("sbatch") or "").parent)
    found = finding({"PATH": path, "SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert found is not None
    assert found.level == "warning"
    assert "its controller does not answer: " in found.what
