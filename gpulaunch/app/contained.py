"""Which engine runs each container of a list, on this machine or on a cluster's nodes.

Finds what is wrong with that before anything starts, and says it. Starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from gpulaunch.containers.command_lines import CARRIED, NO_PROGRAM
from gpulaunch.containers.engines import InstalledEngines, NoEngineError
from gpulaunch.core.model import ContainerEngine, ImageSource, Job
from gpulaunch.errors import Mistake
from gpulaunch.jobfile import Plan
from gpulaunch.jobfile.containers import why_not
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.process.native import program_inside


def uncontainable(plan: Plan, jobs: Sequence[Job], cluster: bool) -> list[Mistake]:
    """Return a mistake for each container that cannot be had here, and what its engine cannot do.

    `cluster`: the jobs run on a cluster's nodes.
    """
    return plan.mistakes(_wrong(jobs, cluster))


def _wrong(jobs: Sequence[Job], cluster: bool) -> Iterator[tuple[Steps, str]]:
    engines = _Engines(cluster)
    for job in jobs:
        if job.container is None:
            continue
        engine = engines.of(job.container.source)
        if isinstance(engine, NoEngineError):
            yield ("jobs", job.group, "container"), str(engine)
            continue
        if engine in CARRIED and engines.no_program:
            yield ("jobs", job.group, "container"), f"{engine}: {NO_PROGRAM}"
        for field, why in why_not(job, engine):
            yield ("jobs", job.group, field), why


def chosen_engines(jobs: Sequence[Job], cluster: bool) -> Iterator[str]:
    """Yield a line for each image: which engine runs it, or why none does."""
    engines = _Engines(cluster)
    for source in dict.fromkeys(job.container.source for job in jobs if job.container):
        engine = engines.of(source)
        if isinstance(engine, NoEngineError):
            yield f"container {source.image}: {engine}"
        else:
            where = "on the nodes" if cluster else engines.installed.path(engine)
            yield f"container {source.image}: {engine} runs it ({where})"


class _Engines:
    """The engine of each image, or why there is none; each is looked up once."""

    def __init__(self, cluster: bool) -> None:
        self.installed = InstalledEngines(os.environ)
        self._cluster = cluster
        self._found: dict[ImageSource, ContainerEngine | NoEngineError] = {}
        self._no_program: bool | None = None

    def of(self, source: ImageSource) -> ContainerEngine | NoEngineError:
        if source not in self._found:
            try:
                self._found[source] = self.installed.engine_for(source, self._cluster)
            except NoEngineError as error:
                self._found[source] = error
        return self._found[source]

    @property
    def no_program(self) -> bool:
        """Whether what gpulaunch starts in a container is missing."""
        if self._no_program is None:
            self._no_program = program_inside() is None
        return self._no_program
