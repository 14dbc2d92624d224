"""Whether strict isolation can be had here, found out by doing it, in a process of its own.

No setting says it reliably: sysctls, AppArmor and containers' seccomp filters each have a say. It
owns the question; the answer's words, and the isolation itself, are the keeper's.
"""

from __future__ import annotations

import subprocess
import sys

from gpulaunch.process.client import KEEPER

ISOLATION_CHECK_TIMEOUT = 20.0


def why_no_isolation(python: str = sys.executable) -> str | None:
    """What forbids strict isolation to the jobs of this process, one line; None: nothing."""
    try:
        tried = subprocess.run(
            [python, "-I", "-S", str(KEEPER), "try-isolation"],
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
