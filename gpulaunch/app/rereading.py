"""Reads the job file once more while its run lives, for jobs that are retried.

    Retry(as filed) ─▶ a thread reads the file ─end of pipe─▶ refiled: what changed ─▶ RetriedAnew
                                                                   └─ or Refused: why nothing did

A long list takes seconds to read, and a dead file server never answers: the loop waits for neither.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpulaunch.app.checks import misfits
from gpulaunch.core.events import RetriedAnew
from gpulaunch.core.model import Job
from gpulaunch.core.run import Run
from gpulaunch.engines.pool import CardPool
from gpulaunch.errors import GpulaunchError, JobFileError
from gpulaunch.jobfile import Plan, load
from gpulaunch.jobfile.plan import as_chosen
from gpulaunch.journal.choices import Choices
from gpulaunch.text import listing


@dataclass(frozen=True, slots=True)
class Filed:
    """A run's job file, and the options that were chosen over it."""

    file: Path
    choices: Choices


@dataclass(frozen=True, slots=True)
class Refiled:
    """What a retry does, with the job file as it is now.

    Names of jobs: `requeued`, those of them with another definition (`changed`), and those that
    the file no longer has (`gone`).
    """

    event: RetriedAnew
    requeued: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]


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
        choices, file = self._filed.choices, self._filed.file
        try:
            if not file.exists():
                raise RefusedError(f"{file} is gone; --recorded retries with what it said")
            plan = load(file, environ=self._environ, per_gpu=choices.per_gpu)
            self._found = as_chosen(plan, choices.explain, choices.preload)
        except GpulaunchError as error:
            self._found = f"{error}\nnothing was requeued: the run goes on as it was"
        except Exception as error:  # a bug there must not leave the client without an answer
            self._found = f"{file} could not be read: {error!r}; nothing was requeued"
        finally:
            os.close(self._write)


def refiled(run: Run, plan: Plan, names: tuple[str, ...] | None, pool: CardPool) -> Refiled:
    """Return what a retry of these jobs (None: all that failed) would do. Changes nothing.

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
    ledger = run.ledger
    changed = tuple(
        job.name for job in jobs if ledger.jobs[job.name].definition.digest != job.digest
    )
    requeued = tuple(job.name for job in jobs)
    return Refiled(RetriedAnew(names, jobs, frozenset(gone)), requeued, changed, gone)


def _moved(job: Job, run: Run) -> bool:
    """Whether the job's needs or after, among the run's jobs, or its service changed."""
    known = run.job(job.name)
    if known is None:
        return False

    def links(one: Job) -> tuple[set[str], set[str], bool]:
        there = run.ledger.jobs.keys()
        return set(one.needs) & there, set(one.after) & there, one.service is None

    return links(job) != links(known)
