"""A user's queue: one standing run, which has no job file, and waits for `add` when it is empty.

queue start ─▶ the run in the user's state directory, begun or gone on with ─▶ until it is stopped
queue install ─▶ a systemd user unit that says `queue start` at boot
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from gpulaunch.app import resuming, starting
from gpulaunch.app.observer import NOBODY, Observer
from gpulaunch.app.options import DEFAULTS, RunEnd, RunOptions
from gpulaunch.app.own_command import own_command
from gpulaunch.control.client import call, wait_until_gone
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Stop
from gpulaunch.errors import UnfinishedRunError, UsageError
from gpulaunch.files import replace as replace_file
from gpulaunch.jobfile.plan import empty_plan
from gpulaunch.journal.liveness import own_id, state_of
from gpulaunch.journal.ownership import require_own
from gpulaunch.journal.rundir import RunDir, queue_dir

NAME = "queue"
UNIT = "gpulaunch-queue.service"
BREAKER_OFF = 0
"""Jobs that fail alike say nothing of those that others add: the queue goes on."""


def start(options: RunOptions = DEFAULTS, observer: Observer = NOBODY) -> RunEnd:
    """Begin this user's queue, or go on with it, until it is stopped; return what it came to.

    Raises UnfinishedRunError where it is alive, and otherwise as `resume` does.
    """
    run = queue_dir()
    if options.choices.breaker is None:
        options = replace(options, choices=replace(options.choices, breaker=BREAKER_OFF))
    options = replace(options, standing=True)
    if run.path.is_dir():
        require_own(run)
    if not run.holds_run:
        run.path.parent.mkdir(parents=True, exist_ok=True)
        return starting.start(empty_plan(NAME, Path.home()), None, options, observer, run.path)
    if state_of(run) == "running":
        raise UnfinishedRunError(
            f"the queue is alive ({run.path}): gpulaunch add -- CMD adds to it"
        )
    return resuming.resume(run.path, options, observer)


def found() -> RunDir:
    """Return this user's queue. Raises UsageError where none was ever begun."""
    run = queue_dir()
    if not run.holds_run:
        raise UsageError("there is no queue yet: gpulaunch queue start --detach begins one")
    return run


def alive() -> RunDir | None:
    """Return this user's queue if it is alive."""
    run = queue_dir()
    return run if run.holds_run and state_of(run) == "running" else None


def stop() -> RunDir:
    """Stop this user's queue: what runs is interrupted, and goes on with the next start."""
    run = alive()
    if run is None:
        raise UsageError(f"the queue is not alive ({queue_dir().path})")
    id = own_id(run)
    call(id, Stop(Quoted("gpulaunch queue stop")))
    wait_until_gone(id)
    return run


# ── systemd ─────────────────────────────────────────────────────────────────────────────────────


def install(options: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Write a systemd user unit that starts the queue with these options; return its path."""
    given = environ.get("XDG_CONFIG_HOME", "")
    config = Path(given) if os.path.isabs(given) else Path.home() / ".config"
    unit = config / "systemd" / "user" / UNIT
    try:
        unit.parent.mkdir(parents=True, exist_ok=True)
        replace_file(unit, unit_text(shlex.join(own_command()), options).encode())
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    return unit


def unit_text(command: str, options: str) -> str:
    """Return the unit: `command` is gpulaunch, quoted for a shell, as `options` are.

    Only the launcher is told to end (KillMode): it ends its jobs, and records that. A login shell
    begins it, so that the jobs find what they find in a terminal.
    """
    line = f"exec {command} queue start --quiet --no-progress{options}"
    word = line.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f"""[Unit]
Description=gpulaunch queue: jobs on this machine's cards, one after the other

[Service]
ExecStart=/bin/bash -lc "{word}"
KillMode=mixed
TimeoutStopSec=300
SuccessExitStatus=1 129 130 143
Restart=on-failure
RestartSec=10
RestartPreventExitStatus=2 3 5

[Install]
WantedBy=default.target
"""
