"""What is heavy is imported where it is used: not for a version, nor for one command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = frozenset(
    [
        "apprise",
        "asyncio",
        "matplotlib",
        "numpy",
        "prometheus_client",
        "psutil",
        "pynvml",
        "requests",
        "rich",
        "sqlite3",
        "textual",
        "torch",
        "tree_sitter",
        "tree_sitter_bash",
        "yaml",
    ]
)
OURS = frozenset(f"gpulaunch.{name}" for name in ("jobfile", "lint", "metrics", "notify", "views"))


def imported(argv: list[str], cwd: Path) -> set[str]:
    """Packages, and our own by their second name, that the command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpulaunch", *argv],
        cwd=cwd,
        capture_output=True,
        check=True,
    )
    names = [line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()]
    return {part for name in names for part in (name.split(".")[0], ".".join(name.split(".")[:2]))}


@pytest.mark.parametrize(
    "argv", [["--version"], ["-h"], ["exec", "--simulate", "1", "--", "true"]], ids=lambda a: a[0]
)
def test_a_version_and_one_command_import_nothing_heavy(argv: list[str], tmp_path: Path) -> None:
    names = imported(argv, tmp_path)
    assert "gpulaunch.cli" in names
    assert names & (HEAVY | OURS) == set()
