"""Every example loads; those that need no download run, and show what their comments promise."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpulaunch.gpus.discover import simulated
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load
from tests.examples.helpers import EXAMPLES, gpulaunch

JOB_FILES = sorted(EXAMPLES.glob("*/*.yaml"))


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_example_loads_without_its_environment(path: Path) -> None:
    plan = load(path, Surroundings(os.environ, cards=lambda _: simulated(2, "examples")))
    assert plan.jobs


def test_antibodies_are_designed_and_relaxed_item_by_item() -> None:
    plan = load(EXAMPLES / "antibodies/jobs.yaml", Surroundings(os.environ))
    jobs = {job.name: job for job in plan.jobs}
    names = {path.stem for path in (EXAMPLES / "antibodies/inputs").glob("*.fasta")}
    assert len(names) >= 3
    for name in names:
        assert jobs[f"fold-{name}"].needs == ("setup",)
        assert jobs[f"design-{name}"].needs == (f"fold-{name}",)
        assert jobs[f"relax-{name}"].needs == (f"design-{name}",)
    assert set(jobs["summary"].after) == {f"relax-{name}" for name in names}


def test_no_example_names_an_address_to_install_from() -> None:
    for path in EXAMPLES.glob("*/*"):
        if path.is_file():
            text = path.read_text()
            assert "://" not in text
            assert "index-url" not in text


def test_the_quickstart_runs_as_the_readme_says(tmp_path: Path) -> None:
    jobs = EXAMPLES / "quickstart/jobs.yaml"
    done = gpulaunch("run", jobs, "--simulate", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "gpulaunch-runs/latest"
    total = json.loads((run / "results/total/total.json").read_text())
    assert total["files"] == 4
    assert total["cards"] == ["0", "1"]
    assert (run / "logs/flaky.1.log").read_text().startswith("attempt 1\n")
    assert (run / "logs/flaky.2.log").read_text() == "attempt 2\n"
    assert json.loads((run / "logs/goodbye.1.log").read_text()) == total
