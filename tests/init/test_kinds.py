"""What is no shell script is refused by name, and directives are explained."""

from __future__ import annotations

import pytest

from gpulaunch.init import Unfit, advice, convert

MASK = "CUDA_VISIBLE_DEVICES=0 python a.py\n"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("sweep.yaml", "program: train.py\n", "YAML"),
        ("sweep", "program: train.py\nmethod: grid\n", "YAML, or a Makefile"),
        ("Makefile", f"all: a\na:\n\t{MASK}", "a Makefile"),
        ("build", f"all: a\na:\n\t{MASK}", "YAML, or a Makefile"),
        ("run.csh", f"setenv A 1\n{MASK}", "a script of csh"),
        ("run", f"#!/bin/tcsh\n{MASK}", "a script of tcsh"),
        ("run.sh", f"#!/usr/bin/env -S zsh -f\n{MASK}", "a script of zsh"),
        ("run", f"#!/usr/bin/env python3\n{MASK}", "a script of python3"),
        ("job.sub", "executable = a\nqueue 4\n", "a description for HTCondor"),
        ("table.csv", "a,b\n1,2\n", "a table"),
        ("a.py", "import os\n", "a Python program"),
        ("a.ipynb", "{}", "a notebook"),
    ],
)
def test_another_text_is_refused_by_name(name: str, text: str, what: str) -> None:
    with pytest.raises(Unfit, match=f"this is {what}"):
        convert(text, name)


@pytest.mark.parametrize("name", ["run.sh", "run", "run.sbatch", "run.py.sh"])
@pytest.mark.parametrize("first", ["", "#!/bin/bash -l\n", "#!/usr/bin/env bash\n", "#! /bin/sh\n"])
def test_a_script_of_bash_is_read_whatever_its_name(name: str, first: str) -> None:
    assert convert(first + MASK, name).text


@pytest.mark.parametrize(
    ("directive", "meaning"),
    [
        ("#SBATCH --mem=48G", "memory: 48GiB"),
        ("#SBATCH --mem=4000", "memory: 4000MiB"),
        ("#SBATCH --gres=gpu:a100:2", "gpus: 2"),
        ("#SBATCH --gpus=4", "gpus: 4"),
        ("#SBATCH -c 8", "cpus: 8"),
        ("#SBATCH -t 90", "timeout: 90m"),
        ("#SBATCH --time=2-00:00:00", "timeout: 2d00h"),
        ("#SBATCH --time=08:30:00 # long", "timeout: 08h30m"),
        ("#SBATCH --array=0-9%2", "matrix: {task: [FIRST, ..., LAST]} of 0-9"),
        ("#SBATCH -J fold", "name: fold"),
        ("#SBATCH -p gpu", "-"),
        ("#PBS -l select=1:ncpus=4:ngpus=1:mem=8gb", "gpus: 1, memory: 8GiB"),
        ("#PBS -J 0-3", "matrix: {task: [FIRST, ..., LAST]} of 0-3"),
        ("#$ -t 1-4", "matrix: {task: [FIRST, ..., LAST]} of 1-4"),
        ("#$ -l h_rt=10:00:00", "timeout: 10h00m"),
    ],
)
def test_a_directive_is_explained(directive: str, meaning: str) -> None:
    lines = advice(f"#!/bin/bash\n{directive}\n")
    assert lines[1].endswith(f" {meaning}")


def test_a_script_with_directives_is_not_rewritten_but_may_become_a_job_file() -> None:
    plain = convert(f"#!/bin/bash\n#SBATCH --mem=1G\n{MASK}", "job.sh")
    assert not plain.is_script
    with pytest.raises(Unfit, match="a batch system gives it its cards"):
        convert(f"#!/bin/bash\n#SBATCH --mem=1G\nif a; then\n{MASK}fi\n", "job.sh")
