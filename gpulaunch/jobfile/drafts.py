"""What the expansion of entries makes, and what all entries share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from gpulaunch.base.errors import NoCardsError
from gpulaunch.base.localtime import parse_moment
from gpulaunch.core.model import Demand, DueTime, Gpu, Job
from gpulaunch.jobfile import schedulers
from gpulaunch.jobfile.containers import SharedContainers
from gpulaunch.jobfile.mistakes import Mistakes
from gpulaunch.jobfile.needs import Pattern
from gpulaunch.jobfile.paths import Places
from gpulaunch.jobfile.source import Following, ForeachSource
from gpulaunch.jobfile.texts import Scripts

MAX_JOBS = 500_000


class Draft(Struct, frozen=True):
    """A job whose needs are still patterns; `serves`: it is a service.

    `job` is None where too much of it is wrong; `sound`: all that says what it runs is right.
    `gathers`: of its needs, those that mean all jobs of a kind, however many come.
    """

    name: str
    where: str
    group: int
    job: Job | None
    needs: tuple[Pattern, ...] = ()
    after: tuple[Pattern, ...] = ()
    serves: bool = False
    sound: bool = True
    gathers: tuple[Pattern, ...] = ()


class ExpansionContext(Struct):
    """What all entries share: the file's directory and environment, and what was looked up.

    `following`: items may come and go later. `sources`: what the items come from, in order. `now`:
    from when on times of day are looked for, in seconds since 1970. `cards`: the run's cards, where
    they can be known; `lacking`: why there are none, where jobs are made for each.
    """

    places: Places
    containers: SharedContainers
    mistakes: Mistakes
    limits: Mapping[str, int]
    per_gpu: int = 1
    following: Following | None = None
    sources: dict[ForeachSource, None] = field(default_factory=dict)
    now: float = 0.0
    cards: Callable[[], Sequence[Gpu]] | None = None
    lacking: NoCardsError | None = None
    jobs: int = 0
    scripts: Scripts = field(default_factory=dict)
    demands: dict[Demand, Demand] = field(default_factory=dict)
    engines: dict[str, schedulers.Settings] = field(default_factory=dict)
    dues: dict[str, DueTime] = field(default_factory=dict)

    def due(self, words: str | None) -> DueTime | None:
        """Return the moment that `not_before` means, read now, in the machine's zone."""
        if words is None:
            return None
        if words not in self.dues:
            self.dues[words] = DueTime(words, parse_moment(words, self.now))
        return self.dues[words]
