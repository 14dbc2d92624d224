"""Reads the job file once more: for a run that is gone on with, or, while it lives, for a retry.

    Retry(as filed) ─▶ a thread reads the file ─end of pipe─▶ refiled: what changed ─▶ RetriedAnew
                                                                   └─ or Refused: why nothing did

A long list takes seconds to read, and a dead file server never answers: the loop waits for neither.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gpulaunch.app.checks import misfits
from gpulaunch.app.options import RunOptions
from gpulaunch.core.events import RetriedAnew
from gpulaunch.core.model import Job
from gpulaunch.core.run import Run
from gpulaunch.engines.pool import CardPool
from gpulaunch.errors import GpulaunchError, JobFileError, UsageError
from gpulaunch.files import read_bytes
from gpulaunch.jobfile import Plan, load, load_text
from gpulaunch.jobfile.plan import as_chosen
from gpulaunch.journal.choices import Choices
from gpulaunch.journal.manifest import Manifest
from gpulaunch.journal.rundir import RunDir
from gpulaunch.text import listing


class Filed(Struct, frozen=True):
    """A run's job file, and the options that were chosen over it."""

    file: Path
    choices: Choices

    def read(self, environ: Mapping[str, str]) -> Plan:
        """Return the plan of the file as it is now. Raises UsageError, JobFileError."""
        if not self.file.exists():
            own = "--recorded goes on with the run's own copy of it"
            raise UsageError(f"{self.file} is gone; {own}")
        plan = load(self.file, environ=environ, per_gpu=self.choices.per_gpu)
        return as_chosen(plan, self.choices.explain, self.choices.preload)


def plan_again(run: RunDir, manifest: Manifest, options: RunOptions, recorded: bool) -> Plan:
    """Return the plan of the job file as it is now, under the run's choices.

    Of the run's own copy, if that is asked for or there is no file.
    """
    choices, filed = options.choices, filed_of(manifest, options)
    if filed is not None and not recorded:
        return filed.read(os.environ)
    plan = recorded_plan(run, manifest, choices.per_gpu)
    return as_chosen(plan, choices.explain, choices.preload)


def filed_of(manifest: Manifest, options: RunOptions) -> Filed | None:
    """Return the file from which a run reads its jobs again; None if there is none."""
    return Filed(Path(manifest.job_file), options.choices) if manifest.job_file else None


def recorded_plan(run: RunDir, manifest: Manifest, per_gpu: int | None = None) -> Plan:
    """Return the plan of the run's own copy of its job file. Raises UsageError, JobFileError."""
    copy = run.newest_jobs_file()
    try:
        text = read_bytes(copy)
    except OSError as error:
        raise UsageError(f"{copy}, the run's own copy, cannot be read: {error.strerror}") from None
    base = Path(manifest.job_file).parent if manifest.job_file else Path(manifest.cwd)
    return load_text(text, name=manifest.name, base=base, environ=os.environ, per_gpu=per_gpu)


class RefusedError(GpulaunchError):
    """Nothing was requeued; the text says why."""


class Reading:
    """Reads the file in a thread; `fileno` becomes readable (end of file) once that is over."""

    def __init__(self, filed: Filed, environ: Mapping[str, str]) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        self._filed = filed
        self._environ = dict(environ)
        self._found: Plan | str = ""
        threading.Thread(target=self._look, daemon=True).start()

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        """Close the descriptor. Unwatch it first; the thread ends by itself."""
        os.close(self._read)

    def plan(self) -> Plan:
        """Return the plan that was read. Raises RefusedError with every mistake of the file."""
        if isinstance(self._found, Plan):
            return self._found
        raise RefusedError(self._found)

    def _look(self) -> None:
        try:
            self._found = self._filed.read(self._environ)
        except GpulaunchError as error:
            self._found = f"{error}\nnothing was requeued: the run goes on as it was"
        except Exception as error:  # a bug there must not leave the client without an answer
            self._found = f"{self._filed.file} could not be read: {error!r}; nothing was requeued"
        finally:
            os.close(self._write)


def refiled(run: Run, plan: Plan, names: tuple[str, ...] | None, pool: CardPool) -> RetriedAnew:
    """Return the retry of these jobs (None: all that failed) by this plan. Changes nothing.

    Raises RefusedError where a job can never run as it is now, or its needs, after or service
    changed: a live run cannot take that up.
    """
    by_name = {job.name: job for job in plan.jobs}
    asked = run.retried_by(names)
    gone = tuple(name for name in asked if name not in by_name)
    jobs = tuple(by_name[name] for name in asked if name in by_name)
    if wrong := misfits(plan, jobs, pool):
        raise RefusedError(str(JobFileError(wrong)))
    if moved := [job.name for job in jobs if _moved(job, run)]:
        raise RefusedError(
            f"{listing(moved)}: needs, after or service is another now, which a live run cannot"
            " take up. Nothing was requeued: let the run end, or stop it, and retry then;"
            " --recorded retries what it began with"
        )
    return RetriedAnew(names, jobs, gone)


def _moved(job: Job, run: Run) -> bool:
    """Tell whether the job's needs or after, among the run's jobs, or its service changed."""
    known = run.job(job.name)
    if known is None:
        return False

    def links(one: Job) -> tuple[set[str], set[str], bool]:
        there = run.ledger.jobs.keys()
        return set(one.needs) & there, set(one.after) & there, one.service is None

    return links(job) != links(known)
