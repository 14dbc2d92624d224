"""The machine that figures were taken on, in words: no name, no path."""

from __future__ import annotations

import os
import platform
import re
from collections import defaultdict
from collections.abc import Sequence
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


def sentence(told: Sequence[dict[str, Any]]) -> str:
    """Each machine once, with the least and the most that others kept it busy."""
    loads: defaultdict[str, list[float]] = defaultdict(list)
    for one in told:
        words = f"{one['cores']} cores ({one['cpu']}), {one['memory_gb']} GB"
        words += f", Linux {one['kernel']}, Python {one['python']}, {one['on']}"
        loads[words].append(one["load"])
    return "; ".join(
        f"{words}, load {min(found)} to {max(found)}" for words, found in sorted(loads.items())
    )


def _cpu() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.machine()
