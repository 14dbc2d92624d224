"""These tests run where torch is, and are skipped elsewhere (see test_elsewhere.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# torch's own, of its own use of Python and of itself.
QUIET = ("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for line in QUIET:
                item.add_marker(pytest.mark.filterwarnings(line))
