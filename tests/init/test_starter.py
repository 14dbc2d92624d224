"""The starter file: valid as it stands, and a page."""

from __future__ import annotations

from pathlib import Path

from gpulaunch.init import starter
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text


def test_the_starter_file_loads_in_an_empty_directory(tmp_path: Path) -> None:
    plan = load_text(starter().encode(), Surroundings({}), name="jobs.yaml", base=tmp_path)
    names = [job.name for job in plan.jobs]
    assert names[:3] == ["predict-a", "predict-b", "predict-c"]
    assert names[-1] == "summary"
    assert len(names) == 8


def test_the_starter_file_fits_on_a_page_and_keeps_to_the_width() -> None:
    lines = starter().splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
