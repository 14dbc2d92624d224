"""The manual pages say what the code says, and are pages that `man` reads without a complaint."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.man import FOLDER, pages

PAGES = pages()
LINTS = {
    "mandoc": ["mandoc", "-Tlint", "-Wwarning"],
    "man": ["man", "--warnings", "--encoding=utf8", "--local-file"],
}


def test_every_page_is_what_the_code_makes_of_it_today() -> None:
    there = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.glob("man*/*")}
    assert there == PAGES, "python -m tests.docs.reference"


@pytest.mark.parametrize("program", LINTS)
def test_the_pages_are_read_without_a_complaint(program: str) -> None:
    if not shutil.which(program):
        if program == "mandoc" and os.environ.get("GPULAUNCH_REQUIRE_MANDOC") == "1":
            pytest.fail("GPULAUNCH_REQUIRE_MANDOC=1, and there is no mandoc")
        pytest.skip(f"no {program} here")
    for name in PAGES:
        argv = [*LINTS[program], str(FOLDER / name)]
        environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        said = done.stdout if program == "mandoc" else ""
        # A date would be today's, or a lie: the page says what the code beside it says.
        lines = [line for line in (said + done.stderr).splitlines() if "missing date" not in line]
        assert lines == [], name


def test_a_page_reads_as_the_help_does() -> None:
    if not shutil.which("man"):
        pytest.skip("no man here")
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "100"}
    argv = ["man", "--local-file", str(FOLDER / "man1" / "gpulaunch-map.1")]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "ls inputs/*.fasta | gpulaunch map 'wc -l < {{path}} > {{out}}/lines'" in lines
    name = "gpulaunch-map - One job per item: CMD once for each ITEM, on whichever card is free"
    assert name in lines


def test_a_wheel_brings_the_pages_to_where_man_looks() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 brings it")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["shared-data"] == {"docs/man": "share/man"}
