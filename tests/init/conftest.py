"""The compiled stand-in for programs, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.init.stage import compiled


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("standin"))
