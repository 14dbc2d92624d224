"""A strict job in a container where gpulaunch itself can hide no card: the engine does it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulaunch.base.errors import JobFileError
from gpulaunch.engines import isolation
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from gpulaunch.run import Choices, Observer, RunOptions
from gpulaunch.run.preflight import pool_for

CARDS = RunOptions(Choices(simulate=1))
CONTAINED = "{name: a, run: 'true', isolation: strict, container: {image: x, engine: podman}}"
BARE = "{name: b, run: 'true', isolation: strict}"


class Hearing(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str, urgent: bool = False) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def no_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "refusal", lambda gpus: "strict isolation is not possible here")


def test_what_gpulaunch_cannot_hide_is_no_matter_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    heard = Hearing()
    plan = load_text(f"jobs: [{CONTAINED}]".encode(), Surroundings({}), base=tmp_path, name="jobs")
    pool_for(plan, plan.jobs, CARDS, "r", heard)
    assert heard.notes == []
    plan = load_text(
        f"jobs: [{CONTAINED}, {BARE}]".encode(), Surroundings({}), base=tmp_path, name="jobs"
    )
    with pytest.raises(JobFileError, match=r"jobs\[1\]\.isolation: strict isolation is not"):
        pool_for(plan, plan.jobs, CARDS, "r", heard)
