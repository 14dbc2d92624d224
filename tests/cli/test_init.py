"""`gpulaunch init` as it is typed: what it writes, what it says, when it writes nothing."""

from __future__ import annotations

import os

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


def test_the_header_names_the_script_as_it_is_called(launcher: Launcher) -> None:
    launcher.file("par.sh", f"{MASK}=0 python a.py &\n")
    assert launcher("init", "par.sh", "-o", "-").out.startswith("# Made from par.sh by ")


def test_a_script_that_is_not_there_or_no_text_is_said_plainly(launcher: Launcher) -> None:
    assert launcher("init", "no.sh").err == (
        "gpulaunch: no.sh cannot be read: No such file or directory\n"
    )
    (launcher.path / "bin.sh").write_bytes(b"\xff\xfe\x00")
    assert "bin.sh is no text in UTF-8" in launcher("init", "bin.sh").err


def test_a_script_without_an_end_is_said_plainly(launcher: Launcher) -> None:
    refused = launcher("init", "/dev/zero")
    assert (refused.status, refused.out) == (2, "")
    assert "a script may have at most" in refused.err


def test_a_list_that_is_no_file_is_not_waited_for(launcher: Launcher) -> None:
    launcher.file("go.sh", 'while read -r x; do CUDA_VISIBLE_DEVICES=0 echo "$x"; done < list\n')
    os.mkfifo(launcher.path / "list")
    assert launcher("init", "go.sh", "-o", "-").status in (0, 2)
