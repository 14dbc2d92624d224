from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.process.client import Spawner
from tests.process.support import Slot


@pytest.fixture
def spawner(keeper: str | None) -> Iterator[Spawner]:
    with Spawner(program=keeper) as spawner:
        yield spawner
        assert spawner.said() == ""


@pytest.fixture
def slot(spawner: Spawner, tmp_path: Path) -> Iterator[Slot]:
    with Slot(spawner, tmp_path) as slot:
        yield slot


@pytest.fixture(scope="session")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build nasty.c with")
    program = tmp_path_factory.mktemp("nasty") / "nasty"
    source = Path(__file__).with_name("nasty.c")
    subprocess.run([compiler, "-O1", "-o", str(program), str(source)], check=True)
    return str(program)
