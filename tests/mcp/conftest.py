"""Fixtures for the tests of the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.launcher import Launcher


@pytest.fixture
def launcher(launcher: Launcher) -> Iterator[Launcher]:
    """gpulaunch in an empty directory, in which no run stays alive."""
    yield launcher
    launcher("cancel", "--all")
