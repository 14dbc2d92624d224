"""`gpulaunch init` as it is typed: what it writes, what it says, when it writes nothing."""

from __future__ import annotations

import pytest

from tests.cli.launcher import Launcher

MASK = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize("to", ["jobs.yaml", "-"])
def test_a_script_of_which_nothing_becomes_a_job_writes_nothing(
    launcher: Launcher, to: str
) -> None:
    launcher.file("run.sh", f"#!/bin/bash\nmkdir out\ntmux new -d '{MASK}=1 python a.py'\n")
    ran = launcher("init", "run.sh", "-o", to)
    assert (ran.status, ran.out) == (2, "")
    assert "run.sh:3: tmux starts it in another terminal" in ran.err
    assert "no command in it could become a job; nothing was written" in ran.err
    assert not (launcher.path / "jobs.yaml").exists()


def test_what_was_translated_is_written_and_the_rest_is_said(launcher: Launcher) -> None:
    launcher.file("run.sh", f"{MASK}=0 python a.py &\nscreen -dm bash -c '{MASK}=1 python b.py'\n")
    launcher.file("a.py", "")
    ran = launcher("init", "run.sh")
    assert ran.status == 0
    assert "run.sh:2: screen starts it" in ran.err
    assert "wrote jobs.yaml" in ran.err
    assert launcher("check", "jobs.yaml").status == 0
