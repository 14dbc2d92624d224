"""Which files hold the code of jobs: what their commands run, and what that imports and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from gpulaunch.core.model import Job
from gpulaunch.diagnose.lint import jobs as of_jobs
from gpulaunch.diagnose.lint.files import Files, ReadBudget
from gpulaunch.diagnose.lint.follow import Follow


class JobsCode:
    """Finds the files with jobs' code, of more and more jobs. `budget`: for one call."""

    def __init__(self, budget: Callable[[], ReadBudget] = ReadBudget) -> None:
        self._budget = budget
        self._files = Files("/", budget())
        self._follow = Follow(self._files)
        self._seen: set[object] = set()

    def of(self, jobs: Iterable[Job]) -> Mapping[str, set[int]]:
        """Return the files that these jobs' commands lead to, each with the entries it is of.

        Absolute paths; what is installed is left out, and what an earlier call has looked at.
        """
        self._files.budget = self._budget()
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            groups.setdefault(job.group, []).append(job)
        found: dict[str, set[int]] = {}
        for group, members in groups.items():
            for job in of_jobs.some_of(members):
                for path in self._code_of(job):
                    found.setdefault(path, set()).add(group)
        return found

    def _code_of(self, job: Job) -> Iterator[str]:
        key = (of_jobs.alike(job), job.group, job.env_file)
        if key in self._seen:
            return
        self._seen.add(key)
        if job.env_file is not None:
            yield job.env_file
        for start in of_jobs.starts_of(job, of_jobs.looked_at(job)):
            yield from self._follow.files_of(start)
