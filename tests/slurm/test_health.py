"""What `gpulaunch doctor` says of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.engines.slurm.health import finding, unconfigured
from gpulaunch.engines.slurm.reading import is_unconfigured
from tests.cli.launcher import Launcher
from tests.slurm.cluster import SEARCHED, Cluster
from tests.slurm.conftest import MakeCluster


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


def test_a_controller_that_is_away_is_said_to_be(own_cluster: MakeCluster) -> None:
    cluster = own_cluster(nodes=1)
    cluster.kill_controller()
    found = finding(cluster.environ)
    assert found is not None
    assert found.level == "warning"
    assert "its controller does not answer: " in found.what
    assert unconfigured(cluster.environ) == ""


@pytest.mark.parametrize("text", [None, "", "no such setting\n"])
def test_without_a_configuration_nothing_is_begun(
    slurm_here: None, tmp_path: Path, text: str | None
) -> None:
    launcher = Launcher(tmp_path, {"PATH": SEARCHED})
    launcher.environ.pop("SLURM_CONF", None)
    if text is not None:
        launcher.environ["SLURM_CONF"] = str(launcher.file("slurm.conf", text))
    launcher.file("jobs.yaml", "jobs: [{run: echo a}]")
    done = launcher("run", "jobs.yaml", "--engine", "slurm", timeout=60)
    assert (done.status, done.out, done.err.count("\n")) == (3, "", 1)
    assert "--engine slurm: Slurm's programs have no configuration that they can use" in done.err
    assert ("SLURM_CONF is not set" in done.err) == (text is None)
    assert not (tmp_path / "gpulaunch-runs").exists()
    found = finding(launcher.environ)
    assert found is not None
    assert "have no configuration that they can use" in found.what


def test_a_configuration_that_is_not_there_is_named(slurm_here: None, tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, {"PATH": SEARCHED, "SLURM_CONF": "/no/such.conf"})
    launcher.file("jobs.yaml", "jobs: [{run: echo a}]")
    done = launcher("run", "jobs.yaml", "--engine", "slurm")
    assert (done.status, done.out, done.err.count("\n")) == (3, "", 1)
    assert "SLURM_CONF is /no/such.conf, which does not exist" in done.err


@pytest.mark.parametrize(
    "why", ["Unable to contact slurm controller", "res_nsearch error: Host name lookup failure"]
)
def test_a_configuration_that_could_not_be_fetched_is_no_lack_of_one(why: str) -> None:
    assert not is_unconfigured(f"error: {why}\nfatal: Could not establish a configuration source")
