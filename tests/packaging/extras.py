"""Measures what an installation and each extra bring, and writes the table of docs/install.md.

python -m tests.packaging.extras        a minute; installs each into a directory of its own

Kilobytes are those of the files that pip installs. Milliseconds are of CPU, for the imports of the
extra's modules and of our own that use them, over a bare interpreter, with the bytecode written;
of ROUNDS processes the least disturbed counts.
"""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution, distributions
from pathlib import Path

from gpulaunch.base.extras import MODULES
from tests.benchmarks import machine
from tests.packaging.support import ROOT, built, repository, sources

DOCUMENT = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- extras: begin -->\n", "<!-- extras: end -->\n"
DEVELOPMENT = {"bench", "docs", "test", "torch"}
"""Extras that are for no command: for gpulaunch's own developers, and people's own programs."""
ROUNDS = 15


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpulaunch-extras-") as name:
        place = Path(name)
        checkout = repository(place / "sources", *sources())
        wheel = built(checkout, place / "wheel", "wheel")
        rows = [*_of_base(wheel, place), *_of_extras(wheel, place)]
    lines = ["| | packages | kB | ms of CPU to import |", "|---|---|---|---|", *rows, ""]
    lines += [f"Measured on: {machine.sentence([machine.describe()])}.", ""]
    before, rest = DOCUMENT.read_text().split(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}{chr(10).join(lines)}{END}{rest.split(END)[1]}")


def _of_base(wheel: Path, place: Path) -> Iterator[str]:
    at = _installed(wheel, "", place)
    own, packages = _kilobytes(at / "gpulaunch"), _packages(at)
    yield _row("`gpulaunch`, and `gpulaunch --version`", 1, own, _ms(at, "import gpulaunch.cli"))
    yield _row("the libraries that it needs, and theirs", len(packages) - 1, _kilobytes(at) - own)
    executor = "from gpulaunch import GpuExecutor"
    yield _row(f"`{executor}`", ms=_ms(at, executor))


def _of_extras(wheel: Path, place: Path) -> Iterator[str]:
    base = place / "base"
    for extra in (*MODULES, "all"):
        at = _installed(wheel, extra, place)
        parts = [name for name in MODULES if _asked(name) <= _asked(extra)]
        modules = [one for name in parts for one in (*_using(name), *MODULES[name])]
        yield _row(
            f"`gpulaunch[{extra}]` in addition",
            len(_packages(at) - _packages(base)),
            _kilobytes(at) - _kilobytes(base),
            _ms(at, f"import {', '.join(modules)}"),
        )


def _asked(extra: str) -> set[str]:
    """The requirements of the extra; those of `all` are some of the others'."""
    lines = distribution("gpulaunch").requires or ()
    return {line.partition(";")[0] for line in lines if f"extra == '{extra}'" in line}


def _row(what: str, packages: int | str = "", size: int | str = "", ms: int | str = "") -> str:
    return f"| {what} | {packages} | {size:,} | {ms} |" if size else f"| {what} | | | {ms} |"


def _installed(wheel: Path, extra: str, place: Path) -> Path:
    """A directory of packages that has what pip installs, and nothing else."""
    at = place / (extra or "base")
    asked = f"gpulaunch[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(at)]
    subprocess.run([*pip, asked], check=True)
    return at


def _packages(at: Path) -> set[str]:
    return {one.name for one in distributions(path=[str(at)])}


def _kilobytes(at: Path) -> int:
    files = (path for path in at.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return round(sum(path.stat().st_size for path in files) / 1000)


def _using(extra: str) -> list[str]:
    """Our modules that import what the extra brings."""
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "gpulaunch").rglob("*.py"))
        if not {name.partition(".")[0] for name in _imports(path)}.isdisjoint(MODULES[extra])
    ]


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _ms(at: Path, statement: str) -> int:
    """Milliseconds of CPU that this import takes with no packages but those there."""
    library = sysconfig.get_path("stdlib")
    bare = f"import sys; sys.path[:] = {[library, f'{library}/lib-dynload', str(at)]!r}"
    codes = bare, f"{bare}; {statement}"
    taken = [min(_spent(code) for _ in range(ROUNDS)) for code in codes]
    return round(1000 * (taken[1] - taken[0]))


def _spent(code: str) -> float:
    """Seconds of CPU that Python takes for that. The first time it writes the bytecode too."""
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-S", "-c", code], env=environ, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
