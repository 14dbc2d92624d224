"""Finds out whether strict isolation is possible here, by trying it in a process of its own.

No setting tells it reliably: sysctls, AppArmor and containers' seccomp filters all matter. The
keeper's program makes the isolation and the answer's words.
"""

from __future__ import annotations

import subprocess
import sys

from gpulaunch.farside.client import command

ISOLATION_CHECK_TIMEOUT = 20.0
"""Seconds that the trial may take."""


def why_no_isolation(python: str = sys.executable) -> str | None:
    """Return what forbids strict isolation to this process's jobs, in one line; else None."""
    try:
        tried = subprocess.run(
            command(python, "keeper", "try-isolation"),
            timeout=ISOLATION_CHECK_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"strict isolation could not be tried: {error}"
    said = tried.stderr.decode("utf-8", "replace").strip().splitlines()
    return (
        (said or [f"strict isolation could not be tried: {tried}"])[-1]
        if tried.returncode
        else None
    )
