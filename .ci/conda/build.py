"""Builds the conda package of the recipe beside this file, and runs the recipe's own tests.

    build.py PLACE WHEEL    PLACE gets everything, the package into PLACE/out/linux-64

py-rattler-build does it, as it does for a public channel. No channel is asked: one is made here of
what pip installs with the wheel, of a `python` that is this one, and of this machine's C compiler.
So it shows that the recipe builds, installs and runs, and that it asks for what pip has; not that a
public channel has all of that too.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from rattler_build import (
    Package,
    Stage0Recipe,
    ToolConfiguration,
    VariantConfig,
    assemble_package,
)
from rattler_build.progress import SimpleProgressCallback

HERE = Path(__file__).resolve().parent
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}[os.uname().machine]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
BUILDING = ("hatch-fancy-pypi-readme", "hatchling", "pip")
VARIANT = {"c_compiler": ["gcc"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.17"]}


class Channel:
    """A folder of packages with its index; what goes into one is staged beside it."""

    def __init__(self, place: Path) -> None:
        self.root, self.folder, self.staged = place, place / SUBDIR, place / "staged"
        self.folder.mkdir(parents=True)

    def add(self, name: str, version: str, depends: list[str], files: Path) -> None:
        assemble_package(
            name, version, SUBDIR, "0", self.folder, files_dir=files, depends=depends,
            compression_level=1,
        )  # fmt: skip

    def index(self) -> None:
        found = {path.name: _indexed(path) for path in self.folder.glob("*.conda")}
        for subdir, packages in ((SUBDIR, found), ("noarch", {})):
            (self.root / subdir).mkdir(exist_ok=True)
            text = json.dumps({"info": {"subdir": subdir}, "packages.conda": packages})
            (self.root / subdir / "repodata.json").write_text(text)


def main() -> None:
    place, wheel = map(Path, sys.argv[1:])
    channel = Channel(place / "channel")
    donor = place / "donor"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, donor], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", donor]
    subprocess.run([*install, wheel, *BUILDING], check=True)
    for one in distributions(path=[str(donor / "lib" / f"python{PYTHON}" / "site-packages")]):
        if one.name != "gpulaunch":
            _add_distribution(channel, one, donor.resolve())
    _add_python(channel, donor)
    _add_compiler(channel)
    channel.index()
    built = Stage0Recipe.from_file(HERE / "recipe.yaml").run_build(
        variant_config=VariantConfig(VARIANT),
        channels=[channel.root.as_uri()],
        output_dir=place / "out",
        progress_callback=SimpleProgressCallback(),
        tool_config=ToolConfiguration(test_strategy="native"),
    )
    package = Package.from_file(built[0].packages[0])
    print(f"{package.filename}: built, installed and run; of channels made here")


def _indexed(path: Path) -> dict[str, object]:
    package, data = Package.from_file(path), path.read_bytes()
    return {
        "name": package.name,
        "version": package.version,
        "build": package.build_string,
        "build_number": package.build_number,
        "depends": package.depends,
        "subdir": SUBDIR,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _add_distribution(channel: Channel, one: Distribution, prefix: Path) -> None:
    name = _conda_name(one.name)
    for file in one.files or ():
        path = Path(one.locate_file(file)).resolve().relative_to(prefix)
        to = channel.staged / name / path
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(prefix / path, to)
    needed = [Requirement(line) for line in one.requires or ()]
    depends = [
        f"{_conda_name(each.name)} {each.specifier}".strip()
        for each in needed
        if each.marker is None or each.marker.evaluate({"extra": ""})
    ]
    channel.add(name, one.version, ["python", *depends], channel.staged / name)


def _conda_name(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def _add_python(channel: Channel, donor: Path) -> None:
    """Add this interpreter, as a virtual environment has it: all but its packages is elsewhere."""
    files = channel.staged / "python"
    (files / "bin").mkdir(parents=True)
    shutil.copy(donor / "pyvenv.cfg", files)
    (files / f"bin/python{PYTHON}").symlink_to(os.path.realpath(sys.executable))
    for name in ("python", "python3"):
        (files / "bin" / name).symlink_to(f"python{PYTHON}")
    channel.add("python", sys.version.split()[0], [], files)


def _add_compiler(channel: Channel) -> None:
    for name, version, path, text in (
        (f"gcc_{SUBDIR}", "12", "etc/conda/activate.d/cc.sh", "export CC=cc\n"),
        (f"sysroot_{SUBDIR}", "2.17", "share/sysroot/none", "this machine's own\n"),
    ):
        (channel.staged / name / path).parent.mkdir(parents=True)
        (channel.staged / name / path).write_text(text)
        channel.add(name, version, [], channel.staged / name)


if __name__ == "__main__":
    main()
