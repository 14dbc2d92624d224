"""What `gpulaunch doctor` says of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.engines.slurm.health import finding
from gpulaunch.engines.slurm.reading import is_unconfigured
from tests.cli.launcher import Launcher
from tests.slurm.cluster import SEARCHED


def test_without_a_program_of_slurms_there_is_nothing_to_say() -> None:
    assert finding({"PATH": "/nonexistent"}) is None


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    for name in ("sbatch", "squeue", "scontrol"):
        (tmp_path / name).symlink_to("/bin/true")
    found = finding({"PATH": str(tmp_path)})
    assert found is not None
    assert (found.level, found.what) == ("warning", "of Slurm's programs scancel not found in PATH")


def test_without_a_configuration_nothing_is_begun(slurm_here: None, tmp_path: Path) -> None:
    """By what Slurm's own programs say; `test_commands` has a cluster that answers, or does not."""
    for number, text in enumerate((None, "", "no such setting\n")):
        at = tmp_path / str(number)
        at.mkdir()
        launcher = Launcher(at, {"PATH": SEARCHED})
        launcher.environ.pop("SLURM_CONF", None)
        if text is not None:
            launcher.environ["SLURM_CONF"] = str(launcher.file("slurm.conf", text))
        said = check_that_nothing_is_begun(launcher)
        assert "--engine slurm: Slurm's programs have no configuration that they can use" in said
        assert ("SLURM_CONF is not set" in said) == (text is None)
        found = finding(launcher.environ)
        assert found is not None
        assert "have no configuration that they can use" in found.what
    absent = Launcher(tmp_path, {"PATH": SEARCHED, "SLURM_CONF": "/no/such.conf"})
    said = check_that_nothing_is_begun(absent)
    assert "SLURM_CONF is /no/such.conf, which does not exist" in said


def check_that_nothing_is_begun(launcher: Launcher) -> str:
    """What is said instead."""
    launcher.file("jobs.yaml", "jobs: [{run: echo a}]")
    done = launcher("run", "jobs.yaml", "--engine", "slurm", timeout=60)
    assert (done.status, done.out, done.err.count("\n")) == (3, "", 1)
    assert not (launcher.path / "gpulaunch-runs").exists()
    return done.err


@pytest.mark.parametrize(
    "why", ["Unable to contact slurm controller", "res_nsearch error: Host name lookup failure"]
)
def test_a_configuration_that_could_not_be_fetched_is_no_lack_of_one(why: str) -> None:
    assert not is_unconfigured(f"error: {why}\nfatal: Could not establish a configuration source")
