"""Every recipe passes `gpulaunch check` beside the inputs that its comments ask for."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load
from tests.examples.helpers import CONFIGS, gpulaunch

RECIPES = sorted(CONFIGS.glob("*.yaml"))
INPUTS = [
    *("inputs/a.fasta", "inputs/b.fasta", "inputs/a.yaml", "inputs/a.json"),
    *("sequences/a.fasta", "images/a.jpg", "texts/a.txt", "models/chat.gguf"),
    *("databases/a.fasta", "huggingface/a", "cache/a", "boltz.sif", "colabfold.sif"),
]
PROGRAMS = [
    *("run_alphafold.py", "embed.py", "merge.py", "score.py", "caption.py", "ask.py", "msa.py"),
    *("fold.py", "table.py", "train.py"),
]
"""The people's own, and the system's checkout: a recipe stands beside them."""


@pytest.fixture
def beside_inputs(tmp_path: Path) -> Path:
    for name in (*INPUTS, *PROGRAMS):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


def copied(recipe: Path, to: Path) -> Path:
    return Path(shutil.copy(recipe, to))


def test_there_is_a_recipe_for_each_system() -> None:
    assert {path.stem for path in RECIPES} == {
        *("alphafold3", "boltz", "chai-1", "colabfold", "embeddings", "evo2", "minicpm-v"),
        *("petals", "privategpt", "random-search", "slurm", "training-sweep", "vllm"),
        "wandb-agents",
    }


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_passes_check_when_copied_next_to_inputs(
    recipe: Path, beside_inputs: Path
) -> None:
    done = gpulaunch("check", copied(recipe, beside_inputs), "--simulate", "2", cwd=beside_inputs)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_how_to_run_it_and_which_upstream_facts_it_answers(recipe: Path) -> None:
    text = recipe.read_text()
    assert f"gpulaunch check {recipe.name}" in text
    assert re.search(r"[\w-]+#\d+", text)
    assert max(map(len, text.splitlines())) <= 100


def test_the_slurm_recipe_passes_check_for_slurm_as_well(beside_inputs: Path) -> None:
    recipe = copied(CONFIGS / "slurm.yaml", beside_inputs)
    done = gpulaunch("check", recipe, "--engine", "slurm", cwd=beside_inputs)
    assert done.returncode == 0, done.stderr
    assert "5 jobs on Slurm" in done.stdout
    assert "partition gpu, account lab, gres a100, --mem=64G, --constraint=nvme" in done.stdout


@pytest.mark.parametrize("system", ["boltz", "colabfold"])
def test_a_recipe_passes_check_with_its_container_taken_in(
    system: str, beside_inputs: Path
) -> None:
    recipe = copied(CONFIGS / f"{system}.yaml", beside_inputs)
    text = recipe.read_text().replace("# container: ", "container: ")
    recipe.write_text(text.replace("/tmp/boltz-cache", f"{beside_inputs}/cache"))
    plan = load(recipe, Surroundings({}))
    assert {job.container.image for job in plan.jobs if job.container} == {
        f"{beside_inputs}/{system}.sif"
    }
    assert all(job.container for job in plan.jobs)


def test_alphafold3_and_vllm_run_in_their_own_images(beside_inputs: Path) -> None:
    for system, image in (("alphafold3", "alphafold3"), ("vllm", "vllm/vllm-openai:latest")):
        plan = load(copied(CONFIGS / f"{system}.yaml", beside_inputs), Surroundings({}))
        images = [job.container and job.container.image for job in plan.jobs]
        assert images == [image, image if system == "alphafold3" else None]


def test_evo2_takes_one_card_for_7b_and_two_for_40b(beside_inputs: Path) -> None:
    plan = load(copied(CONFIGS / "evo2.yaml", beside_inputs), Surroundings({}))
    cards = {job.name: job.demand.gpus for job in plan.jobs}
    assert cards == {"evo2-7b-a": 1, "evo2-40b-a": 2}


def test_servers_are_services_and_jobs_that_never_fill_a_card_twice(beside_inputs: Path) -> None:
    plan = load(copied(CONFIGS / "privategpt.yaml", beside_inputs), Surroundings({}))
    assert [job.service is not None for job in plan.jobs] == [True, True, False]
    petals = load(copied(CONFIGS / "petals.yaml", beside_inputs), Surroundings({}))
    assert {job.demand.gpus for job in petals.jobs} == {1}
    assert len(petals.jobs) == 4
