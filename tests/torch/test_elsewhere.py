"""What holds without torch, and these tests under the torch that an example installs.

GPULAUNCH_TEST_REAL=1 runs them there where this interpreter has no torch of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHER = ROOT / "examples/antibodies/.env/bin/python"
# What pytest and the fixtures need; no other package of this interpreter may shadow the other's.
NEEDED = ("msgspec", "pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments",
          "pytest_timeout", "psutil", "exceptiongroup", "tomli")  # fmt: skip


def test_without_torch_it_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['torch'] = None; import gpulaunch.torch"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: gpulaunch.torch needs torch 2.6 or newer")
    assert "pip install 'gpulaunch[torch]'" in last


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("GPULAUNCH_TEST_REAL") != "1", reason="GPULAUNCH_TEST_REAL != 1")
@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="they run right here")
def test_these_tests_pass_under_the_torch_of_an_example(tmp_path: Path) -> None:
    if not OTHER.exists():
        pytest.skip("examples/antibodies/setup has not been run")
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            continue  # the last two, where Python has them itself
        place = importlib.import_module(name).__file__
        assert place is not None
        found = Path(place).parent if Path(place).stem == "__init__" else Path(place)
        (tmp_path / found.name).symlink_to(found)
    done = subprocess.run(
        [OTHER, "-m", "pytest", "-p", "pytest_timeout", "-p", "no:cacheprovider",
         "-o", "addopts=--strict-markers -W error",  # xdist is not there
         "tests/torch", "-q", "--basetemp", tmp_path / "there"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
