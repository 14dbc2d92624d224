"""Computes a job's digest, which changes if and only if what would be run changes.

In it: the command and everything it finds around it, and what its success is measured by. Not in
it: the name, its place in the file, when it may run, how often and for how long.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gpulaunch.core.model import Container, Job, Worker
from gpulaunch.core.template import Text


def digest(job: Job, base: str = "") -> str:
    """Return 16 hex digits, independent of where the job file's directory, `base`, lies."""
    parts: list[Any] = [
        _command(job),
        job.cwd,
        sorted((key, None if v is None else _plain(v)) for key, v in job.env.items()),
        [job.env_file, job.python, job.venv, job.conda],
        job.demand.gpus,
        [_plain(text) for text in job.outputs],
        sorted(job.success_codes),
        job.batch,
        [job.fasta.file, job.fasta.digest] if job.fasta else None,
        _plain(job.service.ready) if job.service else None,
        job.inherit_ranks,
    ]
    if job.ladder is not None:
        parts.append([job.ladder.names, job.ladder.steps])
    if job.demand.own_gpu:
        parts.append(["own_gpu", job.demand.own_gpu])
    if job.container is not None:
        parts.append(["container", *of_container(job.container)])
    if job.modules:
        parts.append(["modules", job.modules])
    if job.worker is not None:
        parts.append(_of_worker(job, job.worker))
    return hashlib.sha256(_rootless(json.dumps(parts), base).encode()).hexdigest()[:16]


def _rootless(text: str, base: str) -> str:
    """Return the text with NUL, which no JSON text holds, in place of the directory `base`."""
    directory = json.dumps(base.rstrip("/"))[1:-1]
    if not directory:
        return text
    return text.replace(f"{directory}/", "\0/").replace(f'{directory}"', '\0"')


def of_container(container: Container) -> list[Any]:
    """Return what a container says of what runs; not when its image is pulled."""
    mounts = [[mount.source, mount.target, mount.read_only] for mount in container.mounts]
    return [container.image, container.engine, mounts, container.args, container.user]


def _of_worker(job: Job, worker: Worker) -> list[Any]:
    """Return the functions and the item, without its index, which a new file before it changes."""
    item = sorted((name, value) for name, value in job.item.items() if name != "index")
    return [worker.function, worker.load, item]


def _command(job: Job) -> list[Any]:
    if isinstance(job.run, tuple):
        return [_plain(text) for text in job.run]
    return [list(job.shell), _plain(job.run)]


def _plain(text: Text) -> Any:
    if isinstance(text, str):
        return text
    return [p if isinstance(p, str) else [p.name, p.quoting] for p in text.parts]
