"""Fixtures for every suite, and what a plain `pytest` leaves out."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.durations import Durations, recorded
from tests.gpus.fake import FakeDriver, own_leases

# The commands that tests start keep their compiled modules: compiling is half of such a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says something about the machine, nothing about the property.
with suppress(ImportError):  # tests/torch runs in an example's environment too, which lacks it
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """A plain `pytest` runs what a change needs; files and directories that are named run whole."""
    config.pluginmanager.register(Durations())
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if not named and not config.option.markexpr:
        config.option.markexpr = "not slow and not cluster"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a cluster and what is slow; the files that take longest begin first."""
    record = recorded()
    for item in items:
        if "slurm_here" in item.fixturenames:
            item.add_marker("cluster")
        file, _, test = item.nodeid.partition("::")
        if test.partition("[")[0] in record[file].slow:
            item.add_marker("slow")
    items.sort(key=lambda item: -record[item.nodeid.partition("::")[0]].clock)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """gpulaunch in an empty directory."""
    return Launcher(tmp_path)


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    """A pretend driver that has no card yet."""
    return FakeDriver(tmp_path)


@pytest.fixture
def on_cards(tmp_path: Path, driver: FakeDriver) -> Launcher:
    """gpulaunch in an empty directory, on the pretend driver's cards."""
    at = tmp_path / "work"
    at.mkdir()
    return Launcher(at, own_leases(driver))
