"""Awkward programs behave forked as they do cold: an empty difference.

Each program of `awkward/` runs twice under the same keepers: executed, and forked from a server
that has imported a good part of the standard library. Log, status and leftovers must be equal. On
the oldest and the newest Python that is here, the rarer ways to be started on the newest alone;
GPULAUNCH_TEST_PYTHONS=all: everything on every one.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpulaunch.core.model import Exited
from gpulaunch.engines.local.preloads import forkable
from tests.explain.support import ALL, ENDS
from tests.process.preloaded import Twice, in_shell, twice

HERE = Path(__file__).with_name("awkward")
EVERY = os.environ.get("GPULAUNCH_TEST_PYTHONS") == "all"
PYTHONS = ALL if EVERY else ENDS
NEWEST = ALL if EVERY else ALL[-1:]
# What programs import most, and what looks at the process when it is imported.
MODULES = (
    "json", "logging", "random", "asyncio", "unittest", "decimal", "multiprocessing.pool",
    "multiprocessing.synchronize", "concurrent.futures.process", "tempfile", "uuid",
)  # fmt: skip
# Texts that no other tool that reads this repository's Python should meet.
TEXTS = {
    "cookie": b"# -*- coding: latin-1 -*-\nprint(len('\xe4'), ascii('\xe4'))\n1/0 # \xe4\n",
    "mark": b"\xef\xbb\xbf# a mark first\nprint(ascii('\xc3\xa4'), __doc__)\n",
    "windows": b"print('of windows')\r\nraise OSError(1, 'x')\r\n",
    "indentation": b"print('before')\nif True:\nprint('bad')\n",
    "syntax": b"def f(:\n  pass\n",
    "bytes": b"x = '\xff\xfe'\n",
    "nothing": b"",
}
ENDINGS = sorted(set(re.findall(r'case == "([a-z-]+)"', (HERE / "ends.py").read_text())))
ENDINGS = [case for case in ENDINGS if case != "other"]
STATES = sorted(set(re.findall(r'case == "([a-z-]+)"', (HERE / "state.py").read_text())))


def version(python: str) -> str:
    return Path(python).parents[1].name


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Twice]]:
    """A bench for each interpreter."""
    with ExitStack() as stack:
        found = {}
        for python in PYTHONS:
            folder = tmp_path_factory.mktemp("awkward")
            shutil.copytree(HERE, folder / "awkward")
            for name, text in TEXTS.items():
                (folder / "awkward" / f"{name}.py").write_bytes(text)
            environ = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "3"}
            found[python] = stack.enter_context(twice(folder, MODULES, environ))
        yield found


@pytest.fixture
def bench(benches: dict[str, Twice], python: str) -> Twice:
    return benches[python]


everywhere = pytest.mark.parametrize("python", PYTHONS, ids=version)
on_the_newest = pytest.mark.parametrize("python", NEWEST, ids=version)


def alike(
    bench: Twice, *argv: str, cwd: Path | None = None, shell: bool = False, leftovers: bool = True
) -> str:
    """The log, the same of both. Helpers of multiprocessing end at about the time of a sweep."""
    cwd = cwd or bench.folder / "awkward"
    command = in_shell(argv[0]) if shell else argv
    cold, forked = bench.cold(command, cwd), bench.forked(command, cwd, shell)
    assert forked.log == cold.log
    assert (forked.outcome, leftovers and forked.leftovers) == (
        cold.outcome,
        leftovers and cold.leftovers,
    )
    return cold.log


@everywhere
@pytest.mark.parametrize("case", ENDINGS)
def test_it_ends_alike(bench: Twice, python: str, case: str) -> None:
    assert "begins" in alike(bench, python, "ends.py", case)


@everywhere
@pytest.mark.parametrize("case", STATES)
def test_it_finds_the_same_state(bench: Twice, python: str, case: str) -> None:
    assert alike(bench, python, "state.py", case)


@everywhere
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_it_starts_processes_alike(bench: Twice, python: str, method: str) -> None:
    assert alike(bench, python, "processes.py", method, leftovers=False).endswith("\n5\n")


@on_the_newest
@pytest.mark.parametrize("name", [*TEXTS, "inside", "annotations", "future"])
def test_its_text_is_read_alike(bench: Twice, python: str, name: str) -> None:
    assert alike(bench, python, f"{name}.py") or name == "nothing"


WAYS = [
    ["./who.py", "a b", "", "--", "-x", "ä"],
    ["beside/script.py", "1"],
    ["folder", "x"],
    ["-m", "package.tool", "x"],
]
RARE_WAYS = [
    ["who.py"],
    ["../awkward/who.py"],
    ["-u", "who.py"],
    ["-OO", "ends.py", "assert"],
    ["-W", "error", "who.py"],
    ["-Werror", "ends.py", "warned"],
    ["-X", "faulthandler", "-bs", "who.py"],
    ["-Xutf8", "state.py", "locale"],
    ["shadow/script.py"],
    ["-m", "package", "x"],
    ["-m", "who", "x"],
    ["-m", "json.tool", "/nowhere"],
    ["-m", "no_such_module"],
    ["-m", "package.nothing"],
]


@everywhere
@pytest.mark.parametrize("argv", WAYS, ids=" ".join)
def test_it_is_started_alike(bench: Twice, python: str, argv: list[str]) -> None:
    assert alike(bench, python, *argv)


@on_the_newest
@pytest.mark.parametrize("argv", RARE_WAYS, ids=" ".join)
def test_it_is_started_alike_in_rarer_ways(bench: Twice, python: str, argv: list[str]) -> None:
    assert alike(bench, python, *argv)


@on_the_newest
def test_in_development_mode(bench: Twice, python: str) -> None:
    if "/3.8." in python:
        pytest.skip("Python 3.8 cannot fork there, and the server says so")
    assert "dev_mode=True" in alike(bench, python, "-X", "dev", "who.py")


@on_the_newest
def test_by_an_absolute_path_from_elsewhere(bench: Twice, python: str) -> None:
    script = bench.folder / "awkward" / "beside" / "script.py"
    assert "neighbour.py" in alike(bench, python, str(script), cwd=bench.folder)


@on_the_newest
def test_in_another_directory_than_the_server_began_in(bench: Twice, python: str) -> None:
    script = str(bench.folder / "awkward" / "processes.py")
    argv, cwd = (python, script, "spawn"), bench.folder
    found = forkable(argv, str(cwd), bench.env, False)
    forked = bench.run(bench.slot(found, Path("/")), argv, cwd, found)
    assert forked.log == bench.cold(argv, cwd).log


@on_the_newest
def test_through_links(bench: Twice, python: str) -> None:
    place = bench.folder / "awkward"
    (place / "link.py").symlink_to("beside/script.py")
    assert "neighbour.py" in alike(bench, python, "link.py")
    (bench.folder / "elsewhere").symlink_to(place)
    assert "neighbour.py" in alike(bench, python, "elsewhere/link.py", cwd=bench.folder)


@on_the_newest
def test_from_an_archive(bench: Twice, python: str) -> None:
    with zipfile.ZipFile(bench.folder / "awkward" / "app.zip", "w") as archive:
        archive.write(HERE / "folder" / "__main__.py", "__main__.py")
    assert "of a folder" in alike(bench, python, "app.zip", "x")


@on_the_newest
@pytest.mark.parametrize(
    "script",
    ["{python} who.py 'a b' \"c d\" e\\ f", "exec {python} who.py", "MINE='x y' {python} who.py"],
)
def test_as_a_simple_command_of_the_shell(bench: Twice, python: str, script: str) -> None:
    assert alike(bench, script.format(python=python), shell=True)
    environment = script.replace("who.py", "state.py environment").format(python=python)
    assert alike(bench, environment, shell=True)


@on_the_newest
def test_as_a_console_script(bench: Twice, python: str) -> None:
    program = bench.folder / "awkward" / "tool"
    program.write_text(f"#!{python} -u\n" + (HERE / "who.py").read_text())
    program.chmod(0o755)
    assert "tool" in alike(bench, "./tool", "fold", "--out", "x")
    program.write_text(
        f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport sys\nprint(sys.argv)\n"
    )
    assert "tool" in alike(bench, str(program), "fold")


@on_the_newest
def test_what_is_found_in_the_path_is_the_same(python: str, tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "awkward")
    places = f"{tmp_path}/awkward:{Path(python).parent}:/usr/bin:/bin"
    program = tmp_path / "awkward" / "tool"
    program.write_text("#!/usr/bin/env python3\n" + (HERE / "who.py").read_text())
    program.chmod(0o755)
    with twice(tmp_path / "bench", ["json"], {"PATH": places}) as bench:
        bench.folder = tmp_path
        assert "tool" in alike(bench, "tool", "x")
        assert alike(bench, "python", "who.py")
        assert alike(bench, "python3 who.py", shell=True)


@on_the_newest
def test_with_buffers(python: str, tmp_path: Path) -> None:
    """Without PYTHONUNBUFFERED: what is flushed when, and what is lost."""
    shutil.copytree(HERE, tmp_path / "awkward")
    with twice(tmp_path / "bench", MODULES, {"PYTHONHASHSEED": "0", "LANG": "C"}) as bench:
        bench.folder = tmp_path
        for case in ("order", "streams", "locale", "environment", "hash"):
            assert alike(bench, python, "state.py", case)
        for case in ("at-once", "closed", "closed-below", "pipe-at-exit", "fork", "killed"):
            alike(bench, python, "ends.py", case)


@on_the_newest
def test_in_a_virtual_environment(python: str, tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "awkward")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(python)
    (venv / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\n")
    with twice(tmp_path / "bench", ["json"]) as bench:
        bench.folder = tmp_path
        log = alike(bench, str(venv / "bin" / "python"), "who.py")
        assert f"{venv} {venv}" in log


@everywhere
def test_two_jobs_draw_different_numbers(bench: Twice, python: str) -> None:
    script = bench.folder / "awkward" / "draws.py"
    script.write_text("import random, uuid, tempfile\nprint(random.random(), uuid.uuid4())\n")
    logs = {bench.forked((python, "draws.py"), script.parent).log for _ in range(3)}
    assert len(logs) == 3


@everywhere
def test_the_suite_would_see_a_difference(bench: Twice, python: str) -> None:
    script = bench.folder / "awkward" / "differs.py"
    script.write_text("import sys\nprint('decimal' in sys.modules)\n")
    logs = [run((python, "differs.py"), script.parent).log for run in (bench.cold, bench.forked)]
    assert logs == ["False\n", "True\n"]
    assert bench.forked((python, "differs.py"), script.parent).outcome == Exited(0)
