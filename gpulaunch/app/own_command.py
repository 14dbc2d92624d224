"""How this gpulaunch is called, for processes that are to begin by themselves."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def own_command() -> list[str]:
    """Return the words that call this gpulaunch from anywhere."""
    beside = Path(sys.executable).with_name("gpulaunch")
    program = str(beside) if os.access(beside, os.X_OK) else shutil.which("gpulaunch")
    return [program] if program else [sys.executable, "-m", "gpulaunch"]
