"""`gpulaunch init` as it is typed: what it writes, what it says, when it writes nothing."""

from __future__ import annotations

import pytest

from tests.cli.launcher import Launcher

MASK = "CUDA_VISIBLE_DEVICES"
PLAIN = f"{MASK}=0 python a.py &\n{MASK}=1 python b.py &\nwait\n"
TURNS = f"for s in 0 1; do\n  {MASK}=$s nohup python a.py $s &\ndone\nwait\n"


@pytest.mark.parametrize("to", ["jobs.yaml", "-"])
def test_what_is_refused_writes_nothing_and_says_why(launcher: Launcher, to: str) -> None:
    launcher.file("run.sh", f"#!/bin/bash\nmkdir out\ntmux new -d '{MASK}=1 python a.py'\n")
    ran = launcher("init", "run.sh", "-o", to)
    assert (ran.status, ran.out) == (2, "")
    assert "nothing was written" in ran.err
    assert f"run.sh:3: {MASK} stands in a text that another program reads" in ran.err
    assert "      - name: a\n        run: python a.py" in ran.err
    assert not (launcher.path / "jobs.yaml").exists()


def test_a_plain_script_becomes_a_job_file_that_check_accepts(launcher: Launcher) -> None:
    launcher.file("run.sh", PLAIN)
    launcher.file("a.py", "")
    launcher.file("b.py", "")
    ran = launcher("init", "run.sh")
    assert (ran.status, ran.err) == (
        0,
        "gpulaunch: wrote jobs.yaml; next: gpulaunch check jobs.yaml\n",
    )
    assert launcher("check", "jobs.yaml", "--simulate", "2").status == 0


def test_another_script_is_written_again_and_the_difference_printed(launcher: Launcher) -> None:
    launcher.file("run.sh", TURNS).chmod(0o755)
    ran = launcher("init", "run.sh")
    assert ran.status == 0
    assert "run.sh:2: no job file: " in ran.err
    assert f"\n-  {MASK}=$s nohup python a.py $s &\n+  nohup gpulaunch exec -- python" in ran.err
    assert "wrote run.gpulaunch.sh; next: bash run.gpulaunch.sh" in ran.err
    made = launcher.path / "run.gpulaunch.sh"
    assert made.read_text() == TURNS.replace(f"{MASK}=$s nohup", "nohup gpulaunch exec --")
    assert made.stat().st_mode & 0o777 == 0o755


def test_the_name_of_the_output_says_which_of_both_is_wanted(launcher: Launcher) -> None:
    launcher.file("plain.sh", PLAIN)
    launcher.file("turns.sh", TURNS)
    assert launcher("init", "plain.sh", "-o", "new.sh").status == 0
    assert "gpulaunch exec -- python a.py &" in (launcher.path / "new.sh").read_text()
    refused = launcher("init", "turns.sh", "-o", "new.yaml")
    assert refused.status == 2
    assert "-o FILE.sh writes the script again, with gpulaunch exec" in refused.err
    assert not (launcher.path / "new.yaml").exists()


def test_a_new_file_is_not_written_where_it_would_mean_something_else(launcher: Launcher) -> None:
    launcher.file("sub/run.sh", f'cd "$(dirname "$0")"\n{PLAIN}')
    launcher.file("run.sh", PLAIN)
    for argv in (("sub/run.sh",), ("run.sh", "-o", "sub/jobs.yaml")):
        ran = launcher("init", *argv)
        assert ran.status == 2
        assert "would work in its own directory" in ran.err
    assert launcher("init", "sub/run.sh", "-o", "sub/jobs.yaml").status == 0


def test_a_script_that_exists_is_not_overwritten(launcher: Launcher) -> None:
    launcher.file("run.sh", TURNS)
    launcher.file("run.gpulaunch.sh", "mine")
    ran = launcher("init", "run.sh")
    assert ran.status == 2
    assert "exists already" in ran.err
    assert (launcher.path / "run.gpulaunch.sh").read_text() == "mine"


def test_directives_of_slurm_are_advice(launcher: Launcher) -> None:
    launcher.file(
        "job.sh", "#!/bin/bash\n#SBATCH --mem=48G\n#SBATCH --time=8:00:00\npython a.py $1\n"
    )
    ran = launcher("init", "job.sh")
    assert ran.status == 2
    assert "memory: 48GiB" in ran.err
    assert "timeout: 8h" in ran.err
    assert not list(launcher.path.glob("*.yaml"))


def test_what_bash_cannot_read_is_refused(launcher: Launcher) -> None:
    launcher.file("run.sh", f"{MASK}=0 python a.py\nx=a;; \n")
    assert "nothing was written. run.sh" in launcher("init", "run.sh").err
    assert not (launcher.path / "run.gpulaunch.sh").exists()


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
