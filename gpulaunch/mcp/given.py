"""The job file that a tool is given: a path, or the YAML text itself.

A text becomes a file as well: its run is gone on with, and retried, from there. It is named by what
it holds, so the same text is the same file, and its last run is known like that of any file.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from gpulaunch.errors import UsageError
from gpulaunch.files import read_bytes
from gpulaunch.files import replace as replace_file
from gpulaunch.journal.finding import working_directory


def job_file_of(
    job_file: str | None, text: str | None, cwd: str | None
) -> tuple[Path, bytes | None]:
    """Return the job file's absolute path, and what it holds where it is given as a text.

    Raises UsageError.
    """
    folder = directory_of(cwd)
    if (job_file is None) == (text is None):
        both = "both were given" if text is not None else "neither was given"
        raise UsageError(f"expected job_file (a path) or text (the YAML itself): {both}")
    if job_file is not None:
        return folder / job_file, None
    data = (text or "").encode()
    return folder / f"jobs-{hashlib.sha256(data).hexdigest()[:12]}.yaml", data


def directory_of(cwd: str | None) -> Path:
    """Return a call's directory, the server's own where it names none. Raises UsageError."""
    folder = working_directory() if cwd is None else working_directory() / cwd
    if not os.path.isdir(folder):
        raise UsageError(f"cwd: there is no directory {folder}")
    return folder


def keep_text(path: Path, data: bytes) -> None:
    """Write a text as the file that it is named by; one that is there stays as it is.

    Raises UsageError where that holds something else, or nothing can be written.
    """
    try:
        if not os.path.lexists(path):
            replace_file(path, data, mode=0o666)
        elif read_bytes(path) != data:
            raise UsageError(
                f"{path} was changed since it was written: give it as job_file, or another text"
            )
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
