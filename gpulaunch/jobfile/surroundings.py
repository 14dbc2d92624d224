"""What surrounds a job file when it is read: whoever reads it makes this once, and hands it on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, field

from gpulaunch.core.model import Job
from gpulaunch.jobfile.cards import CardsOfRun
from gpulaunch.jobfile.mistakes import Mistakes
from gpulaunch.jobfile.sources import Following


class Beside(Struct, frozen=True):
    """What jobs that are added to a live run find there: names of its jobs, which they may need,
    and its `limits`, which hold for them."""

    names: Collection[str] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


Look: TypeAlias = Callable[[Mistakes, Sequence[Job]], None]
"""A check of the jobs that start first, which adds mistakes."""


class Surroundings(Struct, frozen=True):
    """The caller's environment (HOME, PATH, where conda is), and what a run has beside its file.

    `per_gpu` stands for the file's own, which jobs that say nothing have; `defaults`: fields of
    jobs that do not say otherwise (`timeout=2h`), above the file's own. `cards`: which cards the
    run has, for `foreach: cards`; None where that is not known. `cwd`: where the commands of a list
    start, the working directory where it is None; those of a job file start at the file.

    `look` adds mistakes, to be told with the others. `following`: for a run that looks at the
    sources of `foreach` again as they change; a pattern that matches nothing is no mistake then.
    `beside`: the live run that the jobs are added to. `now`: from when on times of day are looked
    for, in seconds since 1970; None: the present.
    """

    environ: Mapping[str, str]
    per_gpu: int | None = None
    defaults: Sequence[str] = ()
    cards: CardsOfRun | None = None
    cwd: Path | None = None
    look: Look | None = None
    following: Following | None = None
    beside: Beside = Beside()
    now: float | None = None
