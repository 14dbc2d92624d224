"""What a live run imports late is imported early, and what its jobs use is copied."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.agent.client import PROGRAM
from gpulaunch.base.loop import Loop
from gpulaunch.core.model import Demand, Job
from gpulaunch.engines.programs import PACKAGE, Programs, needs_programs
from gpulaunch.run import code_watch
from tests.helpers import wait_until

IMPORTED_IN_FUNCTIONS = """
import ast, importlib, importlib.util, inspect, sys
from gpulaunch.run import session
from gpulaunch.run.code_watch import LATER
for name in (*LATER, *sys.argv[1:]):
    importlib.import_module(name)
ours = {name: module for name, module in sys.modules.items() if name.startswith("gpulaunch.")}
for name, module in sorted(ours.items()):
    functions = [node for node in ast.walk(ast.parse(inspect.getsource(module)))
                 if isinstance(node, ast.FunctionDef)]
    for node in [node for function in functions for node in ast.walk(function)]:
        found = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for one in found:
            if one.startswith("gpulaunch.") and one not in sys.modules:
                try:
                    there = importlib.util.find_spec(one)
                except ModuleNotFoundError:
                    there = None
                if there:
                    print(name, one)
"""
LOADED = (
    "gpulaunch.engines.local.engine",
    "gpulaunch.engines.slurm.engine",
    "gpulaunch.observe.terminal.progress",
    "gpulaunch.observe.terminal.progress",
    "gpulaunch.cli.run",
    "gpulaunch.cli.terminal",
    "gpulaunch.cli.output",
)
"""What is imported before the run begins, where it is needed at all."""
NOT_IN_THE_RUN = (
    "gpulaunch.jobfile.config",
    "gpulaunch.cli ",
    "gpulaunch.cli.completion ",
    "gpulaunch.cli.run ",
    "gpulaunch.cli.options ",
    "gpulaunch.cli.terminal ",
    "gpulaunch.cli.output gpulaunch.run.check",
    "gpulaunch.cli.output gpulaunch.observe.terminal.plan",
    "gpulaunch.observe.report.writing gpulaunch.observe.report.write",
)
"""Imported in functions that are called before the run begins, or in a process of its own."""


def test_what_a_live_run_imports_in_functions_is_imported_early() -> None:
    command = [sys.executable, "-c", IMPORTED_IN_FUNCTIONS, *LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    late = [line for line in done.stdout.splitlines() if not line.startswith(NOT_IN_THE_RUN)]
    assert late == []


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_the_rest_is_imported_a_while_after_the_start(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_watch, "IMPORT_AFTER", 0.01)
    monkeypatch.setattr(code_watch, "LATER", ("tests.app.played",))
    monkeypatch.delitem(sys.modules, "tests.app.played", raising=False)
    said: list[str] = []
    forget = code_watch.import_the_rest(loop, said.append)
    assert "tests.app.played" not in sys.modules
    wait_until(lambda: loop.turn(block=False) or "tests.app.played" in sys.modules)
    forget()
    assert said == []


def test_what_cannot_be_imported_is_told(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_watch, "IMPORT_AFTER", 0.01)
    monkeypatch.setattr(code_watch, "LATER", ("gpulaunch.no_such_module",))
    said: list[str] = []
    code_watch.import_the_rest(loop, said.append)
    wait_until(lambda: loop.turn(block=False) or said)
    assert "No module named 'gpulaunch.no_such_module'" in said[0]


# ── Copies ──────────────────────────────────────────────────────────────────────────────────────


def test_programs_are_copied_at_the_first_need_and_removed_with_older_copies(
    tmp_path: Path,
) -> None:
    for left in ("programs.1/agent", "programs.of.mine"):
        (tmp_path / left).mkdir(parents=True)
    programs = Programs(str(tmp_path / "programs.2"))
    assert programs.now(PROGRAM) == PROGRAM
    copy = Path(programs.at(PROGRAM))
    assert copy == tmp_path / "programs.2/agent/__main__.py"
    assert programs.now(PROGRAM) == str(copy)
    assert copy.read_bytes() == Path(PROGRAM).read_bytes()
    assert not list(copy.parent.rglob("*.c"))
    assert (tmp_path / "programs.2/diagnose/explain/inject/sitecustomize.py").exists()
    programs.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["programs.of.mine"]
    assert programs.now(PROGRAM) == PROGRAM


def test_a_program_of_a_copy_runs(tmp_path: Path) -> None:
    line = Programs(str(tmp_path / "programs.1")).command("worker")
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert f'File "{tmp_path}/programs.1/agent/worker/__init__.py"' in ended.stderr


def test_where_nothing_can_be_copied_the_installed_ones_are_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    programs = Programs(str(tmp_path / "file/programs.1"))
    assert programs.at(PROGRAM) == PROGRAM
    assert "Not a directory" in programs.trouble
    assert programs.at(f"{PACKAGE}/agent") == f"{PACKAGE}/agent"


def test_only_jobs_that_use_programs_need_a_copy() -> None:
    assert not needs_programs(Job("a", "true"))
    assert needs_programs(Job("a", "true", explain=True))
    assert needs_programs(Job("a", "true", preload=("auto",)))
    assert needs_programs(Job("a", "true", demand=Demand(gpus=1, mps=True)))
