"""Records the commit in what is built, and compiles the keepers' program for a wheel.

The program (gpulaunch/agent/native) is compiled by GPULAUNCH_CC or `cc`, for this machine. Where
there is neither, or GPULAUNCH_CC is `zig`, the build brings a compiler, PyPI's ziglang, and the
wheel has a program for each of MACHINES. GPULAUNCH_TAG names a release's platforms
(manylinux_2_17_aarch64.musllinux_1_1_aarch64).
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-O2", "-s", "-std=gnu11", "-Wall", "-Wextra"]
FOLDER = Path("gpulaunch", "agent", "native")
COMMIT = Path("gpulaunch", "base", "commit.py")
BUILT_FROM = ["gpulaunch", "hatch_build.py", "pyproject.toml"]
MACHINES = ("x86_64", "aarch64")
ZIG = "ziglang"


class Build(BuildHookInterface):
    def dependencies(self) -> list[str]:
        return [ZIG] if self.target_name == "wheel" and not own_compiler() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            self.record_commit(build_data)
        if self.target_name == "wheel":
            self.add_programs(version, build_data)

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

    def add_programs(self, version: str, build_data: dict[str, Any]) -> None:
        platform = os.environ.get("GPULAUNCH_TAG") or sysconfig.get_platform()
        build_data["tag"] = "py3-none-" + platform.replace("-", "_")
        build_data["pure_python"] = False
        for machine, compiler in compilers().items():
            program = Path(self.root, FOLDER, f"keeper-{machine}")  # an editable install's
            self.compile(compiler, program)
            if version != "editable":
                build_data["force_include"][str(program)] = str(FOLDER / program.name)

    def compile(self, compiler: list[str], program: Path) -> None:
        sources = sorted(map(str, program.parent.glob("*.c")))
        draft = program.with_name(f".{program.name}-{os.getpid()}")  # one may run from the old file
        said = ""
        for static in (["-static"], []):  # a machine may lack a static C library
            command = [*compiler, *FLAGS, *static, "-o", str(draft), *sources, "-lm"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                said = str(error)
                continue
            if done.returncode == 0:
                draft.replace(program)
                return
            said = done.stderr
        sys.exit(f"{said}\n{shlex.join(compiler)} did not compile {FOLDER}: name a C compiler in"
                 " GPULAUNCH_CC, or `zig` for that of PyPI")  # fmt: skip


def own_compiler() -> str:
    """Return the command of a C compiler of this machine; empty if the build is to bring one."""
    asked = os.environ.get("GPULAUNCH_CC") or shutil.which("cc") or ""
    return "" if asked == "zig" else asked


def compilers() -> dict[str, list[str]]:
    """Return what compiles the program for each machine that the wheel has one for."""
    here = os.uname().machine
    if found := own_compiler():
        return {here: shlex.split(found)}
    zig = [sys.executable, "-m", ZIG, "cc", "-target"]
    return {machine: [*zig, f"{machine}-linux-musl"] for machine in {*MACHINES, here}}
