"""Lmod and Environment Modules, as Debian has them, with modulefiles of the test's own.

Where they are not unpacked (`tests/modules/setup`), the tests are skipped; they fail where
GPULAUNCH_REQUIRE_MODULES=1.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.modules.programs import ModuleProgram

PLACE = Path(__file__).parents[2] / "build" / "modules"
HOMES = {
    "lmod": "lmod/usr/share/lmod/lmod",
    "environment-modules": "environment-modules/usr/share/modules",
}
NEEDS = {"lmod": "lua5.3", "environment-modules": "tclsh8.6"}

FILES = {
    "tool/1.0": """
        setenv TOOL one
        prepend-path PATH $root/bin
        prepend-path LD_LIBRARY_PATH $root/lib
    """,
    "tool/2.0": """
        setenv TOOL two
        prepend-path PATH $root/bin
    """,
    "mask/1": """
        setenv CUDA_VISIBLE_DEVICES 7
        setenv CUDA_DEVICE_ORDER FASTEST_FIRST
        setenv GPULAUNCH_JOB other
        setenv OMP_NUM_THREADS 99
    """,
    "python/9": """
        setenv PYTHONHOME /nowhere
        setenv VIRTUAL_ENV /nowhere
        prepend-path PATH $root/bin
    """,
    "broken/1": "no-such-command",
}


@pytest.fixture(params=["lmod", "environment-modules"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> ModuleProgram:
    name = request.param
    home = PLACE / HOMES[name]
    if not (home / "init" / "bash").exists() or not shutil.which(NEEDS[name]):
        why = f"{name} is not here: tests/modules/setup"
        if os.environ.get("GPULAUNCH_REQUIRE_MODULES") == "1":
            pytest.fail(f"GPULAUNCH_REQUIRE_MODULES=1, and {why}")
        pytest.skip(why)
    files = tmp_path / "modulefiles"
    for module, text in FILES.items():
        path = files / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#%Module1.0\nset root {tmp_path}/{path.parent.name}\n{text}\n")
    for program_name in ("tool", "python"):
        made = tmp_path / program_name / "bin" / program_name
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text('#!/bin/sh\necho "of the module: $TOOL $*"\n')
        made.chmod(0o755)
    return ModuleProgram(name, home, files)


@pytest.fixture
def launcher(tmp_path: Path, program: ModuleProgram) -> Launcher:
    """gpulaunch as whoever has this module program, and no shell of its own, has it."""
    made = Launcher(tmp_path)
    made.environ = {**program.without(made.environ), **program.named}
    return made
