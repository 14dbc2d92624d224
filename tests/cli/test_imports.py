"""What is heavy is imported where it is used: each command imports what it needs, and no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEAVY = _names(
    "apprise asyncio cloudpickle http.client jinja2 logging matplotlib numpy prometheus_client"
    " psutil pyarrow pydantic pynvml requests secrets statistics textual torch tree_sitter"
    " tree_sitter_bash urllib.request _strptime"
)
"""What none of these commands needs."""
SHOWING = _names("rich gpulaunch.observe.terminal.plan gpulaunch.observe.terminal.standing")
READING_JOBS = _names("yaml gpulaunch.jobfile.load gpulaunch.diagnose.lint")
RUNNING = _names(
    "gpulaunch.run.session gpulaunch.run.start gpulaunch.run.supervisor"
    " gpulaunch.run.control_server gpulaunch.core.run gpulaunch.run.driver gpulaunch.engines.local"
    " gpulaunch.engines.pool gpulaunch.gpus.doctor gpulaunch.observe.notify"
    " gpulaunch.engines.client gpulaunch.observe.report gpulaunch.observe.sampler"
)
LOOKING_AT_RUNS = _names(
    "gpulaunch.run.lookup gpulaunch.run.control_client gpulaunch.observe.metrics sqlite3"
)
JSON = _names("gpulaunch.base.documents")
PYTHON_LINT = frozenset(f"gpulaunch.diagnose.lint.{name}" for name in ("python", "tree"))
SERVICES = _names("urllib.request")
EVERYTHING = SHOWING | READING_JOBS | RUNNING | LOOKING_AT_RUNS | JSON

NEEDLESS = {
    "--version": EVERYTHING | {"socket", "subprocess", "gpulaunch.journal.read"},
    "-h": EVERYTHING | {"socket", "subprocess", "gpulaunch.journal.read"},
    "exec": SHOWING
    | READING_JOBS
    | LOOKING_AT_RUNS
    | JSON
    | (RUNNING - {"gpulaunch.core.run", "gpulaunch.run.driver"})
    - {"gpulaunch.engines.local", "gpulaunch.engines.pool"},
    "logs": SHOWING | READING_JOBS | RUNNING | JSON | {"ctypes"},
    "wait": SHOWING | READING_JOBS | RUNNING | JSON,
    "ps": (SHOWING - {"rich"}) | READING_JOBS | RUNNING | JSON | {"ctypes"},
    "status": (SHOWING - {"rich", "gpulaunch.observe.terminal.standing"})
    | READING_JOBS
    | RUNNING
    | JSON
    | {"ctypes"},
    "check": LOOKING_AT_RUNS
    | JSON
    | PYTHON_LINT
    | (RUNNING - {"gpulaunch.engines.pool", "gpulaunch.observe.notify"})
    | {"ctypes", "gpulaunch.observe.terminal.standing"},
    "results": (SHOWING - {"rich"}) | READING_JOBS | RUNNING | JSON | {"ctypes"},
    "report": SHOWING | READING_JOBS | (RUNNING - {"gpulaunch.observe.report"}) | JSON | {"ctypes"},
    "run": JSON | PYTHON_LINT | SERVICES | {"concurrent", "gpulaunch.gpus.doctor"},
}
"""By command, what it does not need in the plainest case: a finished run of one shell command."""

OTHERS_RUNS = _names("concurrent logging")
"""What `ps` needs as soon as this machine, which is not the test's alone, has two live runs."""

ARGUMENTS = {
    "exec": ["--simulate", "1", "--", "true"],
    "logs": ["-r", "made"],
    "wait": ["made"],
    "report": ["made"],
    "status": ["made"],
    "results": ["made"],
    "check": ["jobs.yaml", "--simulate", "1"],
    "run": ["jobs.yaml", "--simulate", "1", "--new"],
}


def imported(argv: list[str], cwd: Path) -> set[str]:
    """The names of all modules that the command imports, and of the packages around them."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpulaunch", *argv],
        cwd=cwd,
        capture_output=True,
        check=True,
    )
    lines = done.stderr.decode().splitlines()
    modules = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time")}
    return {name[:end] for name in modules for end in _ends(name)}


def _ends(name: str) -> list[int]:
    return [at for at, letter in enumerate(f"{name}.") if letter == "."]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a job file, and a run of it that is over."""
    place = tmp_path_factory.mktemp("imports")
    (place / "jobs.yaml").write_text('jobs:\n  - name: one\n    run: "true"\n')
    imported(["run", "jobs.yaml", "--simulate", "1", "--run-dir", "made"], place)
    return place


@pytest.mark.parametrize("command", NEEDLESS)
def test_a_command_imports_nothing_that_it_does_not_need(command: str, place: Path) -> None:
    names = imported([command, *ARGUMENTS.get(command, [])], place)
    assert "gpulaunch.cli" in names
    needed = {"report": {"jinja2"}, "ps": OTHERS_RUNS}.get(command, set())
    assert sorted(names & ((HEAVY - needed) | NEEDLESS[command])) == []
