"""`--engine` and `--slurm` before anything is handed to Slurm: what is refused, noted, remembered.

No Slurm is needed here: nothing is submitted.
"""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.launcher import Launcher
from tests.helpers import wait_until

ONE = "jobs: [{name: a, run: 'true'}]"
SLURM = ("--engine", "slurm")


def manifest(launcher: Launcher) -> dict[str, object]:
    found: dict[str, object] = json.loads((launcher.run / "manifest.json").read_text())
    return found


# ── check and --dry-run ─────────────────────────────────────────────────────────────────────────


def test_check_needs_no_card_and_asks_slurm_nothing(launcher: Launcher) -> None:
    launcher.environ["PATH"] = "/nonexistent"
    launcher.file("jobs.yaml", "engine: {slurm: {partition: gpu}}\njobs: [{run: x, gpus: 4}]")
    result = launcher("check", "jobs.yaml", *SLURM)
    assert result.status == 0, result.err
    assert "1 job on Slurm\n" in result.out
    assert "4 cards · tells it partition gpu" in result.out
    assert "no card here" not in result.err
    found = json.loads(launcher("check", "jobs.yaml", *SLURM, "--json").out)
    assert (found["engine"], found["cards"], found["gpus"]) == ("slurm", "Slurm", [])
    assert found["jobs"][0]["engine"] == {"slurm": {"partition": ["gpu"]}}


def test_what_slurm_is_told_does_not_matter_on_this_machine(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "engine: {slurm: {gres: h200}}\njobs: [{name: a, run: 'true'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert launcher.states() == {"a": "succeeded"}
    assert manifest(launcher)["engine"] == "local"


def test_a_number_of_cards_is_the_most_at_once(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "gpus: 3\njobs: [{name: a, run: x, gpus: 2}]")
    for options, cards in (
        ((), "Slurm, at most 3 cards at once"),
        (("--gpus", "2"), "Slurm, at most 2 cards at once"),
        (("--gpus", "all"), "Slurm"),
    ):
        result = launcher("run", "jobs.yaml", *SLURM, *options, "--dry-run")
        assert result.status == 0, result.err
        assert f"1 job on {cards}\n" in result.out
    result = launcher("run", "jobs.yaml", *SLURM, "--gpus", "1", "--dry-run")
    assert result.status == 2
    assert "jobs.yaml:2:32: jobs[0].gpus: needs 2, the run may have 1 at once" in result.err
    assert not (launcher.path / "gpulaunch-runs").exists()


@pytest.mark.parametrize("cards", ["[0]", "0,1", "GPU-5f3c"])
def test_cards_by_name_are_refused(launcher: Launcher, cards: str) -> None:
    launcher.file("jobs.yaml", ONE)
    for command in ("run", "check"):
        result = launcher(command, "jobs.yaml", *SLURM, "--gpus", cards)
        assert result.status == 2
        assert "--gpus: under --engine slurm it is all, or a number" in result.err


def test_cards_by_name_in_the_file_are_shown_at_their_line(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", f"gpus: [0, 1]\n{ONE}")
    result = launcher("run", "jobs.yaml", *SLURM)
    assert result.status == 2
    assert "jobs.yaml:1:7: gpus: under --engine slurm" in result.err
    assert launcher("check", "jobs.yaml", *SLURM, "--gpus", "4").status == 0


# ── Refusals and notes ──────────────────────────────────────────────────────────────────────────

UNFIT = """\
per_gpu: 2
limits: {token: 1}
defaults: {visible: uuid, per_gpu: 3}
jobs:
  - {name: server, run: x, service: {ready: "tcp:1"}}
  - {name: "strict-{{n}}", run: x, isolation: strict, matrix: {n: [1, 2]}}
  - {name: loop, worker: "m:f"}
  - {name: many, run: x, uses: [token, token], per_gpu: 4, mps: true}
  - {name: needs, run: x, needs: [server], visible: index, per_gpu: 1}
  - {name: shared, run: x, share: true, visible: index, per_gpu: 1}
"""


def test_each_entry_that_slurm_cannot_do_is_named_once_with_what_to_do(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", UNFIT)
    for command in ("run", "check"):
        result = launcher(command, "jobs.yaml", *SLURM)
        assert result.status == 2
        said = [line for line in result.err.splitlines() if line.startswith("jobs.yaml:")]
        assert [line.split(":")[1] + line.split(":")[3] for line in said] == [
            "3 defaults.visible",
            "3 defaults.per_gpu",
            "5 jobs[0].service",
            "6 jobs[1].isolation",
            "7 jobs[2].worker",
            "8 jobs[3].uses",
            "8 jobs[3].per_gpu",
            "8 jobs[3].mps",
            "10 jobs[5].share",
        ]
        assert all("leave it out" in said[i] for i in (0, 1, 3, 6, 7, 8))
        assert "start the server yourself" in said[2]
        assert "write run:" in said[4]
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_the_files_own_per_gpu_is_refused_too(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", f"per_gpu: 2\n{ONE}")
    result = launcher("check", "jobs.yaml", *SLURM)
    assert result.status == 2
    assert "jobs.yaml:1:10: per_gpu: Slurm gives a job whole cards" in result.err


def test_jobs_that_are_not_to_run_are_not_refused(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: good, run: 'true'}
          - {name: bad, run: 'true', isolation: strict}
        """,
    )
    assert launcher("run", "jobs.yaml", *SLURM, "--only", "good", "--dry-run").status == 0
    assert launcher("run", "jobs.yaml", *SLURM, "--dry-run").status == 2


def test_memory_is_asked_of_slurm_once(launcher: Launcher) -> None:
    extra = "engine: {slurm: {extra: [--mem-per-cpu=4G]}}"
    launcher.file("jobs.yaml", f"jobs: [{{run: 'true', memory: 64GB, {extra}}}]")
    result = launcher("check", "jobs.yaml", *SLURM)
    assert result.status == 2
    assert (
        "jobs.yaml:1:30: jobs[0].memory: --mem-per-cpu=4G in extra: asks Slurm for memory as well:"
        " leave one of them out" in result.err
    )
    launcher.file("jobs.yaml", "jobs: [{run: 'true', memory: 900TB}]")
    assert launcher("check", "jobs.yaml", *SLURM).status == 0  # a node may have that


def test_what_slurm_is_not_told_is_said(launcher: Launcher) -> None:
    ladder = "ladder: {batch: [2, 1]}, retries: 1"
    launcher.file("jobs.yaml", f"jobs: [{{run: x, preload: [torch], gpu_memory: 20GiB, {ladder}}}]")
    result = launcher("check", "jobs.yaml", *SLURM)
    assert result.status == 0
    assert "preload: does nothing under Slurm: each job starts cold" in result.err
    assert "gpu_memory: Slurm is not told of it" in result.err
    assert "ladder: jobs that are in Slurm's queue already keep the step" in result.err
    assert result.err.count("preload") == 1


@pytest.mark.parametrize(
    ("options", "why"),
    {
        ("--simulate", "2"): "--simulate does not go with --engine slurm",
        ("--share-busy",): "--share-busy does not go with --engine slurm",
        ("--free-below", "2GB"): "--free-below does not go with --engine slurm",
        ("--wait", "1h"): "--wait does not go with --engine slurm",
        ("--slurm", "--array=0-3"): "--slurm: --array cannot be set here",
        ("--slurm", "-o x"): "--slurm: --output cannot be set here",
        ("--slurm", "script.sh"): "--slurm: expected an option of sbatch like --constraint=a100",
        ("--slurm", "--gres=gpu:2"): "--slurm: --gres cannot ask for cards",
        ("--slurm", "--comment='x"): "no closing quotation",
    }.items(),
)
def test_options_that_do_not_go_with_slurm_are_refused(
    launcher: Launcher, options: tuple[str, ...], why: str
) -> None:
    launcher.file("jobs.yaml", ONE)
    result = launcher("run", "jobs.yaml", *SLURM, *options)
    assert result.status == 2
    assert why in result.err
    assert result.err.count("\n") == 1


def test_every_word_that_is_wrong_is_a_line(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", ONE)
    result = launcher("check", "jobs.yaml", *SLURM, "--slurm", "--requeue -N 2")
    assert result.err.splitlines() == [
        "gpulaunch: --slurm: --requeue cannot be set here: write retries:",
        "gpulaunch: --slurm: --nodes cannot be set here: a job is one task on one node",
    ]


def test_options_of_sbatch_are_nothing_on_this_machine(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", ONE)
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--slurm", "--partition=gpu")
    assert result.status == 2
    assert "--slurm goes with --engine slurm" in result.err


def test_map_takes_the_engine_too(launcher: Launcher) -> None:
    options = (*SLURM, "--slurm", "-p gpu", "--slurm=--exclusive", "--dry-run")
    result = launcher("map", *options, "echo", ":::", "x", "y")
    assert result.status == 0, result.err
    assert "2 jobs on Slurm" in result.out
    assert launcher("map", *SLURM, "--per-gpu", "2", "--dry-run", "echo", ":::", "x").status == 2


def test_without_slurms_programs_nothing_is_begun(launcher: Launcher) -> None:
    launcher.environ["PATH"] = "/nonexistent"
    launcher.file("jobs.yaml", ONE)
    result = launcher("run", "jobs.yaml", *SLURM)
    assert result.status == 3
    assert "sbatch, squeue, scancel, scontrol not found in PATH" in result.err
    assert not (launcher.path / "gpulaunch-runs").exists()
    begun_on_slurm(launcher)
    assert launcher("resume").status == 3
    assert len(launcher.events("run_opened")) == 1


@pytest.mark.parametrize("cycle", ["0", "-1", "often", ""])
def test_how_often_slurm_is_asked_must_be_a_time(launcher: Launcher, cycle: str) -> None:
    launcher.environ["GPULAUNCH_SLURM_CYCLE"] = cycle
    launcher.file("jobs.yaml", ONE)
    result = launcher("run", "jobs.yaml", *SLURM)
    assert result.status == 2
    assert result.err.startswith("gpulaunch: GPULAUNCH_SLURM_CYCLE: expected a duration")
    assert result.err.count("\n") == 1
    assert not (launcher.path / "gpulaunch-runs").exists()


# ── Going on ────────────────────────────────────────────────────────────────────────────────────


def begun_on_slurm(launcher: Launcher) -> None:
    """A run of this machine, its manifest as a run on Slurm has it."""
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'false'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    path = launcher.run / "manifest.json"
    made = manifest(launcher) | {"engine": "slurm", "slurm": ["--partition=gpu"]}
    path.write_text(json.dumps(made))


def test_a_run_goes_on_with_the_engine_that_it_was_begun_with(launcher: Launcher) -> None:
    begun_on_slurm(launcher)
    for command in ("resume", "retry"):
        result = launcher(command, "--dry-run")
        assert result.status == 0, result.err
        assert "1 job on Slurm\n" in result.out
    result = launcher("resume", "--simulate", "1")
    assert result.status == 2
    assert "--simulate does not go with --engine slurm" in result.err


def test_another_engine_takes_over_when_nothing_is_left_with_the_first(launcher: Launcher) -> None:
    begun_on_slurm(launcher)
    result = launcher("resume", "--engine", "local", "--dry-run")
    assert "1 job on 1 simulated card\n" in result.out
    assert launcher("retry", "--engine", "local").status == 1
    made = manifest(launcher)
    assert (made["engine"], made["slurm"]) == ("local", [])
    assert "1 job on Slurm\n" in launcher("resume", *SLURM, "--dry-run").out


def test_no_other_engine_takes_over_what_the_first_still_has(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'touch up; sleep 600'}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        wait_until((launcher.path / "up").exists)
        process.send_signal(signal.SIGKILL)
        process.wait()
    result = launcher("resume", *SLURM)
    assert result.status == 2
    assert "--engine local still has 1 attempt of this run" in result.err
    assert manifest(launcher)["engine"] == "local"
