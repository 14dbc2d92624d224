"""Compiles the keepers' program (gpulaunch/farside/native) where there is a C compiler.

Without one the wheel is pure, and Python's keepers do the work. GPULAUNCH_CC names the compiler
("" for none), GPULAUNCH_TAG a release's platform (manylinux_2_17_aarch64.musllinux_1_1_aarch64).
"""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-O2", "-s", "-std=gnu11", "-Wall", "-Wextra"]
FOLDER = Path("gpulaunch", "farside", "native")


class CompiledKeeper(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        folder = Path(self.root, FOLDER)
        program = folder / "keeper"  # an editable install finds it here
        if not self.compiled(sorted(map(str, folder.glob("*.c"))), program):
            program.unlink(missing_ok=True)  # of a build before, from other sources
            return
        platform = os.environ.get("GPULAUNCH_TAG") or sysconfig.get_platform()
        build_data["tag"] = "py3-none-" + platform.replace("-", "_")
        build_data["pure_python"] = False
        if version != "editable":
            build_data["force_include"][str(program)] = str(FOLDER / "keeper")

    def compiled(self, sources: list[str], program: Path) -> bool:
        compiler = os.environ.get("GPULAUNCH_CC", shutil.which("cc") or "")
        draft = program.with_name(f".keeper-{os.getpid()}")  # a keeper may run from the old one
        for static in (["-static"], []):  # a machine may lack a static C library
            command = [*shlex.split(compiler), *FLAGS, *static, "-o", str(draft), *sources, "-lm"]
            if (
                compiler
                and subprocess.run(command, capture_output=True, check=False).returncode == 0
            ):
                draft.replace(program)
                return True
        if compiler:
            self.app.display_warning(f"{compiler} did not compile {FOLDER}: Python does its work")
        return False
