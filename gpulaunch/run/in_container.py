"""A command in a container, outside of any run: `gpulaunch exec --container`.

    image ─▶ pulled, where it has to be, before a card is taken ─▶ the engine's command line

The command that follows is the carrier's or the engine's own, which then replaces this process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import msgspec

from gpulaunch.base.errors import GpulaunchError, JobFileError, UsageError
from gpulaunch.base.helper_process import command, start
from gpulaunch.containers.engines import InstalledEngines
from gpulaunch.containers.pulling import PullRequest
from gpulaunch.containers.removing import PID, is_held
from gpulaunch.core.model import Container, ImageSource, Job
from gpulaunch.engines.contained import contained
from gpulaunch.engines.context import ImageHere
from gpulaunch.engines.environment import (
    AttemptPlace,
    EnvironmentMaker,
    MachineLimits,
)
from gpulaunch.engines.pool import cache_directory
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text


class NotPulledError(GpulaunchError):
    """The image is not to be had; the text says why, and what to do."""


def container_of(
    image: str, mounts: Sequence[str], base: Path, environ: Mapping[str, str]
) -> Container:
    """Return the container that a command line asks for, checked as a job file's would be.

    `mounts`: `SOURCE[:TARGET[:ro]]`, relative to `base`. Raises UsageError.
    """
    entry = {"container": {"image": image, "mounts": list(mounts)}, "run": "x"}
    text = json.dumps({"jobs": [entry]}).encode()
    try:
        plan = load_text(text, Surroundings(environ), name="exec", base=base, as_list=False)
    except JobFileError as error:
        lines = (f"--container: {one.text}" for one in error.found)
        raise UsageError("\n".join(lines)) from None
    made = plan.jobs[0].container
    assert made is not None
    return made


def pulled(
    source: ImageSource, environ: Mapping[str, str], say: Callable[[str], object]
) -> ImageHere:
    """Return the image, pulled where it has to be; `say` gets a line for each step of that.

    Raises NoEngineError, NotPulledError, OSError.
    """
    engine = InstalledEngines(environ).engine_for(source)
    say(f"in the container {source.image}, by {engine}")
    cache = os.path.join(cache_directory(environ), "images")
    request = PullRequest(engine, source.image, source.pull, "", cache)
    line = command("gpulaunch.containers.pulling", msgspec.json.encode(request).decode())
    with start(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as helper:
        assert helper.stdout is not None
        assert helper.stdin is not None
        try:
            for told in helper.stdout:
                said: dict[str, Any] = json.loads(told)
                if said["said"] == "pulling":
                    say(f"pulling {source.image} with {engine}")
                elif said["said"] == "ready":
                    return ImageHere(engine, said["id"])
                elif said["said"] == "failed":
                    raise NotPulledError(said["why"])
        finally:
            with suppress(OSError):
                helper.stdin.close()  # by which it ends
    raise NotPulledError(f"{source.image}: what was to look for it ended without a word")


def made_contained(
    job: Job,
    here: ImageHere,
    place: AttemptPlace,
    machine: MachineLimits,
    environ: Mapping[str, str],
    argv: tuple[str, ...],
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line that runs `argv` in the job's container, and its environment.

    Raises OSError, NotContainedError.
    """
    folder = os.path.join(_records(environ), f"{os.getpid()}-{os.urandom(4).hex()}")
    environments = EnvironmentMaker(machine, environ)
    line, changes = contained(job, here, place, environments, folder, argv, {})
    return line, changes.over(environ)


def _records(environ: Mapping[str, str]) -> str:
    """Return the directory for records of containers, which is the caller's alone.

    Removes what killed carriers left there. Raises OSError.
    """
    home = os.path.join(_room(environ), f"gpulaunch-{os.geteuid()}")
    with suppress(FileExistsError):
        os.mkdir(home, 0o700)
    found = os.lstat(home)
    if not S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return tempfile.mkdtemp(prefix="gpulaunch-")  # somebody else's, in a directory for all
    for name in os.listdir(home):
        folder = os.path.join(home, name)
        # Without PID its carrier is about to begin.
        if os.path.exists(os.path.join(folder, PID)) and not is_held(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return home


def _room(environ: Mapping[str, str]) -> str:
    """Return a directory that nobody tidies by the age of its files, where there is one."""
    own = environ.get("XDG_RUNTIME_DIR", "")
    return own if own and os.access(own, os.W_OK | os.X_OK) else tempfile.gettempdir()
