"""What is submitted: the options of sbatch that a job's fields come to, and the batch script.

The script is one for the whole run. It finds a Python on the node and becomes `node.py`, with the
batch as its argument; all that differs from attempt to attempt is in files of the run directory.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpulaunch.core.model import Job
from gpulaunch.failure.tail import tail
from gpulaunch.files import read_bytes
from gpulaunch.journal.rundir import RunDir
from gpulaunch.process.nodeside import put

WARNING = 60
"""Seconds before Slurm's time limit at which the script is told, by SIGTERM."""
TIME_LIMIT_MARGIN = 180.0
"""What a job is given of Slurm's time beyond its own: the warning, that Slurm may warn 60 s earlier
than it was asked to (`--signal` in sbatch.1), and a minute for its beginning."""
RUN_DIR_TIMEOUT = 60
"""Seconds for which a node that does not see the run directory yet looks again."""

PROBE_PATIENCE = 40
"""The same of the probe, which is given a minute of Slurm's time."""

FIXED = (
    "--parsable",
    # All of an environment that holds just what is meant to go along (`environment`). With a list
    # of names Slurm would add the login environment, fetched on the node, to it.
    "--export=ALL",
    # Each attempt is submitted by itself, with a number and a log of its own; one that Slurm begins
    # anew finds its claim taken, and gives the cards back. But where Slurm may not requeue, it
    # cancels: a whole array for one task that it could not start.
    "--requeue",
    "--open-mode=append",
    "--chdir=/",
    f"--signal=B:TERM@{WARNING}",
    "--nodes=1",
    "--ntasks=1",
)
SETTINGS = ("partition", "account", "qos")

_MASKS = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
_SESSION = (
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "HOSTNAME",
    "OLDPWD",
    "PWD",
    "SHLVL",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "STY",
    "TMUX",
    "TMUX_PANE",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
    "_",
)

PROBE = "probe"
"""In a batch's place: only see whether the run can be served there, and leave a sign of it."""

SHELL = "/bin/bash"
"""Of the batch script, where there is one: dash, which `sh` is on Debian, drops functions that a
shell exported (`module`). With -p it hands all variables on as they are, takes no function for a
program and reads no start-up file: `BASH_ENV` is the job's own shell's to read, once."""

TEXT = """\
#!{shell}
# Becomes gpulaunch's program on a node of the cluster, which runs its task of the batch $1.
run={run}

# A shared file system may show late what was written elsewhere; looking makes it look.
looks=0
patience={patience}
[ "$1" != {probe} ] || patience={brief}
until [ -r "$run/slurm/node.py" ]; do
    if [ "$looks" -ge "$patience" ]; then
        echo "gpulaunch: $run/slurm/node.py cannot be read on $(uname -n):" \\
            "the run directory must be on a file system that the nodes share" >&2
        exit 78
    fi
    looks=$((looks + 1))
    ls "$run/slurm" >/dev/null 2>&1
    sleep 1
done

for python in {pythons}; do
    if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1; then
        if [ "$1" = {probe} ]; then
            : >"$run/slurm/seen"
            exit
        fi
        exec "$python" -I -S "$run/slurm/cached.py" node.py "$run" "$1"
    fi
done
echo "gpulaunch: no Python 3.8 or newer on $(uname -n): tried" {pythons} >&2
exit 78
"""


def options(job: Job, run: RunDir) -> tuple[str, ...]:
    """Those of sbatch for this job, or for an array of jobs for which they are the same.

    Neither the name nor the array, which are a batch's. What the job file adds itself comes last.
    """
    told = job.engine.get("slurm", {})
    settings = (f"--{name}={word}" for name in SETTINGS for word in told.get(name, ()))
    return (
        *FIXED,
        f"--output={_output(run.said)}",
        *_resources(job, told.get("gres", ())),
        *settings,
        *told.get("extra", ()),
    )


def _resources(job: Job, kind: Sequence[str]) -> Iterable[str]:
    if job.demand.gpus:
        # Of the one node (above). For `--gpus` 26.05 gives fewer where others are in use.
        yield f"--gpus-per-node={':'.join((*kind, str(job.demand.gpus)))}"
    if job.demand.cpus is not None:
        yield f"--cpus-per-task={job.demand.cpus}"
    if job.timeout is not None:
        # A backstop, in whole minutes; the node's side keeps the exact time.
        yield f"--time={math.ceil((job.timeout + job.grace + TIME_LIMIT_MARGIN) / 60)}"


def _output(said: Path) -> str:
    """A file for each job and task: `12_3`; of a job without tasks Slurm makes up a number.

    A backslash anywhere makes Slurm take all of a file's name as it is, or leave the backslash out
    (25.11): nowhere, then.
    """
    text = str(said)
    return "/dev/null" if "\\" in text else text.replace("%", "%%") + "/%A_%a"


def said(run: RunDir, id: str) -> str:
    """What Slurm or the node's side had to say of a job (`12`, `12_3`): its last words, one line.

    Empty where it said nothing. What the job itself says is in its log.
    """
    found = _said(run, id)
    lines = [line.strip() for line in (tail(found[0], 4000) if found else "").splitlines()]
    return "; ".join(list(filter(None, lines))[-3:])[-500:]


def forget_silence(run: RunDir, id: str) -> None:
    """Of a job that is over, and of which Slurm and the node's side said nothing: no empty file."""
    for path in _said(run, id):
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()


def _said(run: RunDir, id: str) -> list[Path]:
    # A made-up number is never that of another task: there is but the one.
    return [run.said / id] if "_" in id else sorted(run.said.glob(f"{id}_*"))


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """What goes along to the nodes: the shell's variables, as on this machine.

    Without masks, which on a node are Slurm's to set, and what belongs to the session here. What
    is Slurm's own (an allocation, settings) `commands.Slurm` leaves out.
    """
    return {name: value for name, value in base.items() if name not in (*_MASKS, *_SESSION)}


def lay_out(run: RunDir, pythons: Sequence[str] = (sys.executable,)) -> None:
    """Write the batch script, unless it is there. Raises OSError."""
    data = os.fsencode(text(str(run.path), pythons))
    if not (run.batch_script.exists() and read_bytes(run.batch_script) == data):
        put(run.batch_script, data)


def text(run: str, pythons: Sequence[str], patience: int = RUN_DIR_TIMEOUT) -> str:
    """The batch script, for any `sh`. `pythons` are tried first; `patience` in seconds."""
    tried = dict.fromkeys((*pythons, "python3", "python"))
    return TEXT.format(
        shell=f"{SHELL} -p" if os.access(SHELL, os.X_OK) else "/bin/sh",
        run=shlex.quote(run),
        pythons=" ".join(map(shlex.quote, tried)),
        patience=patience,
        brief=min(patience, PROBE_PATIENCE),
        probe=PROBE,
    )
