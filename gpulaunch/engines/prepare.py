"""Prepares a launch: makes directories, writes inputs, fills placeholders; returns a Command.

All this happens in the supervisor, just before the start. The job's environment modules are loaded
later, where its program starts. Errors are OSError or NotPreparedError, and the attempt then counts
as not started.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2s
from pathlib import Path

from gpulaunch.agent.client import PROGRAM
from gpulaunch.base.environment_modules import loading
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.base.files import may
from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId, Container, Job
from gpulaunch.core.template import Template, render, slots
from gpulaunch.engines import isolation
from gpulaunch.engines.command import Command, Task
from gpulaunch.engines.contained import contained
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import (
    AttemptPlace,
    Delta,
    EnvironmentMaker,
    first_on_path,
    placeholders,
    shims,
)
from gpulaunch.gpus.mask import MASK, MPS_LOGS, MPS_PIPES, ORDER
from gpulaunch.jobfile.items import digest_of
from gpulaunch.jobfile.paths import read_env_file
from gpulaunch.journal.ends import EndSlots
from gpulaunch.journal.rundir import RunDir

KEPT = (MASK, ORDER, MPS_PIPES, MPS_LOGS)
OF_PYTHON = ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONHOME")


def with_modules(
    job: Job, argv: tuple[str, ...], own: Mapping[str, str | None], run_dir: str
) -> tuple[str, ...]:
    """Return the command line of a program that finds the job's modules loaded; `argv` without any.

    What gpulaunch says wins over what modules set: the mask, its own variables, the job's `env`
    (but modules may put directories before and behind). The job's own Python comes first on PATH.
    `own`: what the job's `env_file` and `env` say.
    """
    if not job.modules:
        return argv
    first = first_on_path(job, run_dir)
    kept = (*KEPT, *(OF_PYTHON if first else ()))
    added = (*own, *(("PYTHONPATH",) if job.explain else ()))
    return loading(job.modules, argv, kept, added, os.pathsep.join(first))


class NotPreparedError(GpulaunchError):
    """The attempt cannot be started as the job says; the text is one line."""


def prepare(
    launch: Launch,
    place: AttemptPlace,
    context: RunContext,
    outs: OutputDirs,
    slots: EndSlots | None = None,
) -> Command:
    """Make what the attempt needs on disk, and return the command to execute.

    `slots`: where its end goes; None: into a file of its own.
    """
    job, attempt, run = launch.job, launch.attempt, context.run
    log, end = run.log_file(attempt), slots.file if slots else str(run.end(attempt))
    _make_room(launch, run, outs, None if slots else end)
    inputs = materialise(job, run)
    place = isolation.placed(job, place)
    values = placeholders(place, log, inputs, launch.step)
    if job.container is None:
        changes = dressed(job, place, context.environments, values)
        argv = _worker(job, changes, context) if job.worker else argv_of(job, values)
        if job.modules:
            argv = loaded(job, argv, values, place.run_dir)
    else:
        argv, changes = _contained(job, job.container, place, context, values)
    outputs, kept = _outputs(job, values)
    return Command(
        attempt=str(attempt),
        argv=argv,
        env_set=changes.set,
        env_unset=tuple(changes.unset),
        cwd=job.cwd,
        log=log,
        end=end,
        slot=slots.of(str(attempt)) if slots else None,
        timeout=job.timeout,
        warn=job.warn,
        idle_timeout=job.idle_timeout,
        grace=job.grace,
        outputs=outputs,
        kept_outputs=kept,
        success_codes=job.success_codes,
        hidden=isolation.hidden(job, place.gpus),
        cpus=place.near.cpus if place.near is not None else (),
        task=_task(job, values, changes),
    )


def dressed(
    job: Job,
    place: AttemptPlace,
    environments: EnvironmentMaker,
    values: Mapping[str, str],
) -> Delta:
    """Return the job's environment as changes to the base; write the shims that its PATH names.

    Raises UsageError for an `env_file` that cannot be read.
    """
    if job.python:
        _write_shims(job.python, place.run_dir)
    return environments.delta(job, place, own_variables(job, values))


def loaded(
    job: Job, argv: tuple[str, ...], values: Mapping[str, str], run_dir: str
) -> tuple[str, ...]:
    """Return the command line that loads the job's modules and then becomes `argv`."""
    own = own_variables(job, values)
    if job.worker is None or job.worker.function:
        return with_modules(job, argv, own, run_dir)
    # What starts a worker's program is gpulaunch's own Python, and not for modules to change.
    number = len(argv) - len(job.worker.run)
    return (*argv[:number], *with_modules(job, argv[number:], own, run_dir))


def own_variables(job: Job, values: Mapping[str, str]) -> dict[str, str | None]:
    """Return what the job's `env_file` and `env` say; None removes a variable."""
    own: dict[str, str | None] = dict(read_env_file(Path(job.env_file))) if job.env_file else {}
    own.update({k: None if v is None else render(v, values) for k, v in job.env.items()})
    return own


def _contained(
    job: Job,
    container: Container,
    place: AttemptPlace,
    context: RunContext,
    values: Mapping[str, str],
) -> tuple[tuple[str, ...], Delta]:
    """Return the command line that runs the job in its container, and its environment."""
    here, own = context.images[container.source], own_variables(job, values)
    folder = str(context.run.container(AttemptId(job.name, place.attempt)))
    argv = argv_of(job, values) if job.worker is None else job.worker.run
    line, changes = contained(job, here, place, context.environments, folder, argv, own)
    serves = context.environments.programs.command("worker", "lines")
    return (*(() if job.worker is None else serves), *line), changes


def scope(run_id: str, attempt: AttemptId) -> str:
    """Return the name of the leases of an attempt's cards, short enough for an abstract socket."""
    return f"{run_id}/{blake2s(str(attempt).encode(), digest_size=8).hexdigest()}"


def wants_port(job: Job) -> bool:
    """Tell whether `{{port}}` stands anywhere in the job, so that one must be reserved."""
    texts = [*(job.run if isinstance(job.run, tuple) else (job.run,)), *job.outputs]
    texts += [text for text in job.env.values() if text is not None]
    if job.service:
        texts.append(job.service.ready)
    templates = [text for text in texts if not isinstance(text, str)]
    return any(slot.name == "port" for text in templates for slot in slots(text))


def ports_for(job: Job) -> int:
    """Return how many ports an attempt has: MASTER_PORT, and `{{port}}` if it stands anywhere."""
    return 1 + wants_port(job)


def _outputs(job: Job, values: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the outputs as absolute patterns, in which inserted values are no patterns.

    The second part are those whose age does not matter: below `{{out}}`, which is empty when the
    attempt begins, and below `{{keep}}`, where an earlier attempt of the job may have made them.
    """
    if not job.outputs:
        return (), ()
    plain = {name: glob.escape(value) for name, value in values.items()}
    found = [os.path.join(glob.escape(job.cwd), render(text, plain)) for text in job.outputs]
    below = tuple(os.path.join(plain[name], "") for name in ("out", "keep") if name in plain)
    kept = tuple(path for path in found if path.startswith(below) and "/../" not in path)
    return tuple(path for path in found if path not in kept), kept


def argv_of(job: Job, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the program and its arguments, with all placeholders filled."""
    if isinstance(job.run, tuple):
        return tuple(render(text, values) for text in job.run)
    return (*job.shell, render(job.run, values))


def _worker(job: Job, changes: Delta, context: RunContext) -> tuple[str, ...]:
    """Return the command line of a worker's process.

    A function runs in the job's Python; a program is started by `worker lines` in this Python.
    """
    assert job.worker is not None
    programs = context.environments.programs
    if job.worker.run:
        return (*programs.command("worker", "lines"), *job.worker.run)
    path = changes.set.get("PATH") or context.base.get("PATH", os.defpath)
    python = "python" if shutil.which("python", path=path) else "python3"
    return (python, programs.at(PROGRAM), "worker", "call", job.worker.function, job.worker.load)


def _task(job: Job, values: Mapping[str, str], changes: Delta) -> Task | None:
    """Return what a worker is handed: the item, and the variables that differ between items."""
    worker = job.worker
    if worker is None:
        return None
    own = {name for name, text in job.env.items() if isinstance(text, Template)}
    env = {k: v for k, v in changes.set.items() if k.startswith("GPULAUNCH_") or k in own}
    return Task(
        key=job.demand.worker,
        values={**job.item, **values, "job": job.name},
        env=env,
        items=worker.items,
        memory=worker.memory,
        load_timeout=worker.load_timeout,
    )


def _make_room(launch: Launch, run: RunDir, outs: OutputDirs, end: str | None = None) -> None:
    """Make the attempt's directories, out of the way of files of its name; see that its own exist.

    `end`: the file of its end, if that has one.
    """
    log, out = run.log_file(launch.attempt), run.out_dir(launch.attempt)
    for left in (log, out) if end is None else (log, out, end):
        # A power cut may lose the newest events and keep these files: they are renamed, and stay.
        if os.access(left, os.F_OK, follow_symlinks=False):
            os.rename(left, f"{left}.unrecorded-{os.urandom(3).hex()}")
    outs.make(out)
    logs = os.path.dirname(log)
    if not os.path.isdir(logs):
        os.makedirs(logs, 0o700, exist_ok=True)
    if launch.job.keep:
        os.makedirs(run.keep_dir(launch.job.name), 0o700, exist_ok=True)
    require_surroundings(launch.job)


def require_surroundings(job: Job) -> None:
    """Raise NotPreparedError where the job's directory or its Python is not there.

    Another job may have failed to make them; the job must not run in some other Python then.
    """
    if not os.path.isdir(job.cwd):
        raise NotPreparedError(f"its directory {job.cwd} does not exist")
    if job.python and not may(job.python, os.X_OK):
        raise NotPreparedError(f"its python {job.python} does not exist, or cannot be executed")
    if job.venv and not os.path.exists(os.path.join(job.venv, "bin", "python")):
        raise NotPreparedError(f"its venv {job.venv} has no bin/python")
    if job.conda and not os.path.isdir(os.path.join(job.conda, "conda-meta")):
        raise NotPreparedError(f"its conda environment {job.conda} has no conda-meta")


class OutputDirs:
    """The attempts' `{{out}}` directories. One that stayed empty is renamed for a later attempt.

    On a busy disk, removing a directory takes longer than all else that a start needs.
    """

    def __init__(self) -> None:
        self._empty: deque[str] = deque()
        self._kept = 0
        self._fresh: tuple[int, int, int] | None = None

    def make(self, path: str) -> None:
        """Make this directory, or rename an empty one that is as new. Raises OSError."""
        while self._empty:
            try:
                os.rename(self._empty.popleft(), path)
                return
            except OSError:  # somebody removed it
                continue
        os.mkdir(path, 0o700)
        self._fresh = self._fresh or _ownership(path)

    def over(self, path: str) -> None:
        """Keep the directory of an ended attempt for a later one, or remove it, if it is empty."""
        try:
            with os.scandir(path) as entries:
                if next(entries, None) is not None:
                    return  # it has what it was made for
            if _ownership(path) == self._fresh and not os.listxattr(path):
                # Renamed at once, to a name that no job has, so that no empty directory is seen.
                self._kept += 1
                spare = f"{path.rpartition('/')[0]}/.spare-{self._kept}"
                os.rename(path, spare)
                self._empty.append(spare)
                return
        except OSError:
            pass
        self._remove(path)

    def close(self) -> None:
        """Remove the empty directories that no later attempt took."""
        while self._empty:
            self._remove(self._empty.popleft())

    def _remove(self, path: str) -> None:
        with suppress(OSError):
            os.rmdir(path)


def _ownership(path: str) -> tuple[int, int, int]:
    seen = os.lstat(path)
    return seen.st_mode, seen.st_uid, seen.st_gid


# ── Inputs that gpulaunch makes itself ──────────────────────────────────────────────────────────


def materialise(job: Job, run: RunDir) -> dict[str, str]:
    """Write the job's FASTA record, or link its batch; return the placeholders that name them."""
    if job.fasta:
        return {"path": str(_record(job, run))}
    if job.batch is not None:
        return {"batch_dir": str(_batch(job, run))}
    return {}


def _record(job: Job, run: RunDir) -> Path:
    assert job.fasta is not None
    with open(job.fasta.file, "rb") as source:
        source.seek(job.fasta.offset)
        record = source.read(job.fasta.length)
    if digest_of(record) != job.fasta.digest:
        raise NotPreparedError(
            f"{job.fasta.file} changed since the run began: record {job.params.get('id', '')} is"
            " no longer what it was, or where it was; `gpulaunch resume` reads the file again"
        )
    path = run.record(job.name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(record)
    return path


def _batch(job: Job, run: RunDir) -> Path:
    """Make a directory of links to the batch's items, without links of earlier attempts."""
    assert job.batch is not None
    directory = run.batch(job.name)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = Counter(os.path.basename(item) for item in job.batch)
    links: dict[str, str] = {}
    for number, item in enumerate(job.batch):
        name = os.path.basename(item)
        links[name if names[name] == 1 else f"{number}-{name}"] = item
    for there in [path for path in directory.iterdir() if path.is_symlink()]:
        if links.get(there.name) == os.readlink(there):
            del links[there.name]
        else:
            there.unlink()
    for name, item in links.items():
        (directory / name).symlink_to(item)
    return directory


def _write_shims(python: str, run_dir: str) -> None:
    """Write scripts `python` and `python3` that start exactly this interpreter.

    Scripts and not links: an interpreter finds its virtual environment beside the name by which
    it was started.
    """
    directory = Path(shims(run_dir, python))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("python", "python3"):
        script = directory / name
        if not script.exists():
            partial = directory / f".{name}"
            partial.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
            partial.chmod(0o700)
            partial.rename(script)
