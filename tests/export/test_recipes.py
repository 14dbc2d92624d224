"""Every recipe can be exported, to what reads it; long lists as well."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpulaunch.errors import JobFileError, UsageError
from gpulaunch.export import Target, choose, to_hyperqueue, to_slurm
from gpulaunch.jobfile import Surroundings, load, load_text
from tests.examples.test_configs import RECIPES, beside_inputs, copied

__all__ = ["beside_inputs"]  # a fixture


NOT_EXPORTED = {
    "privategpt": "it needs privategpt",
    "vllm": "it needs vllm",
    "alphafold3": "in ",
}


ON_EVERY_CARD = "wandb-agents"
"""The recipe whose jobs are as many as the machine has cards."""


def reads(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text.encode(), check=True, timeout=60)


@pytest.mark.parametrize("target", ["hyperqueue", "slurm"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_can_be_exported(recipe: Path, target: Target, beside_inputs: Path) -> None:
    if recipe.stem == ON_EVERY_CARD:
        with pytest.raises(JobFileError, match="known only on the machine that runs the list"):
            load(copied(recipe, beside_inputs), Surroundings({}))
        return
    plan = load(copied(recipe, beside_inputs), Surroundings({}))
    if recipe.stem in NOT_EXPORTED:
        with pytest.raises(UsageError, match=f"left out: {NOT_EXPORTED[recipe.stem]}"):
            choose(plan, target, "/there")
        return
    chosen = choose(plan, target, "/there")
    assert [job.name for job in chosen.jobs] == [job.name for job in plan.jobs]
    assert all(
        made == job for made, job in zip(chosen.jobs, plan.jobs, strict=True) if not job.ladder
    )
    if target == "hyperqueue":
        assert to_hyperqueue(chosen).count("[[task]]") == len(plan.jobs)
        return
    files, _ = to_slurm(chosen)
    for name, text in files.items():
        if not name.endswith(".tasks"):
            reads(text)


def test_ten_thousand_jobs_are_one_script_and_a_table(tmp_path: Path) -> None:
    items = ", ".join(map(str, range(5_000)))
    text = f"""
jobs:
  - {{name: "a{{{{item}}}}", foreach: {{values: [{items}]}}, run: "do {{{{item}}}} {{{{out}}}}"}}
  - name: b{{{{item}}}}
    foreach: {{values: [{items}]}}
    needs: ["a{{{{item}}}}"]
    run: "do {{{{run_dir}}}}/results/a{{{{item}}}}"
"""
    plan = load_text(text.encode(), Surroundings({}), name="long", base=tmp_path)
    files, notes = to_slurm(choose(plan, "slurm", "/there"))
    assert set(files) == {"a.sh", "a.tasks", "b.sh", "b.tasks", "submit.sh"}
    assert files["b.tasks"].count("\n") == 5_000
    assert '"aftercorr:$id_a" b.sh' in files["submit.sh"]
    assert [note.text.partition(":")[0] for note in notes] == ["an array of 5,000"] * 2
    assert to_hyperqueue(choose(plan, "hyperqueue", "/there")).count("[[task]]") == 10_000
