"""Starts runs that outlive the server: by the command line's own `--detach`, a process each.

A run is begun by forking, which a process with threads may not do; so it begins in a new one, whose
command line is then the one in the run's manifest and in `ps`. That process is in a session of its
own: whoever ends the server and its group neither ends the run nor cuts its start short.

The standard streams are files, not pipes: the server's end breaks none of them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import IO

from msgspec import Struct

from gpulaunch.app.own_command import own_command
from gpulaunch.errors import UNFINISHED, UsageError

MAX_TOLD = 1 << 20
"""Bytes that are read of what a start printed."""
_ANOTHER = "here: go_on: true goes on with it, new: true starts afresh"


class Started(Struct, frozen=True):
    """What a detached start printed: on standard output, and in words on standard error."""

    printed: str
    notes: Sequence[str]


def launch(words: Sequence[str], cwd: str | None = None) -> Started:
    """Carry out `gpulaunch WORDS --detach` and return what it said, once the run is recorded.

    Raises UsageError with its words where it failed. `cwd`: its directory; None: the server's.
    """
    argv = [*own_command(), words[0], "--detach", *words[1:]]
    with TemporaryFile() as out, TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"{error.filename or argv[0]}: {error.strerror}") from None
        status = process.wait()
        printed, said = _text(out).strip(), _text(err)
    lines = [line.removeprefix("gpulaunch: ") for line in said.splitlines()]
    if status:
        told = "\n".join(lines) or f"gpulaunch {words[0]} failed with status {status}"
        raise UsageError(f"{told}\n{_ANOTHER}" if status == UNFINISHED else told)
    return Started(printed, lines)


def _text(file: IO[bytes]) -> str:
    # Not `seek`: whoever still writes there would go on at another place.
    return os.pread(file.fileno(), MAX_TOLD, 0).decode(errors="surrogateescape")
