"""Where the recipes and examples are, and the command as a user has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers import goes_along

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
EXAMPLES = ROOT / "examples"


def gpulaunch(
    *words: str | Path, cwd: Path, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """The installed command; the module of this tree where none is installed."""
    installed = shutil.which("gpulaunch", path=str(Path(sys.executable).parent))
    command = [installed] if installed else [sys.executable, "-m", "gpulaunch"]
    here = {"PYTHONPATH": str(ROOT)} if not installed else {}
    return subprocess.run(
        [*command, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        preexec_fn=goes_along(),
    )
