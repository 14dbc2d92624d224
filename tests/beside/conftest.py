"""The environment that tests/beside/setup made.

Where it is not there, or not as the files here say, the tests that need it are skipped; they fail
where GPULAUNCH_REQUIRE_BESIDE=1.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / "build" / "beside"


@pytest.fixture(scope="session")
def beside() -> Path:
    """The directory of the programs that are installed there: `beside / "python"`."""
    if not (PLACE / "installed").exists():
        why = f"{PLACE} is not there: tests/beside/setup makes it"
        if os.environ.get("GPULAUNCH_REQUIRE_BESIDE") == "1":
            pytest.fail(f"GPULAUNCH_REQUIRE_BESIDE=1, and {why}")
        pytest.skip(why)
    return PLACE / "bin"
