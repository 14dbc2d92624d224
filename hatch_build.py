"""Records the commit in what is built, and compiles the keepers' program for a wheel.

The program (gpulaunch/farside/native) is compiled where there is a C compiler. Without one the
wheel is pure, and Python's keepers do the work. GPULAUNCH_CC names the compiler ("" for none),
GPULAUNCH_TAG a release's platform (manylinux_2_17_aarch64.musllinux_1_1_aarch64).
"""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-O2", "-s", "-std=gnu11", "-Wall", "-Wextra"]
FOLDER = Path("gpulaunch", "farside", "native")
COMMIT = Path("gpulaunch", "commit.py")
BUILT_FROM = ["gpulaunch", "hatch_build.py", "pyproject.toml"]


class Build(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            self.record_commit(build_data)
        if self.target_name == "wheel":
            self.add_program(version, build_data)

    def record_commit(self, build_data: dict[str, Any]) -> None:
        """Have what is built hold a COMMIT that says what it was built from."""
        text = Path(self.root, COMMIT).read_text()
        module = run_path(str(Path(self.root, COMMIT)))
        found = module["commit"]()
        if not module["RECORDED"].startswith("$") or not found:
            return  # recorded, by git archive or when these sources were built; or not known
        if (changed := self.changed()) is not None:
            found = found.removesuffix(module["CHECKOUT"]) + ", with changes" * changed
        self.scratch = TemporaryDirectory()
        recorded = Path(self.scratch.name, COMMIT.name)
        recorded.write_text(text.replace(module["RECORDED"], found, 1))
        build_data["force_include"][str(recorded)] = str(COMMIT)

    def changed(self) -> bool | None:
        """Tell whether what is built differs from the commit; None where git cannot say."""
        command = ["git", "-C", self.root, "status", "--porcelain", "--", *BUILT_FROM]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError:
            return None
        return None if done.returncode else bool(done.stdout)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "scratch"):
            self.scratch.cleanup()

    def add_program(self, version: str, build_data: dict[str, Any]) -> None:
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
        if not compiler:
            return False
        draft = program.with_name(f".keeper-{os.getpid()}")  # a keeper may run from the old one
        said = ""
        for static in (["-static"], []):  # a machine may lack a static C library
            command = [*shlex.split(compiler), *FLAGS, *static, "-o", str(draft), *sources, "-lm"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                said = f"{error}\n"
                continue
            if done.returncode == 0:
                draft.replace(program)
                return True
            said = done.stderr
        self.app.display_warning(f"{said}{compiler} did not compile {FOLDER}: Python does its work")
        return False
