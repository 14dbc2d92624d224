"""How a job's input files are: their sizes and times of change, in a text that is compared alone.

    4711:1763624535123456789        one file: its bytes, its time of change in nanoseconds
    20:9c1185a5d3...                a batch of 20 files: a digest of all of theirs

Files are a `foreach`'s matches, values and lines that are inserted as `{{path}}`, and the items of
a batch. A directory is not looked at: a job may write into it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from hashlib import blake2s

from msgspec import Struct

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job


class InputLook(Struct, frozen=True):
    """Jobs that succeeded, by their input: another one than then, or `missing`."""

    changed: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()


def files_of(job: Job) -> tuple[str, ...]:
    """Return the absolute paths of the files that the job's items are."""
    if job.batch is not None:
        return job.batch
    if job.input_base is None:
        return ()
    return (os.path.join(job.input_base, job.params["item"]),)


def stamp_of(job: Job) -> str:
    """Return how the job's input files are; empty for none, or where one is no file, or gone."""
    if job.input_base is None and job.batch is None:
        return ""
    parts = []
    for path in files_of(job):
        try:
            seen = os.stat(path)
        except (OSError, ValueError):
            return ""
        if not stat.S_ISREG(seen.st_mode):
            return ""
        parts.append(f"{seen.st_size}:{seen.st_mtime_ns}")
    if len(parts) == 1:
        return parts[0]
    return f"{len(parts)}:{blake2s(' '.join(parts).encode(), digest_size=16).hexdigest()}"


def look(jobs: Iterable[Job], ledger: Ledger, seconds: float | None = None) -> InputLook:
    """Compare the input files of jobs that succeeded with what they were then.

    For so many `seconds` at most. A job whose input was not looked at then is neither.
    """
    changed: set[str] = set()
    missing: set[str] = set()
    end = None if seconds is None else time.monotonic() + seconds
    for job in jobs:
        record = ledger.jobs.get(job.name)
        if record is None or record.state != "succeeded":
            continue
        then = record.success
        if then is None or not then.inputs:
            continue
        if end is not None and time.monotonic() > end:
            break
        stamp = stamp_of(job)
        if not stamp:
            missing.add(job.name)
        elif stamp != then.inputs:
            changed.add(job.name)
    return InputLook(frozenset(changed), frozenset(missing))
