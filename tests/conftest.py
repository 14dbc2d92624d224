"""Fixtures for every suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.launcher import Launcher


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """gpulaunch in an empty directory."""
    return Launcher(tmp_path)
