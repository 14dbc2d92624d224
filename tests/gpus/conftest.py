from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpus.fake import FakeDriver, remove_built


@pytest.fixture
def fake_driver(tmp_path: Path) -> FakeDriver:
    """A pretend driver that has no card yet."""
    return FakeDriver(tmp_path)


@pytest.fixture(scope="session", autouse=True)
def nothing_compiled_stays() -> Iterator[None]:
    yield
    remove_built()
