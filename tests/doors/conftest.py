"""Fixtures for the tests of what comes in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers import own_network


@pytest.fixture
def network() -> Iterator[None]:
    """Names in the kernel that are this test's alone."""
    with own_network():
        yield
