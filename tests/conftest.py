"""Fixtures for every suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import FakeDriver, own_leases


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
