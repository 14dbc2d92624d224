from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from gpulaunch.journal.rundir import RunDir


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "fold", datetime(2026, 11, 20, 7, 42, 15))
