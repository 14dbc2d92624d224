"""`gpulaunch exec --job JOB`: a job's own command, become by hand on a free card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.helpers import wait_until

FOLDS = """
    name: demo
    jobs:
      - name: fold-{{stem}}
        foreach: inputs/*.fa
        cwd: work
        env: {MODEL: big, KEPT: "{{out}}/kept"}
        run: |
          echo "$PWD $MODEL $CUDA_VISIBLE_DEVICES {{gpu}} {{attempt}}" > {{out}}/said
          echo {{path}} >> {{out}}/said
          echo seen; exit 3
"""


@pytest.fixture
def folds(launcher: Launcher) -> Launcher:
    """Two jobs that fail, and a run in which they did."""
    (launcher.path / "work").mkdir()
    launcher.file("inputs/a.fa", ">a\nM\n")
    launcher.file("inputs/b.fa", ">b\nM\n")
    launcher.file("jobs.yaml", FOLDS)
    assert launcher("run", "jobs.yaml", "--simulate", "2").status == 1
    return launcher


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "byhand" not in path.parts
    }


def test_a_jobs_own_command_runs_by_hand_and_its_run_is_left_as_it_is(folds: Launcher) -> None:
    before = contents(folds.run)
    done = folds("exec", "--job", "fold-a")
    assert (done.status, done.out) == (3, "seen\n"), done.err
    assert contents(folds.run) == before
    out = folds.run / "byhand" / "fold-a.1" / "out"
    assert (out / "said").read_text().splitlines() == [
        f"{folds.path / 'work'} big 0 0 2",
        str(folds.path / "inputs" / "a.fa"),
    ]


def test_one_line_says_the_command_the_directories_and_the_card(folds: Launcher) -> None:
    folds.file("jobs.yaml", "jobs: [{name: fold-a, cwd: work, run: [echo, a b]}]")
    done = folds("exec", "--job", "fold-a")
    run = folds.run.relative_to(folds.path)
    assert done.out == "a b\n"
    assert done.err.splitlines()[-1] == (
        f"gpulaunch exec: fold-a of {run}, on simulated GPU 0, in work,"
        f" with {run}/byhand/fold-a.1/out as its out: echo 'a b'"
    )


def test_each_start_by_hand_has_a_directory_of_its_own(folds: Launcher) -> None:
    for _ in range(2):
        assert folds("exec", "--job", "fold-b").status == 3
    assert {path.name for path in (folds.run / "byhand").iterdir()} == {"fold-b.1", "fold-b.2"}


def test_what_left_nothing_behind_gives_its_directory_to_the_next(folds: Launcher) -> None:
    folds.file("jobs.yaml", "jobs: [{name: a, run: 'echo {{out}}; cat'}]")
    first = f"{folds.run}/byhand/a.1/out\n"
    for _ in range(2):
        assert folds("exec", "--job", "a").out == first
    with subprocess.Popen(
        [*folds.command, "exec", "--job", "a", "--gpus", "1"],
        cwd=folds.path,
        env=folds.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == first
        assert folds("exec", "--job", "a").out == first.replace("a.1", "a.2")
        running.communicate("")


def test_the_job_file_is_read_again_unless_the_recorded_one_is_asked_for(folds: Launcher) -> None:
    folds.file("jobs.yaml", "jobs: [{name: fold-a, run: echo mended}]")
    assert folds("exec", "--job", "fold-a").out == "mended\n"
    assert folds("exec", "--job", "fold-a", "--recorded").out == "seen\n"
    gone = folds("exec", "--job", "fold-b")
    assert gone.status == 125
    assert "fold-b is no longer in jobs.yaml; --recorded takes" in gone.err


def test_a_job_is_named_exactly_or_by_a_pattern_that_fits_no_other(folds: Launcher) -> None:
    assert folds("exec", "--job", "*-b").status == 3
    several = folds("exec", "--job", "fold-*")
    assert (several.status, several.out) == (125, "")
    assert "fold-* fits 2 jobs, name one: fold-a, fold-b" in several.err
    near = folds("exec", "--job", "fold-aa")
    assert near.status == 125
    assert "no job of jobs.yaml is called fold-aa; did you mean fold-a" in near.err


def test_a_job_file_without_a_run_will_do(launcher: Launcher) -> None:
    launcher.file("records.fasta", ">one\nMK\n>two\nGG\n")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: fold-{{id}}
            foreach: {fasta: records.fasta}
            run: cat {{path}}; test -d {{out}}; test -r {{log}}; echo $GPULAUNCH_RUN_DIR
        """,
    )
    done = launcher("exec", "--job", "fold-two", "-r", "jobs.yaml", "--simulate", "1")
    home = launcher.path / "gpulaunch-runs" / "byhand" / "fold-two.1"
    assert (done.status, done.out) == (0, f">two\nGG\n{home}\n"), done.err
    assert "fold-two of jobs.yaml, without a run, on simulated GPU 0" in done.err
    assert launcher("exec", "--job", "fold-two").status == 125, "there is still no run here"


def test_what_was_said_of_the_runs_cards_holds_and_can_be_said_anew(folds: Launcher) -> None:
    folds.file("jobs.yaml", "jobs: [{name: fold-a, run: echo $GPULAUNCH_GPU_UUID}]")
    assert folds("run", "jobs.yaml", "--new", "--simulate", "4", "--gpus", "2,").status == 0
    assert folds("exec", "--job", "fold-a").out == "SIM-2\n"
    assert folds("exec", "--gpus", "3,", "--job", "fold-a").out == "SIM-3\n"


def test_a_card_of_a_live_run_is_waited_for(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: long, run: sleep 1000}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        launcher.wait_for("attempt_started")
        assert launcher("exec", "--job", "long", "--no-wait").status == 124
        assert not (launcher.run / "byhand").exists()
        other = launcher("exec", "--job", "long", "--simulate", "2", "--gpus", "9,")
        assert other.status == 125
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 143


def test_a_start_by_hand_is_not_taken_for_the_runs_own_process(folds: Launcher) -> None:
    folds.file("jobs.yaml", "jobs: [{name: fold-a, run: [sleep, '1000']}]")
    with folds.begun("exec", "--job", "fold-a") as process:

        def environment() -> dict[str, str] | None:
            entries = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            found = dict(os.fsdecode(e).partition("=")[::2] for e in entries)
            return found if "GPULAUNCH_JOB" in found else None

        found = wait_until(environment, 60, "the job's environment")
        assert found["GPULAUNCH_JOB"] == "fold-a"
        assert found["GPULAUNCH_RUN_DIR"] == str(folds.run)
        assert found["GPULAUNCH_RUN_ID"] != folds.status()["run"]["id"]
        assert found["MASTER_PORT"].isdigit()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_results_of_earlier_jobs_are_used_and_what_lacks_is_said(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: make, run: "echo made > {{out}}/x"}
          - {name: break, run: "false"}
          - {name: sum, gpus: 0, needs: [make, break], run: "cat {{run_dir}}/results/make/x"}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    done = launcher("exec", "--job", "sum")
    assert (done.status, done.out) == (0, "made\n"), done.err
    assert "sum needs break, which has not succeeded, and is not run" in done.err
    assert launcher.states()["sum"] == "skipped"


def test_a_service_serves_by_hand_and_who_needs_it_is_told_where(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: msa, gpus: 0, service: {ready: "tcp:{{port}}"}, run: "echo {{port}}"}
          - {name: fold, needs: [msa], run: echo $GPULAUNCH_ADDR_MSA}
        """,
    )
    serves = launcher("exec", "--job", "msa", "-r", "jobs.yaml", "--simulate", "1")
    assert f"serving at 127.0.0.1:{serves.out.strip()}" in serves.err
    fold = ("exec", "--job", "fold", "-r", "jobs.yaml", "--simulate", "1")
    refused = launcher(*fold)
    assert refused.status == 125
    assert "fold needs the service msa" in refused.err
    launcher.environ["GPULAUNCH_ADDR_MSA"] = "127.0.0.1:1"
    assert launcher(*fold).out == "127.0.0.1:1\n"


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("{name: j, worker: 'fold.py:predict', matrix: {n: [1]}}", "runs in a worker"),
        ("{name: j, gpus: 9, run: 'true'}", "needs 9 cards"),
        ("{name: j, needs: [k], cwd: later, run: 'true'}", "later does not exist"),
    ],
)
def test_what_cannot_run_by_hand_is_refused(launcher: Launcher, job: str, why: str) -> None:
    launcher.file("fold.py", "def predict(item): pass")
    launcher.file("jobs.yaml", f"jobs: [{job}, {{name: k, run: 'true'}}]")
    named = "j*" if "worker" in job else "j"
    done = launcher("exec", "--job", named, "-r", "jobs.yaml", "--simulate", "1")
    assert (done.status, done.out) == (125, ""), done.err
    assert why in done.err
    assert "Traceback" not in done.err
    assert not (launcher.path / "gpulaunch-runs").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--job", "fold-a", "--", "ls"], "--job runs the job's own command: leave out ls"),
        (["--job", "fold-a", "-g", "2"], "-g does not go with --job"),
        (["-r", "x", "--", "ls"], "-r goes with --job"),
        (["--recorded", "--", "ls"], "--recorded goes with --job"),
        (["--job", "fold-a", "-r", "nothing"], "no run 'nothing'"),
        ([], "Missing argument"),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    launcher: Launcher, words: list[str], why: str
) -> None:
    done = launcher("exec", *words)
    assert (done.status, done.out) == (125, "")
    assert why in done.err


def test_a_job_of_a_run_on_a_cluster_is_refused(folds: Launcher) -> None:
    manifest = folds.run / "manifest.json"
    known = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(known | {"engine": "slurm"}))
    done = folds("exec", "--job", "fold-a")
    assert (done.status, done.out) == (125, "")
    assert "runs on Slurm, whose nodes this machine is none of" in done.err
