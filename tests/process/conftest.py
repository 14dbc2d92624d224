from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.engines import programs
from gpulaunch.engines.client import Spawner
from tests.process.support import Slot, compiled


@pytest.fixture
def spawner(keeper: str) -> Iterator[Spawner]:
    with Spawner(keeper) as spawner:
        yield spawner
        assert spawner.said() == ""


@pytest.fixture
def slot(spawner: Spawner, tmp_path: Path) -> Iterator[Slot]:
    with Slot(spawner, tmp_path) as slot:
        yield slot


@pytest.fixture(scope="session")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The keepers' program, some of whose calls of the system are changed: see wrapped.c."""
    sources = [Path(__file__).with_name("wrapped.c"), *programs.PROGRAM.parent.glob("*.c")]
    changes = [f"-Wl,--wrap={call}" for call in ("fork", "kill", "fallocate")]
    return str(compiled(tmp_path_factory.mktemp("wrapped") / "keeper", sources, *changes))


@pytest.fixture(scope="session")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build nasty.c with")
    program = tmp_path_factory.mktemp("nasty") / "nasty"
    source = Path(__file__).with_name("nasty.c")
    subprocess.run([compiler, "-O1", "-o", str(program), str(source)], check=True)
    return str(program)
