from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.process import native
from gpulaunch.process.client import Spawner
from tests.process.support import Slot, compiled


@pytest.fixture(params=["python", "native"])
def keeper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The keepers' program, as `Spawner` takes it, in turns; also for processes started here."""
    monkeypatch.setenv("GPULAUNCH_KEEPER", request.param)
    if request.param == "python":
        return None
    if os.environ.get("GPULAUNCH_TEST_SANITIZE"):
        monkeypatch.setattr(native, "PROGRAM", request.getfixturevalue("sanitized"))
    if not native.PROGRAM.exists():
        pytest.skip("the keepers' program was not built here (no C compiler)")
    choice = native.choose_keeper()
    assert choice.program, choice
    return choice.program


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keepers' program, which ends with words on standard error when it errs."""
    folder = native.PROGRAM.parent
    return compiled(tmp_path_factory.mktemp("sanitized") / "keeper", sorted(folder.glob("*.c")))


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
