"""The machine that figures were taken on, in words: no name, no path."""

from __future__ import annotations

import os
import platform
import re
from datetime import date
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "kernel": re.sub(r"[^0-9.].*", "", platform.release()),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "on": date.today().isoformat(),
    }


def sentence(told: dict[str, Any]) -> str:
    return (
        f"{told['cores']} cores ({told['cpu']}), {told['memory_gb']} GB, Linux {told['kernel']},"
        f" Python {told['python']}, load {told['load']}, {told['on']}"
    )


def _cpu() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.machine()
