"""What a client may read besides: how a job file is written. Small texts of the code's own."""

from __future__ import annotations

from gpulaunch.errors import UsageError
from gpulaunch.init import starter
from gpulaunch.jobfile.schema import explained

JOB_FILE = "gpulaunch://job-file"
FIELD = "gpulaunch://job-file/{field}"


def read(uri: str) -> str:
    """Return a resource's text. Raises UsageError where there is none of that name."""
    if uri == JOB_FILE:
        return starter()
    head, _, field = uri.rpartition("/")
    if head != JOB_FILE:
        raise UsageError(f"there is no resource {uri}: {JOB_FILE}, and {FIELD}")
    return explained(field)
