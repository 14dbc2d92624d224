"""Which jobs are one array, in which submissions it goes to Slurm, and what those wait for.

    jobs ─▶ Unit: jobs of an entry with one script, a line of a table for each
         ─▶ Submission: those of a unit that wait for the same, `sbatch --array=0,2-5 unit.sh`

A job that waits for its own counterpart in an array of the same length does so by aftercorr, and
the array stays whole.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby

from msgspec import Struct

from gpulaunch.core.model import Job
from gpulaunch.export.look import levels_of


class Unit(Struct, frozen=True, eq=False):
    """`name` names its files; `jobs` are in the order of the array's numbers."""

    name: str
    group: int
    script: str
    jobs: tuple[Job, ...]
    table: tuple[str, ...]

    @property
    def is_array(self) -> bool:
        return len(self.jobs) > 1


class Wait(Struct, frozen=True):
    """`kind` is Slurm's: afterok, afterany, aftercorr. No `tasks`: the whole submission."""

    kind: str
    submission: str
    tasks: tuple[int, ...] = ()


class Submission(Struct, frozen=True):
    """`variable` holds its number; `tasks` are the unit's that it begins."""

    variable: str
    unit: Unit
    tasks: tuple[int, ...]
    waits: tuple[Wait, ...]


def submissions(units: Iterable[Unit]) -> list[Submission]:
    """Return the submissions in an order: each behind those that it waits for."""
    return _Submitting(tuple(units)).all()


class _Submitting:
    def __init__(self, units: tuple[Unit, ...]) -> None:
        self.place = {
            job.name: (unit, task) for unit in units for task, job in enumerate(unit.jobs)
        }
        self.units = units
        self.made: list[Submission] = []
        self.of: dict[str, Submission] = {}
        self.numbers: Counter[str] = Counter()

    def all(self) -> list[Submission]:
        jobs = tuple(job for unit in self.units for job in unit.jobs)
        levels = levels_of(jobs)
        ordered = sorted(jobs, key=lambda job: levels[job.name])
        for _, found in groupby(ordered, key=lambda job: levels[job.name]):
            self._level(found)
        return self.made

    def _level(self, jobs: Iterable[Job]) -> None:
        alike: defaultdict[tuple[Unit, tuple[Wait, ...]], list[int]] = defaultdict(list)
        for job in jobs:
            unit, task = self.place[job.name]
            alike[unit, self._waits(job, unit, task)].append(task)
        for (unit, waits), tasks in alike.items():
            self._submit(unit, tuple(tasks), waits)

    def _submit(self, unit: Unit, tasks: tuple[int, ...], waits: tuple[Wait, ...]) -> None:
        self.numbers[unit.name] += 1
        number = self.numbers[unit.name]
        variable = "id_" + unit.name.replace("-", "_") + (f"__{number}" if number > 1 else "")
        if len(tasks) == 1:  # alone it waits for that one task
            waits = tuple(
                Wait("afterok", wait.submission, tasks) if wait.kind == "aftercorr" else wait
                for wait in waits
            )
        made = Submission(variable, unit, tasks, waits)
        self.made.append(made)
        self.of.update((unit.jobs[task].name, made) for task in tasks)

    def _waits(self, job: Job, unit: Unit, task: int) -> tuple[Wait, ...]:
        waits: list[Wait] = []
        for kind, names in (("afterok", job.needs), ("afterany", job.after)):
            wanted: defaultdict[str, list[int]] = defaultdict(list)
            found: dict[str, Submission] = {}
            for name in names:
                if name in self.of:
                    submission = self.of[name]
                    found[submission.variable] = submission
                    wanted[submission.variable].append(self.place[name][1])
            for variable, tasks in wanted.items():
                waits.append(_wait(kind, found[variable], tasks, unit, task))
        return tuple(waits)


def _wait(kind: str, before: Submission, tasks: list[int], unit: Unit, task: int) -> Wait:
    own = before.unit
    whole = len(tasks) == len(before.tasks) > 1 and set(tasks) == set(before.tasks)
    if whole or not own.is_array:
        return Wait(kind, before.variable)
    if tasks == [task] and kind == "afterok" and len(own.jobs) == len(unit.jobs):
        return Wait("aftercorr", before.variable)
    return Wait(kind, before.variable, tuple(sorted(tasks)))


def at_once(made: list[Submission], limits: Mapping[str, int]) -> tuple[dict[str, int], set[str]]:
    """Return how many tasks of a unit run at once, and the tokens that Slurm is not told.

    An array's own limit holds a token only where nobody else uses it: no other unit, and no other
    submission of the same that could run at the same time.
    """
    users: defaultdict[str, set[str]] = defaultdict(set)
    counts: defaultdict[str, set[int]] = defaultdict(set)
    parts = Counter(one.unit.name for one in made)
    chained = _chained(made)
    for one in made:
        for task in one.tasks:
            for token, count in Counter(one.unit.jobs[task].demand.uses).items():
                users[token].add(one.unit.name)
                counts[token].add(count)
    most: dict[str, int] = {}
    untold: set[str] = set()
    for token, names in users.items():
        name = next(iter(names))
        if len(names) > 1 or (parts[name] > 1 and name not in chained):
            untold.add(token)
        else:
            most[name] = min(most.get(name, limits[token]), limits[token] // max(counts[token]))
    return most, untold


def _chained(made: list[Submission]) -> set[str]:
    """Units in two submissions, the second of which waits for the first (`first: true`)."""
    by_unit: defaultdict[str, list[Submission]] = defaultdict(list)
    for one in made:
        by_unit[one.unit.name].append(one)
    return {
        name
        for name, parts in by_unit.items()
        if len(parts) == 2 and parts[0].variable in {wait.submission for wait in parts[1].waits}
    }


def slug(label: str) -> str:
    """Return a name for files and variables from an entry's name, placeholders left out."""
    plain = re.sub(r"\{\{.*?\}\}", "", label)
    return re.sub(r"[^A-Za-z0-9]+", "-", plain).strip("-")[:40].strip("-") or "jobs"
