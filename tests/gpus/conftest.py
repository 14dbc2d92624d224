from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpus.fake import FakeDriver


@pytest.fixture
def fake_driver(tmp_path: Path) -> FakeDriver:
    """A pretend driver that has no card yet."""
    return FakeDriver(tmp_path)
