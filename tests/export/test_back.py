"""An export that `gpulaunch init` reads back: the same jobs, under the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.core.model import Job
from gpulaunch.export import choose, to_slurm
from gpulaunch.jobfile import Surroundings, load, load_text
from gpulaunch.starter import translate
from tests.cli.launcher import Launcher
from tests.examples.test_configs import RECIPES, beside_inputs, copied
from tests.export.helpers import as_run, hostile
from tests.export.test_recipes import NOT_EXPORTED, ON_EVERY_CARD

__all__ = ["beside_inputs"]  # a fixture


def read_back(launcher: Launcher) -> Path:
    exported = launcher("export", "jobs.yaml", "--to", "slurm", "-o", "exported")
    assert exported.status == 0, exported.err
    made = launcher("init", launcher.path / "exported" / "submit.sh", "-o", "back.yaml")
    assert made.status == 0, made.err
    return launcher.path / "back.yaml"


def jobs_of(path: Path) -> dict[str, Job]:
    return {job.name: job for job in load(path, Surroundings({})).jobs}


def test_names_order_cards_and_terms_are_those_of_the_job_file(launcher: Launcher) -> None:
    launcher.file("in/a.fasta", "")
    launcher.file("in/b c.fasta", "")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: "fold {{stem}}", foreach: "in/*", run: "fold {{path}} {{out}}", timeout: 90}
          - name: score {{stem}}
            foreach: in/*
            needs: ["fold {{stem}}"]
            run: [score, "{{run_dir}}/results/fold {{stem}}", "a b"]
            retries: {times: 2, delay: 3}
            outputs: ["{{out}}/score.txt", "{{out}}/*.png"]
          - {name: wide, gpus: 2, memory: 2GiB, engine: {slurm: {gres: a100, account: "lab x",
             extra: ["--comment=it's a \\"b\\" \\\\ c", --exclusive]}},
             run: "serve {{port}}", success_codes: [0, 3]}
          - {name: table, gpus: 0, after: ["score *", wide], run: table, cwd: in, env: {A: "x y"}}
        """,
    )
    old, new = jobs_of(launcher.path / "jobs.yaml"), jobs_of(read_back(launcher))
    assert sorted(new) == sorted(old)
    for name, job in old.items():
        back = new[name]
        assert (back.demand.gpus, back.demand.memory) == (job.demand.gpus, job.demand.memory)
        assert (set(back.needs), set(back.after)) == (set(job.needs), set(job.after))
        assert (back.cwd, back.timeout) == (job.cwd, job.timeout)
        assert (back.retry.times, back.retry.delay) == (job.retry.times, job.retry.delay)
        assert back.success_codes == job.success_codes
        assert back.outputs == job.outputs
        assert back.engine == job.engine
    assert new["table"].env["A"] == "x y"


def test_hostile_names_and_values_come_back_as_they_were(launcher: Launcher) -> None:
    jobs = hostile(launcher)
    back = read_back(launcher)
    assert as_run(launcher, back) == as_run(launcher, jobs)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_comes_back_under_its_names(recipe: Path, beside_inputs: Path) -> None:
    if recipe.stem == ON_EVERY_CARD:
        pytest.skip("has a job for each card, which no export takes")
    plan = load(copied(recipe, beside_inputs), Surroundings({}))
    if recipe.stem in NOT_EXPORTED:
        pytest.skip("has a service or a container, which no export takes")
    chosen = choose(plan, "slurm", "/there")
    files, _ = to_slurm(chosen)
    made = translate(files["submit.sh"], "x", files.get)
    if any(job.fasta or job.batch for job in plan.jobs):
        assert made.yaml_text == ""
        assert "keep the job file" in made.untranslated[0].why
        return
    data = made.yaml_text.encode()
    back = load_text(data, Surroundings({}), name="back.yaml", base=plan.base)
    assert sorted(job.name for job in back.jobs) == sorted(job.name for job in plan.jobs)
