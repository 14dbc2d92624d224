"""Hydra's own suites for launchers, on pretend cards."""

from __future__ import annotations

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)

from hydra_plugins.hydra_gpulaunch_launcher.gpulaunch_launcher import GpulaunchLauncher

PRETEND = "hydra.launcher.simulate=2"


def test_hydra_finds_the_launcher() -> None:
    found = [one.__name__ for one in Plugins.instance().discover(Launcher)]
    assert GpulaunchLauncher.__name__ in found


@pytest.mark.parametrize(("launcher_name", "overrides"), [("gpulaunch", [PRETEND])])
class TestLauncher(LauncherTestSuite):
    pass


@pytest.mark.parametrize(
    ("launcher_name", "overrides"),
    [("gpulaunch", [PRETEND, "hydra.sweeper.max_batch_size=2"])],
)
class TestBatches(BatchedSweeperTestSuite):
    pass


@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"), [({}, ["-m", "hydra/launcher=gpulaunch", PRETEND])]
)
class TestPrograms(IntegrationTestSuite):
    pass
