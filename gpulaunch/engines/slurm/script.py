"""What is submitted, and what nodes read: sbatch's options, the batch script, the tickets.

    Job ─options─▶ sbatch ─▶ the batch script ─exec─▶ the node's program, with the batch
     └─prepare─▶ Command, with slots for what only the node knows ─▶ ticket ─▶ node

One script serves the whole run. The files of the run directory hold what differs from attempt to
attempt. Nothing here calls Slurm.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from gpulaunch.agent.launch import Ticket
from gpulaunch.agent.wire import PROTOCOL
from gpulaunch.base.files import read_bytes
from gpulaunch.base.files import replace as replace_file
from gpulaunch.base.text import asking_for_memory, megabytes
from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId, Job
from gpulaunch.diagnose.failure.edge import tail
from gpulaunch.engines.command import NodeSlots
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import AttemptPlace
from gpulaunch.engines.prepare import NotPreparedError, OutputDirs, prepare, scope, wants_port
from gpulaunch.engines.programs import archived, find_keepers
from gpulaunch.engines.slurm.node_files import NodeStart, read_start, write_ticket
from gpulaunch.engines.slurm.rundir import PROGRAM, SlurmDir

WARNING = 60
"""Seconds before Slurm's time limit at which Slurm sends the script SIGTERM."""
TIME_LIMIT_MARGIN = 180.0
"""Seconds of Slurm's time limit beyond the job's own: the warning, 60 s because Slurm may warn that
much earlier (`--signal` in sbatch.1), and a minute to start."""
RUN_DIR_TIMEOUT = 60
"""Seconds for which a node waits for the run directory to become visible."""

PROBE_PATIENCE = 40
"""Seconds for which the probe waits for the run directory; its time limit is a minute."""

NO_DEFAULTS: Mapping[str, Sequence[str]] = MappingProxyType({})

FIXED = (
    "--parsable",
    # All of an environment that holds only what is to go to the nodes (`environment`). Given a list
    # of names, Slurm would add the login environment, fetched on the node.
    "--export=ALL",
    # A job that Slurm starts again does no harm: it finds its claim taken and gives the cards back.
    # Without --requeue, Slurm cancels a whole array for one task that it could not start.
    "--requeue",
    "--open-mode=append",
    "--chdir=/",
    "--nodes=1",
    "--ntasks=1",
)
_TIME = ("--time=", "--time ", "-t")
SETTINGS = ("partition", "account", "qos")

_NOT_SENT = {
    # masks
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
    # this machine's session
    "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "SSH_AUTH_SOCK",
    "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "STY", "TMUX", "TMUX_PANE", "WAYLAND_DISPLAY",
    "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "_",
}  # fmt: skip

PROBE = "probe"
"""The script's argument, in place of a batch, with which it only checks the node."""

SHELL = "/bin/bash"
"""The batch script's interpreter, where it exists: dash, which is `sh` on Debian, drops functions
that a shell exported (`module`). With -p bash passes all variables on as they are, takes no
function for a program and reads no start-up file: the job's own shell reads `BASH_ENV`, once."""

TEXT = """\
#!{shell}
# Becomes gpulaunch's program on a node of the cluster, which runs its task of the batch $1.
run={run}
batch=$1
program=$run/slurm/{program}

# A shared file system may show late what was written elsewhere; looking makes it look.
looks=0
patience={patience}
[ "$batch" != {probe} ] || patience={brief}
until [ -r "$program.zip" ]; do
    if [ "$looks" -ge "$patience" ]; then
        echo "gpulaunch: $program.zip cannot be read on $(uname -n):" \\
            "the run directory must be on a file system that the nodes share" >&2
        exit 78
    fi
    looks=$((looks + 1))
    ls "$run/slurm" >/dev/null 2>&1
    sleep 1
done

keepers=$program-$(uname -m)
if [ ! -e "$keepers" ]; then
    echo "gpulaunch: $(uname -n) is a $(uname -m) machine: the gpulaunch that submitted this" \\
        "job has no program for it; install a wheel that has one" >&2
    exit 78
fi
if ! "$keepers" --self-test {protocol} >&2; then
    echo "gpulaunch: $keepers does not work on $(uname -n)" >&2
    exit 78
fi
for python in {pythons}; do
    if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1; then
        if [ "$batch" = {probe} ]; then # only checks the node
            uname -n >"$run/slurm/seen"
            exit
        fi
        exec "$python" -I -S "$program.zip" node "$run" "$batch"
    fi
done
echo "gpulaunch: no Python 3.8 or newer on $(uname -n): tried" {pythons} >&2
exit 78
"""


def options(
    job: Job,
    run: SlurmDir,
    words: Sequence[str] = (),
    defaults: Mapping[str, Sequence[str]] = NO_DEFAULTS,
) -> tuple[str, ...]:
    """Return the options of sbatch for this job, without name and array, which are a batch's.

    Jobs with equal options can share an array. The job file's own options come last but for
    `words`, those of the whole run. `defaults`: settings where the job file has none; what these
    ask of memory does not count for a job that says itself what it needs.
    """
    told = {**defaults, **job.engine.get("slurm", {})}
    if job.demand.memory:
        extra = told.get("extra", ())
        asked = asking_for_memory(extra)
        told["extra"] = [word for word in extra if word not in asked]
    settings = (f"--{name}={word}" for name in SETTINGS for word in told.get(name, ()))
    return (
        *FIXED,
        f"--signal=B:TERM@{_warning(job, (*told.get('extra', ()), *words))}",
        f"--output={_output(run.said)}",
        *_resources(job, told.get("gres", ())),
        *settings,
        *told.get("extra", ()),
        *words,
    )


def _warning(job: Job, asked: Sequence[str]) -> int:
    """Return how many seconds before Slurm's time limit the node's side is to have TERM.

    It gives a job its own warning then, unless the job's timeout comes before: it does where
    Slurm's limit is the one that `_resources` makes of it.
    """
    own = job.timeout is not None and not any(word.startswith(_TIME) for word in asked)
    return WARNING if job.warn is None or own else WARNING + math.ceil(job.warn.before)


def _resources(job: Job, kind: Sequence[str]) -> Iterable[str]:
    if job.demand.gpus:
        # Not `--gpus`, for which 26.05 gives fewer cards where others are in use.
        yield f"--gpus-per-node={':'.join((*kind, str(job.demand.gpus)))}"
    if job.demand.cpus is not None:
        yield f"--cpus-per-task={job.demand.cpus}"
    if job.demand.memory:
        yield f"--mem={megabytes(job.demand.memory)}M"
    if job.timeout is not None:
        # A backstop, in whole minutes; the keeper on the node keeps the exact limit.
        yield f"--time={math.ceil((job.timeout + job.grace + TIME_LIMIT_MARGIN) / 60)}"


def _output(said: Path) -> str:
    """Return the pattern of Slurm's output files, one for each job and task: `12_3`.

    For a job without tasks Slurm makes up the second number. A backslash anywhere in the path turns
    the pattern off, or is dropped (25.11): the output then goes to /dev/null.
    """
    text = str(said)
    return "/dev/null" if "\\" in text else text.replace("%", "%%") + "/%A_%a"


def said(run: SlurmDir, id: str) -> str:
    """Return the last lines that Slurm or the node's side printed of a job, as one line; else "".

    `id`: `12`, or `12_3`. The job's own output is in its log.
    """
    found = _said(run, id)
    lines = [line.strip() for line in (tail(found[0], 4000) if found else "").splitlines()]
    return "; ".join(list(filter(None, lines))[-3:])[-500:]


def forget_silence(run: SlurmDir, id: str) -> None:
    """Remove the job's output file if Slurm and the node's side left it empty."""
    for path in _said(run, id):
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()


def _said(run: SlurmDir, id: str) -> list[Path]:
    # Of a job without tasks there is one file, whose second number Slurm made up.
    return [run.said / id] if "_" in id else sorted(run.said.glob(f"{id}_*"))


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that go to the nodes: this machine's, without masks and session.

    On a node Slurm sets the masks. `commands.Slurm` removes Slurm's own variables.
    """
    return {name: value for name, value in base.items() if name not in _NOT_SENT}


def lay_out(run: SlurmDir, pythons: Sequence[str] = (sys.executable,)) -> None:
    """Write the batch script, unless it is there. Raises OSError."""
    data = os.fsencode(text(str(run.path), pythons))
    if not (run.batch_script.exists() and read_bytes(run.batch_script) == data):
        replace_file(run.batch_script, data)


def text(run: str, pythons: Sequence[str], patience: int = RUN_DIR_TIMEOUT) -> str:
    """Return the batch script, for any `sh`. It tries `pythons` first; `patience` in seconds."""
    tried = dict.fromkeys((*pythons, "python3", "python"))
    return TEXT.format(
        shell=f"{SHELL} -p" if os.access(SHELL, os.X_OK) else "/bin/sh",
        run=shlex.quote(run),
        pythons=" ".join(map(shlex.quote, tried)),
        patience=patience,
        brief=min(patience, PROBE_PATIENCE),
        probe=PROBE,
        protocol=PROTOCOL,
        program=PROGRAM,
    )


# ── Files that nodes read ─────────────────────────────────────────────────────────────────────────


def lay_out_launch_files(run: SlurmDir) -> None:
    """Make the directories and write the nodes' programs. May be repeated.

    Raises OSError, and KeepersError where there are none.
    """
    run.slurm.mkdir(mode=0o700, exist_ok=True)
    for folder in (run.batch_lists, run.tickets, run.starts, run.stops, run.said):
        folder.mkdir(mode=0o700, exist_ok=True)
    _lay_out_keepers(run)
    before = read_bytes(run.node_program) if run.node_program.exists() else b""
    if (program := archived(before)) != before:
        replace_file(run.node_program, program)


def _lay_out_keepers(run: SlurmDir) -> None:
    """Copy the keepers of each architecture, before the archive that nodes wait for."""
    for program in Path(find_keepers()).parent.glob("keeper-*"):
        place, data = run.keepers(program.name.partition("-")[2]), program.read_bytes()
        if not place.exists() or read_bytes(place) != data:
            replace_file(place, data, mode=0o700)


def write(launch: Launch, context: RunContext, outs: OutputDirs) -> None:
    """Write the attempt's ticket, and make the directories and files that it needs.

    Slurm itself passes the launcher's environment on: the ticket holds values of it only inside the
    job's own variables.

    Raises OSError, and GpulaunchError where the attempt cannot be started as the job says.
    """
    job, attempt, run = launch.job, launch.attempt, SlurmDir(context.run.path)
    start = read_start(run.start(attempt))
    if isinstance(start, NodeStart):
        # A power cut took the start from the journal; the attempt keeps its log and its end.
        where = f"as Slurm job {start.job} on node {start.node}"
        raise NotPreparedError(f"{attempt} was started before, {where}, and that was forgotten")
    for left in (run.start(attempt), run.stop(attempt)):
        with suppress(FileNotFoundError):
            os.unlink(left)  # left by an attempt that was stopped before it began, and forgotten
    slots = NodeSlots.fresh(job.demand.gpus)
    place = AttemptPlace(
        gpus=(),
        style="index",
        scope=scope(context.run_id, attempt),
        master_port=slots.master_port,
        run=context.run_id,
        run_dir=str(run.path),
        attempt=attempt.number,
        out=str(run.out(attempt)),
        keep=context.run.keep_dir(attempt.job),
        port=slots.port if wants_port(job) else None,
        step=launch.step.number if launch.step is not None else None,
        slots=slots,
    )
    command = prepare(launch, place, context, outs)
    write_ticket(run.ticket(attempt), command, slots, list(map(str, launch.after)))


def job_of(attempt: AttemptId, run: SlurmDir) -> Job | None:
    """Return the job as an earlier launcher's ticket has it: limits and codes of success alone.

    None: the ticket cannot be read, as one of another version of gpulaunch.
    """
    try:
        told = Ticket(read_bytes(run.ticket(attempt))).order
    except FileNotFoundError:  # the attempt ended, but its launcher died before it recorded that
        return Job(attempt.job, ())
    except ValueError:
        return None
    return Job(
        attempt.job,
        (),
        timeout=told.timeout,
        grace=told.grace,
        success_codes=frozenset(told.success_codes),
    )
