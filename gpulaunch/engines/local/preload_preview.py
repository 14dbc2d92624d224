"""What `preload:` would do for each entry of a job file, in words, for `gpulaunch check`.

Asks the jobs' own interpreter, in a process of its own, what a script imports; imports nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from gpulaunch.core.model import Job
from gpulaunch.core.template import Text
from gpulaunch.engines.environment import AttemptPlace, MachineLimits, delta
from gpulaunch.engines.local.forkable import Cold, Forkable, forkable
from gpulaunch.engines.local.preloads import AUTO
from gpulaunch.farside.client import PROGRAM

PREVIEW_TIMEOUT = 20.0
"""Seconds within which the jobs' interpreter has to answer."""


def told(jobs: Sequence[Job], base: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each entry of the job file that has `preload:`, judged by its first job."""
    seen: set[int] = set()
    for job in jobs:
        if job.preload and job.group not in seen:
            seen.add(job.group)
            yield f"preload: {job.name}: {_of(job, base)}"


def _of(job: Job, base: Mapping[str, str]) -> str:
    if job.worker:
        return "not used: its worker imports once for many items by itself"
    home = job.venv or job.conda or job.python
    if home and not os.path.exists(home):  # a job that it needs may make it
        return f"what it imports cannot be seen before {home} is there"
    # The run's shims do not exist yet: `_argv` puts the interpreter that they start in place.
    place = AttemptPlace(gpus=(), style="index", scope="", master_port=1, run_dir="/run-dir")
    own = {name: value if value is None else _plain(value) for name, value in job.env.items()}
    environ = delta(job, place, MachineLimits(1, 1, "/cache"), base, own).over(base)
    by_shell = not isinstance(job.run, tuple)
    try:
        found = forkable(_argv(job), job.cwd, environ, by_shell)
    except Cold as cold:
        return f"starts cold: {cold}"
    if job.preload != AUTO:
        return f"imports {', '.join(job.preload)} once for all its jobs"
    return _found(found, job.cwd, environ)


def _argv(job: Job) -> tuple[str, ...]:
    if isinstance(job.run, tuple):
        words = tuple(_plain(text) for text in job.run)
        pythons = ("python", "python3")
        return (job.python, *words[1:]) if job.python and words[0] in pythons else words
    script = _plain(job.run)
    first, space, rest = script.strip().partition(" ")
    if job.python and first in ("python", "python3"):
        script = f"{job.python}{space}{rest}"
    return (*job.shell, script)


def _plain(text: Text) -> str:
    """Return the text with each start-time placeholder replaced by its name."""
    if isinstance(text, str):
        return text
    return "".join(part if isinstance(part, str) else part.name for part in text.parts)


def _found(found: Forkable, cwd: str, environ: Mapping[str, str]) -> str:
    argv = [found.python, PROGRAM, "preload.finding", *found.target]
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=environ, capture_output=True, timeout=PREVIEW_TIMEOUT, check=True
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        return f"what it imports could not be found out: {problem}"
    if not said["modules"]:
        return f"starts cold: nothing to import was found in {said['where']}"
    text = f"imports {', '.join(said['modules'])} once for all its jobs (auto, {said['where']})"
    for name, why in said["left_out"].items():
        text += f"; leaves out {name}: {why}"
    return text
