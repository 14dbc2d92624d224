"""Makes a Plan of a job file's text: the file's own keys, each entry in turn, names, needs.

Goes on after every mistake that leaves the rest readable, and raises them all together.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.core.model import Job
from gpulaunch.jobfile import tree
from gpulaunch.jobfile.containers import SharedContainers
from gpulaunch.jobfile.entries import Drafts, resolved
from gpulaunch.jobfile.expand import ExpansionContext
from gpulaunch.jobfile.file_keys import FileKeys
from gpulaunch.jobfile.mistakes import Mistakes
from gpulaunch.jobfile.paths import Places
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.source import JobFileText, decode, read_bytes
from gpulaunch.jobfile.sources import Following
from gpulaunch.jobfile.values import found


class Beside(Struct, frozen=True):
    """What jobs that are added to a live run find there: names of its jobs, which they may need,
    and its `limits`, which hold for them. `was_there` tells whether an archived job has a name.
    """

    names: Collection[str] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    was_there: Callable[[str], bool] = lambda name: False


ALONE = Beside()
Look: TypeAlias = Callable[[Mistakes, Sequence[Job]], None]
"""A check of the jobs that start first, which adds mistakes."""


def load(
    path: Path,
    *,
    environ: Mapping[str, str],
    per_gpu: int | None = None,
    look: Look | None = None,
    following: Following | None = None,
) -> Plan:
    """Read a job file and return its plan.

    Raises JobFileError with every mistake, UsageError where there is no such file to read.
    `environ` is the caller's environment (HOME, PATH, where conda is). `per_gpu` stands for the
    file's own, which jobs that say nothing have. `look` adds mistakes, to be told with the others.
    `following`: for a run that looks at the sources of `foreach` again as they change; a pattern
    that matches nothing is no mistake then.
    """
    data, base = read_bytes(path, "a job file (YAML text)"), path.absolute().parent
    plan = load_text(
        data,
        name=str(path),
        base=base,
        environ=environ,
        per_gpu=per_gpu,
        look=look,
        following=following,
    )
    return replace(plan, path=path)


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Turn cyclic garbage collection off during the block.

    100,000 jobs are millions of objects that all stay; looking through them again and again for
    cycles, of which there are none, took half of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_collecting_nothing()
def load_text(
    data: bytes,
    *,
    name: str,
    base: Path,
    environ: Mapping[str, str],
    per_gpu: int | None = None,
    look: Look | None = None,
    beside: Beside = ALONE,
    following: Following | None = None,
    now: float | None = None,
) -> Plan:
    """Return the plan of a text, as `load`; `name` is how messages call it.

    `base` is the directory where relative paths and globs start; `beside`: the run that the jobs
    are added to. `now`: from when on times of day are looked for (seconds since 1970); None: the
    present.
    """
    base = base.absolute()
    base = base.resolve() if ".." in base.parts else base  # without `..`, but with its links
    source = JobFileText(name, base, data, decode(data, name))
    root, early = tree.parse(source)
    mistakes = Mistakes(source, root)
    for at, message in early:
        mistakes.add_at(at, message)
    if not isinstance(root.value, dict):
        mistakes.add((), "expected a mapping with jobs:, found " + found(root.plain()))
        mistakes.raise_if_any()
    top = FileKeys(root, mistakes)
    top.read(Path(name).stem)
    shared = top.per_gpu if per_gpu is None else per_gpu
    limits = {**top.limits, **beside.limits}
    places = Places(base, environ)
    since = time.time() if now is None else now
    containers = SharedContainers(places.find)
    context = ExpansionContext(places, containers, mistakes, limits, shared, following, now=since)
    drafts = Drafts(context, top.wrong_defaults)
    drafts.expand(root, top.defaults)
    jobs, held = resolved(drafts, mistakes, beside.names, beside.was_there)
    if look is not None:
        look(mistakes, drafts.startable())
    mistakes.raise_if_any()
    return Plan(
        name=top.name,
        selection=top.selection,
        per_gpu=shared,
        limits=limits,
        jobs=tuple(jobs),
        notify=top.notify,
        source=source,
        sources=tuple(context.sources),
        held=held,
        free_below=top.free_below,
    )
