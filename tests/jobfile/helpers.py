"""Loading a job file from a string."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpulaunch.base.errors import JobFileError
from gpulaunch.core.model import Job
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from gpulaunch.jobfile.plan import Plan

GOOD = Path(__file__).parent / "good"


def plan_of(
    text: str, base: Path = GOOD, environ: Mapping[str, str] | None = None, name: str = "jobs.yaml"
) -> Plan:
    environ = {"HOME": "/nonexistent", "PATH": os.defpath} if environ is None else environ
    return load_text(textwrap.dedent(text).encode(), Surroundings(environ), name=name, base=base)


def jobs_of(text: str, base: Path = GOOD, environ: Mapping[str, str] | None = None) -> list[Job]:
    return list(plan_of(text, base, environ).jobs)


def job_of(fields: str, base: Path = GOOD, environ: Mapping[str, str] | None = None) -> Job:
    """The one job whose fields these are, in flow style: `run: x, gpus: 2`."""
    (job,) = jobs_of(f"jobs: [{{{fields}}}]", base, environ)
    return job


def mistakes_of(text: str, base: Path = GOOD) -> list[str]:
    """The first line of each mistake, without the file's name."""
    with pytest.raises(JobFileError) as caught:
        plan_of(text, base)
    return [block.split("\n")[0].removeprefix("jobs.yaml:") for block in caught.value.mistakes]
