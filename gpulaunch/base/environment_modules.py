"""Environment modules: what tells of Lmod or Environment Modules, and how a job gets its modules.

    modules: [cuda/12.4]  ─▶ bash -p -c load_modules.sh ... PROGRAM ARGUMENT...
    run: module load cuda ─▶ BASH_ENV, from which each bash gets its `module`

Knows no job. Reads no modulefile itself: `load_modules.sh` has the module program do it, where the
job runs. `why_not` alone starts a process.

Sources: lmod.readthedocs.io, "How to install Lmod" and the questions on BASH_ENV;
modules.readthedocs.io, module(1), `set_shell_startup`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from posixpath import dirname, normpath

NOT_LOADED = 126
"""The status of a job whose modules could not be loaded; its last line says why."""
LOOK_TIMEOUT = 10.0
"""Seconds after which a look at modules tells nothing: a shared disk may only be slow."""

_FUNCTION = "BASH_FUNC_module%%"
"""The variable by which bash hands its function `module` to the shells that it starts."""
_INIT = r"init/(?:bash|sh|profile|profile\.sh)"
_START_UP = re.compile(
    rf"/(?:.*/)?(?:lmod|modules)/(?:[^/]+/)*{_INIT}|/etc/profile\.d/[\w-]*(?:lmod|modules)\.sh",
    re.IGNORECASE,
)
_CALLS = re.compile(r"(?:^|[\s;&|(){}`])(?:module|ml)(?=$|[\s;&|)])")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def start_up_file(environ: Mapping[str, str]) -> str | None:
    """Return BASH_ENV where it is the module program's own file, and not a person's; else None.

    From it, each bash in this environment gets its `module`.
    """
    given = environ.get("BASH_ENV", "")
    path = normpath(given)
    own = any(re.fullmatch(rf"{re.escape(home)}/{_INIT}", path) for home in _homes(environ))
    return given if own or _START_UP.fullmatch(path) else None


def file_for_calls(environ: Mapping[str, str]) -> str | None:
    """Return the start-up file with which a bash has `module`, where it would not without.

    So it is where the login shell is not bash: other shells hand no functions on. None where bash
    has it anyway, or the environment names no module program.
    """
    homes = _homes(environ)
    if not homes or _FUNCTION in environ or start_up_file(environ) is not None:
        return None
    return f"{homes[0]}/init/bash"


def calls_module(script: str) -> bool:
    """Tell whether a script seems to call `module` or `ml`."""
    return _CALLS.search(script) is not None


def _homes(environ: Mapping[str, str]) -> list[str]:
    """Return the directories that module programs call their own."""
    homes = [environ.get("LMOD_PKG", ""), environ.get("MODULESHOME", "")]
    homes.append(dirname(environ.get("LMOD_DIR", "")))
    return [normpath(home) for home in homes if home.startswith("/")]


def loading(
    modules: Sequence[str],
    argv: Iterable[str],
    kept: Iterable[str] = (),
    own: Iterable[str] = (),
    first: str = "",
) -> tuple[str, ...]:
    """Return the command line that loads modules and then becomes the program `argv`.

    `kept`: variables that modules do not change, beside gpulaunch's own. `own`: those to which they
    may only add, before or behind. `first`: directories that stay the first on PATH.
    """
    names = [" ".join(filter(_IDENTIFIER.fullmatch, some)) for some in (kept, own)]
    count = str(len(modules))
    return ("bash", "-p", "-c", script(), "gpulaunch", count, *modules, *names, first, *argv)


@cache
def script() -> str:
    """Return the text of the script that loads modules."""
    return Path(__file__).with_name("load_modules.sh").read_text(encoding="utf-8")


def why_not(
    modules: Sequence[str], environ: Mapping[str, str], timeout: float | None = None
) -> str | None:
    """Return why these modules cannot be loaded here, in a line; empty where they can.

    Loads them in a shell of its own. None where no answer comes in time (seconds; LOOK_TIMEOUT).
    """
    try:
        process = subprocess.Popen(
            loading(modules, ("true",)),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError:
        return ""
    try:
        _, told = process.communicate(timeout=LOOK_TIMEOUT if timeout is None else timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)
    lines = [line.strip() for line in told.decode(errors="replace").splitlines()]
    if process.returncode != NOT_LOADED or not lines:
        return ""
    last = lines[-1].removeprefix("gpulaunch: ").removeprefix("modules: ")
    why, own_words, _ = last.partition("; what it says")
    return f"{why}: {' '.join(_first_paragraph(lines))}"[:400] if own_words else why


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a look and what it started, unless it is over: a Ctrl-C does not reach its session."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1.0)  # one that a disk holds ends later
    if process.stderr is not None:
        process.stderr.close()


def _first_paragraph(lines: Sequence[str]) -> Sequence[str]:
    start = next(number for number, line in enumerate(lines) if line)
    end = next((n for n, line in enumerate(lines[start:-1], start) if not line), len(lines) - 1)
    return lines[start:end]
