"""Builds what a release consists of, from HEAD, in a place that is given. Used by .ci/release."""

import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ("x86_64", "aarch64")
TOOLS = ("build", "pipx", "py-rattler-build", "twine", "uv")
NATIVE = "gpulaunch/agent/native"
PLATFORMS = ".".join(f"manylinux_2_17_{each}.musllinux_1_1_{each}" for each in MACHINES)
EX_USAGE = 64
"""With which the keepers' program refuses a protocol that it does not speak."""


def first(pattern: str, path: Path) -> str:
    """Return what the group of the pattern holds where it fits first in that file."""
    found = re.search(pattern, path.read_text(), re.MULTILINE)
    assert found, f"{path} has nothing like {pattern}"
    return found[1]


def git(*arguments: str) -> str:
    if not shutil.which("git") or not (ROOT / ".git").exists():  # one above is another project's
        sys.exit(f"refused: {ROOT} is no checkout of a repository that git is here to read")
    done = subprocess.run(
        ["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else sys.exit(f"refused: git says {done.stderr}")


class Work:
    """Where it happens: HEAD's files, the tools, and in `dist` what is built."""

    def __init__(self, place: Path) -> None:
        self.place, self.sources, self.dist = place, place / "gpulaunch", place / "dist"
        self.commit = git("rev-parse", "HEAD").strip()
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.environ = {
            **{name: value for name, value in os.environ.items() if name[:9] != "GPULAUNCH"},
            "HOME": str(place / "home"),
            "XDG_CACHE_HOME": str(caches),
            "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").strip(),
            "UV_PYTHON_DOWNLOADS": "never",
            "TWINE_NON_INTERACTIVE": "1",
        }

    def prepare(self) -> None:
        """Lay HEAD's files out, and install the tools."""
        for folder in ("home", "dist"):
            (self.place / folder).mkdir()
        git("archive", "--prefix=gpulaunch/", "-o", str(self.place / "sources.tar"), "HEAD")
        shutil.unpack_archive(self.place / "sources.tar", self.place)
        self.run(sys.executable, "-m", "venv", self.place / "tools")
        self.run(self.tool("pip"), "install", "--quiet", *TOOLS)

    def tool(self, name: str) -> Path:
        return self.place / "tools/bin" / name

    def run(self, *command: object, at: Path | None = None, **environ: str) -> str:
        """Run that and return what it said. Where it fails, end the process with all of it."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=at or self.place,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            words = " ".join(map(str, command))
            sys.exit(f"{done.stdout}\nfailed with status {done.returncode}: {words}")
        return done.stdout

    def files(self, pattern: str = "*") -> list[Path]:
        """Return what was built, by its name's pattern."""
        return sorted(path for path in self.dist.glob(pattern) if path.suffix in (".whl", ".gz"))


def build(work: Work) -> None:
    """Build everything and check it."""
    work.prepare()
    _built(work, work.sources, "--sdist")
    _built(work, work.sources, "--wheel", GPULAUNCH_CC="zig", GPULAUNCH_TAG=PLATFORMS)
    for machine in MACHINES:
        print(f"{machine}: static, {_program_checked(work, machine)}", flush=True)
    for project in sorted(work.sources.glob("plugins/*/pyproject.toml")):
        _built(work, project.parent)
    work.run(work.tool("twine"), "check", "--strict", *work.files())


def _built(work: Work, sources: Path, *options: str, **environ: str) -> None:
    command = ["-m", "build", "--installer", "uv", "--outdir", work.dist, *options, sources]
    work.run(work.tool("python"), *command, **environ)


def _program_checked(work: Work, machine: str) -> str:
    """Return how the keepers' program was tried. It must need no loader, and pass its own test."""
    (wheel,) = work.files("gpulaunch-*.whl")
    program = Path(ZipFile(wheel).extract(f"{NATIVE}/keeper-{machine}", work.place / machine))
    program.chmod(0o755)
    if needs_loader(program.read_bytes()):
        sys.exit(f"{machine}: the keepers' program is not static")
    if machine == platform.machine():
        protocol = first(r'^#define PROTOCOL "(\d+)"', work.sources / NATIVE / "keeper.h")
        work.run(program, "--self-test", protocol)
        return "and its test of itself passes"
    if not (qemu := shutil.which(f"qemu-{machine}")):
        return "not tried"
    # qemu's user mode knows no subreapers: that the program begins and answers is all there is.
    done = subprocess.run([qemu, program, "--self-test", "none"], check=False)
    if done.returncode != EX_USAGE:
        sys.exit(f"{machine}: the keepers' program takes any protocol, or does not begin")
    return "and it begins (under qemu)"


def needs_loader(program: bytes) -> bool:
    """Tell whether an ELF file of 64 bits asks for an interpreter, PT_INTERP (elf(5))."""
    (start,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    return any(struct.unpack_from("<I", program, start + size * n)[0] == 3 for n in range(count))
