"""Fixtures for every suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import FakeDriver, own_leases


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first: no core is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


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
