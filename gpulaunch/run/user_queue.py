"""A user's queue: one standing run, which has no job file, and waits for `add` when it is empty.

queue start ─▶ the run in the user's state directory, begun or gone on with ─▶ until it is stopped
                  └── full, and no job waits or runs ─▶ the next run, in the next directory
queue install ─▶ a systemd user unit that says `queue start` at boot
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from gpulaunch.base.errors import UnfinishedRunError, UsageError
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.text import several
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Stop
from gpulaunch.jobfile.plan import empty_plan
from gpulaunch.journal.liveness import own_id, state_of
from gpulaunch.journal.ownership import require_own
from gpulaunch.journal.read import replay
from gpulaunch.journal.rundir import QUEUE, RunDir, next_queue_dir, queue_dir
from gpulaunch.run import resumption
from gpulaunch.run import start as starting
from gpulaunch.run.control_client import call, wait_until_gone
from gpulaunch.run.lookup import living_queue
from gpulaunch.run.options import DEFAULTS, NOBODY, Observer, RunEnd, RunOptions, as_before


def own_command() -> list[str]:
    """Return the words that call this gpulaunch from anywhere, for what begins by itself."""
    beside = Path(sys.executable).with_name("gpulaunch")
    program = str(beside) if os.access(beside, os.X_OK) else shutil.which("gpulaunch")
    return [program] if program else [sys.executable, "-m", "gpulaunch"]


UNIT = "gpulaunch-queue.service"
BREAKER_OFF = 0
"""Jobs that fail alike say nothing of those that others add: the queue goes on."""


def start(options: RunOptions = DEFAULTS, observer: Observer = NOBODY) -> RunEnd:
    """Begin this user's queue, or go on with it, until it is stopped; return what it came to.

    Raises UnfinishedRunError where it is alive, and otherwise as `resume` does.
    """
    if options.choices.breaker is None:
        options = replace(options, choices=replace(options.choices, breaker=BREAKER_OFF))
    options = replace(options, standing=True)
    while True:
        end = _turn(queue_dir(), options, observer)
        if not end.full:
            return end


def _turn(run: RunDir, options: RunOptions, observer: Observer) -> RunEnd:
    """Begin this directory of the queue, or go on with it. If it is full, begin the next one.

    A full directory has no job that waits or runs, so nothing moves from one to the other. The
    next directory counts from the first line of its journal on: whatever ends this process before,
    the next start finds the full directory as the newest, and begins the next one.
    """
    if run.path.is_dir():
        require_own(run)
    if not run.holds_run:
        run.path.parent.mkdir(parents=True, exist_ok=True)
        return _begin(run, options, observer)
    if state_of(run) == "running":
        raise UnfinishedRunError(
            f"the queue is alive ({run.path}): gpulaunch add -- CMD adds to it"
        )
    ledger = replay(run.events, faults=[])
    if not ledger.is_full:
        return resumption.resume(run.path, options, observer)
    observer.note(f"{run.path} has {several(len(ledger.jobs), 'job')}, and all are over")
    options = as_before(options, run.read_manifest(), ledger, observer)
    return _begin(next_queue_dir(run), options, observer)


def _begin(run: RunDir, options: RunOptions, observer: Observer) -> RunEnd:
    return starting.start(empty_plan(QUEUE, Path.home()), None, options, observer, run.path)


def found() -> RunDir:
    """Return this user's queue. Raises UsageError where none was ever begun."""
    run = queue_dir()
    if not run.holds_run:
        raise UsageError("there is no queue yet: gpulaunch queue start --detach begins one")
    return run


def stop() -> RunDir:
    """Stop this user's queue: what runs is interrupted, and goes on with the next start."""
    run = living_queue()
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
