from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mps.pretend import PretendMps


@pytest.fixture
def mps() -> Iterator[PretendMps]:
    """A pretend MPS, in a directory with a short path: its sockets' names have little room."""
    directory = Path(tempfile.mkdtemp(prefix="mps"))
    made = PretendMps(directory)
    yield made
    made.end()
    shutil.rmtree(directory)
