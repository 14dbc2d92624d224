"""The house's own rules: which way imports point, and what is not imported before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = (
    "rich",
    "textual",
    "yaml",
    "pynvml",
    "psutil",
    "natsort",
    "tree_sitter",
    "torch",
    "prometheus_client",
    "asyncio",
    "apprise",
    "requests",
    "cloudpickle",
    "gpulaunch.executor",
    "jinja2",
)


def test_imports_point_one_way() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports as lint;"
         " sys.exit(lint(no_cache=True))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "argv",
    [["--version"], ["exec", "--simulate", "1", "--no-wait", "--", "true"]],
    ids=["version", "exec"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(argv: list[str]) -> None:
    script = f"""
import os, sys
os.execvpe = lambda *_: sys.exit(0)
sys.argv = ["gpulaunch", *{argv!r}]
from gpulaunch.__main__ import main
try:
    main()
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
