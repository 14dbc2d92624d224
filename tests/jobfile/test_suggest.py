"""Words of other tools get ours; names of the user's own are only compared by spelling."""

from __future__ import annotations

import pytest

from gpulaunch.jobfile.fields import FIELDS
from gpulaunch.jobfile.suggest import did_you_mean_key
from tests.jobfile.helpers import mistakes_of

MEANT = {
    "command": "run", "cmd": "run", "script": "run", "exec": "run",
    "workdir": "cwd", "working_dir": "cwd", "dir": "cwd", "working-directory": "cwd",
    "gpu": "gpus", "num_gpus": "gpus", "ngpus": "gpus", "devices": "gpus",
    "vram": "gpu_memory", "mem": "memory", "ram": "memory",
    "depends_on": "needs", "dependencies": "needs", "requires": "needs",
    "environment": "env", "vars": "env",
    "retry": "retries", "max_retries": "retries",
    "time": "timeout", "walltime": "timeout", "time_limit": "timeout",
    "cores": "cpus", "for_each": "foreach", "grid": "matrix", "output": "outputs",
    "conda_env": "conda", "virtualenv": "venv", "job_name": "name", "tokens": "uses",
    "Command": "run", "timout": "timeout", "foreech": "foreach",
}  # fmt: skip


@pytest.mark.parametrize("typed", MEANT)
def test_a_field_as_other_tools_call_it_gets_ours(typed: str) -> None:
    (line,) = mistakes_of(f"jobs: [{{run: x, {typed}: 1}}]")
    assert line.endswith(f"unknown key; did you mean {MEANT[typed]}?")


def test_what_nothing_here_is_like_gets_no_guess() -> None:
    (line,) = mistakes_of("jobs: [{run: x, colour: 1}]")
    assert line.endswith("unknown key")


def test_a_field_of_jobs_beside_jobs_or_in_defaults_is_told_where_it_goes() -> None:
    text = """
    timeout: 2h
    foreach: x
    tasks: []
    defaults: {command: x, walltime: 2}
    jobs: [{run: x, limits: {a: 1}, needs: []}]
    """
    assert [line.partition(": ")[2] for line in mistakes_of(text)] == [
        "timeout: a field of jobs: it goes into a job, or into defaults: for all of them",
        "foreach: a field of jobs: it goes into a job, which is an entry of the list jobs:",
        "tasks: unknown key; did you mean jobs? (known: defaults, engine, free_below, gpus, jobs,"
        " limits, name, notify, per_gpu)",
        "defaults.command: unknown key",
        "defaults.walltime: unknown key; did you mean timeout?",
        "jobs[0].limits: belongs beside jobs:, for the whole run",
    ]


def test_names_of_jobs_are_the_users_own() -> None:
    (line,) = mistakes_of("jobs: [{name: run, run: x}, {name: b, run: x, needs: [command]}]")
    assert line.endswith("there is no job command")


@pytest.mark.parametrize(
    "typed", ["docker", "ports", "pre", "stages", "rules", "stdout", "annotations"]
)
def test_of_a_key_that_means_nothing_here_nothing_is_guessed(typed: str) -> None:
    assert did_you_mean_key(typed, FIELDS) == ""
