"""A translated script, loaded: what the job list says, and what it does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpulaunch.core.model import Job
from gpulaunch.core.template import Text, render
from gpulaunch.jobfile import Surroundings, load_text
from gpulaunch.starter import StarterRemark, translate


@dataclass(frozen=True)
class Loaded:
    jobs: dict[str, Job]
    remarks: tuple[StarterRemark, ...]
    text: str

    def run(self, name: str) -> str:
        run = self.jobs[name].run
        assert not isinstance(run, tuple)
        return render(run, {})

    def env(self, name: str) -> dict[str, Text | None]:
        return dict(self.jobs[name].env)

    def why(self, fragment: str) -> str:
        """The reason given for the remark on this piece of the script."""
        (why,) = {remark.why for remark in self.remarks if fragment in remark.text}
        return why


def load(script: str, base: Path) -> Loaded:
    translation = translate(script, "run.sh")
    data, jobs = translation.yaml_text.encode(), {}
    if data:
        plan = load_text(data, Surroundings({}), name="jobs.yaml", base=base)
        jobs = {job.name: job for job in plan.jobs}
    return Loaded(jobs, translation.untranslated, translation.yaml_text)
