"""What `gpulaunch exec` costs while it waits for a card that another has, alone and forty at once.

On the tests' pretend driver, so that the driver is asked as on a machine with cards.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import psutil

from gpulaunch.engines.programs import program_line
from tests.gpus.fake import FakeDriver, own_leases
from tests.helpers import held_by, wait_until

EXEC = [sys.executable, "-m", "gpulaunch", "exec", "--"]
MB = 1e6


def measure(quick: bool) -> dict[str, object]:
    many, seconds = (5, 1.0) if quick else (40, 60.0)
    return {
        "launchers": many,
        "one": _waiting(1, seconds),
        "many": _waiting(many, seconds),
    }


def _a_minute(used: int, seconds: float) -> float:
    """Milliseconds a minute, of nanoseconds in so many seconds."""
    return round(used * 60 / seconds / 1e6, 2)


def _waiting(many: int, seconds: float) -> dict[str, float]:
    """Megabytes and processes each; CPU and wake-ups a minute, all together; ms a turn."""
    with _begun(many) as (holder, waiting):
        used, woken = _used(waiting), _woken(waiting)
        time.sleep(seconds)
        family = [each for one in waiting for each in (one, *one.children(recursive=True))]
        memory = [each.memory_full_info() for each in family]
        found = {
            "processes": len(family) / many,
            "private_mb": round(sum(each.uss for each in memory) / many / MB, 2),
            "shared_by_shares_mb": round(sum(each.pss for each in memory) / many / MB, 2),
            "cpu_ms_a_minute": _a_minute(_used(waiting) - used, seconds),
            "wakeups_a_minute": round((_woken(waiting) - woken) * 60 / seconds),
        }
        begun = time.monotonic()
        holder.kill()
        psutil.wait_procs(waiting)
        return {**found, "turn_ms": round((time.monotonic() - begun) * 1000 / many)}


@contextmanager
def _begun(many: int) -> Iterator[tuple[psutil.Process, Sequence[psutil.Process]]]:
    """One launcher that has the only card, and so many that have settled to wait for it."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpulaunch-bench-")))
        driver = FakeDriver(place)
        driver.card(0)
        environ = own_leases(driver)

        def begin(*command: str) -> psutil.Process:
            line = [*EXEC, *command]
            started = Popen(line, cwd=place, env=environ, stdout=DEVNULL, stderr=PIPE, text=True)
            stack.enter_context(started)
            stack.callback(started.kill)
            process = psutil.Process(started.pid)
            if command[0] == "sleep":
                wait_until(lambda: process.name() == "sleep")
            else:
                assert started.stderr is not None
                started.stderr.readline()  # that it waits
            return process

        holder = begin("sleep", "3600")
        waiting = [begin("true") for _ in range(many)]
        for process in waiting[1:]:
            wait_until(lambda process=process: _is_connected(process))
        yield holder, waiting


def _is_connected(process: psutil.Process) -> bool:
    """Whether the small program has its place, and a connection to one ahead."""
    sockets = [held for held in held_by(process.pid) if held.startswith("socket:")]
    return os.readlink(f"/proc/{process.pid}/exe") == program_line()[0] and len(sockets) == 2


def _used(processes: Sequence[psutil.Process]) -> int:
    """Nanoseconds of processor time (proc(5), schedstat)."""
    return sum(int(Path(f"/proc/{one.pid}/schedstat").read_text().split()[0]) for one in processes)


def _woken(processes: Sequence[psutil.Process]) -> int:
    return sum(one.num_ctx_switches().voluntary for one in processes)


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=1))
