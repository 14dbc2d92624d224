"""`hydra/launcher=gpulaunch` in real Hydra, 1.3 and 1.4, with its own sweepers and Optuna's.

The cards are pretend ones. That no two jobs have one at a time, the jobs themselves watch: each
locks a file that is its card's.
"""

from __future__ import annotations

import itertools
import os
import pwd
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.beside.sweeps import HydraSweeps
from tests.executor.test_workers import alive
from tests.helpers import wait_until

PLUGIN = Path(__file__).parents[2] / "plugins" / "hydra-gpulaunch-launcher"


@pytest.fixture(scope="session", params=["1.3", "1.4"])
def hydra(beside: Path, request: pytest.FixtureRequest) -> Path:
    """The Python that has this Hydra."""
    return beside / "python" if request.param == "1.4" else beside.parent / "hydra-1.3/bin/python"


@pytest.fixture
def sweeps(hydra: Path, tmp_path: Path) -> HydraSweeps:
    return HydraSweeps(hydra, tmp_path)


@pytest.fixture
def newest(beside: Path, tmp_path: Path) -> HydraSweeps:
    """By the newer Hydra alone: what does not differ."""
    return HydraSweeps(beside / "python", tmp_path)


def assert_no_card_twice(notes: list[dict[str, Any]]) -> None:
    by_card: dict[str, list[tuple[float, float]]] = {}
    for note in notes:
        for card in note["cards"]:
            by_card.setdefault(card, []).append((note["began"], note["ended"]))
    for times in by_card.values():
        times.sort()
        for one, other in itertools.pairwise(times):
            assert one[1] <= other[0], times


# ── As Hydra's own launchers ────────────────────────────────────────────────────────────────────


def test_hydras_own_suites_pass(hydra: Path) -> None:
    done = subprocess.run(
        [hydra, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLUGIN / "tests")],
        cwd=PLUGIN,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_each_job_has_a_card_of_its_own_and_none_has_two(sweeps: HydraSweeps) -> None:
    sweeps.run("x=1,2,3", "job=range(3)")
    notes = sweeps.notes()
    assert [note["x"] for note in notes] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {note["mask"] for note in notes} == {"0", "1"}
    assert len({note["pid"] for note in notes}) == 9
    assert_no_card_twice(notes)


def test_jobs_run_side_by_side(newest: HydraSweeps) -> None:
    cards = newest.in_order([["do=together"], ["do=together"]])
    assert sorted(cards) == ["0", "1"]


def test_as_many_jobs_share_a_card_as_may(newest: HydraSweeps) -> None:
    newest.cards = 1
    words = ["hydra.launcher.per_gpu=2"]
    assert newest.in_order([["do=together"], ["do=together"]], words=words) == ["0", "0"]


def test_a_job_may_have_several_cards(newest: HydraSweeps) -> None:
    newest.cards = 4
    newest.run("x=1,2,3", "hydra.launcher.gpus_per_job=2")
    notes = newest.notes()
    assert all(len(note["mask"].split(",")) == 2 for note in notes)
    assert_no_card_twice(notes)


def test_cards_may_be_chosen(newest: HydraSweeps) -> None:
    newest.cards = 4
    newest.run("x=1,2,3,4", "hydra.launcher.gpus=[1,3]")
    assert {note["mask"] for note in newest.notes()} <= {"1", "3"}


def test_callbacks_hear_of_jobs_in_their_processes(sweeps: HydraSweeps) -> None:
    heard = sweeps.place / "heard"
    sweeps.run(
        "do=together",
        "job=0,1",
        f"+hydra.callbacks.watcher={{_target_: watcher.Watcher, file: {heard}}}",
    )
    lines = [line.rpartition(" ") for line in heard.read_text().splitlines()]
    by_process: dict[str, list[str]] = {}
    for what, _, pid in lines:
        by_process.setdefault(pid, []).append(what)
    assert sorted(by_process.values()) == [
        ["job start 0", "job end 0 COMPLETED"],
        ["job start 1", "job end 1 COMPLETED"],
        ["multirun start", "multirun end"],
    ]


def test_a_jobs_environment_is_hydras_and_the_launchers(newest: HydraSweeps) -> None:
    words = ["+hydra.launcher.job={env: {OF_THE_JOB: '2'}, cpus: 3}"]
    words += ["+hydra.job.env_set.OF_THE_SWEEP=1"]
    assert newest.in_order([["do=environment"]], words=words) == [["1", "2", "3"]]


def test_a_mask_of_hydras_own_is_refused(newest: HydraSweeps) -> None:
    _, err = newest.run("+hydra.job.env_set.CUDA_VISIBLE_DEVICES='0'", status=1)
    assert err.splitlines()[0].startswith("hydra.job.env_set.CUDA_VISIBLE_DEVICES would take")
    assert not newest.notes()


def test_a_mask_that_some_jobs_have_fails_those(newest: HydraSweeps) -> None:
    told, good = newest.in_order([["+mask=own"], []])
    assert told["text"].startswith("hydra.job.env_set.CUDA_VISIBLE_DEVICES would take")
    assert good == 4.5


def test_a_directory_may_be_named_like_a_placeholder(newest: HydraSweeps) -> None:
    newest.place /= "{{gpu}}"
    newest.place.mkdir()
    newest.run("x=1")
    assert len(newest.notes()) == 1


def test_what_a_program_defines_is_its_own_again(sweeps: HydraSweeps) -> None:
    assert sweeps.in_order([["do=own_things"]]) == ["Model"]


def test_what_a_program_defines_is_found_by_its_name(sweeps: HydraSweeps) -> None:
    assert sweeps.in_order([["do=by_name", "told=Child"]]) == ["Child"]


def test_what_cannot_be_pickled_fails_the_jobs_that_name_it(newest: HydraSweeps) -> None:
    newest.env["OWN_LOCK"] = "unused"
    told, good = newest.in_order(
        [["do=by_name", f"told={name}"] for name in ("unsendable", "Child")]
    )
    assert told["text"] == "__main__.unsendable cannot be pickled for jobs: put it into a module"
    assert good == "Child"


def test_libraries_may_be_imported_once_for_all_jobs(newest: HydraSweeps) -> None:
    out, _ = newest.run("x=1,2", "+hydra.launcher.job={preload: [hydra]}")
    assert "preload: hydra for _job.py, imported in" in out
    assert [note["x"] for note in newest.notes()] == [1, 2]


def test_a_program_that_is_a_module_works_as_well(newest: HydraSweeps) -> None:
    newest.run("x=1,2", program=["-m", "train"])
    assert [note["x"] for note in newest.notes()] == [1, 2]


@pytest.mark.parametrize("text", ["{{out}}", "\\\\{{gpu_index}}", "a, \"b\" 'c'", "naïve\ttab", ""])
def test_an_override_is_inserted_as_it_is(newest: HydraSweeps, text: str) -> None:
    quoted = "'" + text.replace("'", "\\'") + "'"
    newest.in_order([[f"+model.name={quoted}", "+path=1", "+number=2"]])
    (job,) = newest.status()["jobs"]
    assert set(job["params"]) == {"number", "model_name", "path_", "number_", "place"}
    assert job["params"].items() >= {"path_": "1", "number_": "2"}.items()
    import yaml

    config = yaml.safe_load((newest.place / "sweep/0/.hydra/config.yaml").read_text())
    assert config["model"]["name"] == text


# ── Jobs that fail ──────────────────────────────────────────────────────────────────────────────


def test_each_failure_is_its_jobs_own(sweeps: HydraSweeps) -> None:
    kinds = ["fail_plainly", "work", "killed", "leave", "a_lock", "interrupted", "work"]
    plain, good, killed, left, lock, interrupted, also = sweeps.in_order(
        [[f"do={kind}"] for kind in kinds]
    )
    assert plain == {"error": "ValueError", "text": "why it failed"}
    assert good == also == 4.5
    log = sweeps.place / "sweep/gpulaunch/logs/train-2.1.log"
    assert killed == {
        "error": "JobFailedError",
        "text": f"job #2 failed: killed by SIGKILL; log: {log}",
    }
    assert left["text"] == "the job called sys.exit(0) instead of returning"
    assert lock["text"].startswith("what the job returned cannot be pickled: ")
    assert interrupted["text"] == "the job raised KeyboardInterrupt() instead of returning"
    assert "why it failed" in (sweeps.place / "sweep/gpulaunch/logs/train-0.1.log").read_text()


def test_a_failure_ends_the_sweep_with_its_traceback(sweeps: HydraSweeps) -> None:
    _, err = sweeps.run("do=fail_plainly,work", status=1)
    assert "ValueError: why it failed" in err
    assert 'train.py", line' in err
    assert "in fail_plainly" in err
    assert len(sweeps.notes()) == 1


def test_an_exception_that_cannot_be_read_here_is_told(newest: HydraSweeps) -> None:
    (told,) = newest.in_order([["do=fail"]])
    assert "OwnError" in told["text"]


def test_an_exception_that_cannot_be_read_is_told_by_the_older_hydra(
    beside: Path, tmp_path: Path
) -> None:
    older = HydraSweeps(beside.parent / "hydra-1.3/bin/python", tmp_path)
    (told,) = older.in_order([["do=fail"]])
    assert told["error"] == "JobFailedError"
    assert "what it returned cannot be read here: TypeError(" in told["text"]


def test_a_job_is_tried_again_as_often_as_said(newest: HydraSweeps) -> None:
    words = ["hydra.launcher.retries=1"]
    assert newest.in_order([["do=at_the_second"]], words=words) == ["2"]
    (job,) = newest.status()["jobs"]
    assert [one["state"] for one in job["attempts"]] == ["failed", "succeeded"]


def test_a_job_is_tried_again_for_failures_of_a_class_alone(newest: HydraSweeps) -> None:
    words = ["hydra.launcher.retries={times: 2, on: [gpu_oom]}"]
    plain, memory = newest.in_order([["do=at_the_second"], ["do=out_of_memory"]], words=words)
    assert (plain["text"], memory) == ("not yet", "2")


def test_a_job_is_ended_at_its_timeout(newest: HydraSweeps) -> None:
    words = ["hydra.launcher.timeout=3s", "+hydra.launcher.job={grace: 0s}"]
    (told,) = newest.in_order([["do=stay"]], words=words)
    assert told["text"].startswith("job #0 failed: ran longer than its timeout of 3 s")
    assert told["text"].endswith("/logs/train-0.1.log")


def test_a_job_that_somebody_cancels_is_told_as_that(newest: HydraSweeps) -> None:
    with newest.start("do=stay") as process:
        wait_until(lambda: pids(newest))
        newest.gpulaunch("cancel", "-r", "sweep/gpulaunch", "train-0")
        _, err = process.communicate(timeout=240)
    assert "job #0 cancelled; log: " in err


def test_a_job_that_left_no_output_has_failed_whatever_it_returned(newest: HydraSweeps) -> None:
    (told,) = newest.in_order([[]], words=["+hydra.launcher.job={outputs: '{{out}}/model.pt'}"])
    assert told["text"].startswith("job #0 failed: left no good output: ")


# ── One run a sweep ─────────────────────────────────────────────────────────────────────────────


def test_all_batches_are_one_run_with_logs_and_a_report(sweeps: HydraSweeps) -> None:
    batches = [[["x=1"], ["do=fail_plainly"]], [["x=2", "+model.lr=0.1"]], [["x=3"]]]
    told = sweeps.in_order(*batches)
    assert [told[0], told[2], told[3]] == [0.5, 0.5, 4.5]
    status = sweeps.status()
    jobs = {job["name"]: job for job in status["jobs"]}
    assert [len(job["attempts"]) for job in jobs.values()] == [1, 1, 1, 1], "none runs again"
    assert jobs["train-1"]["state"] == "failed"
    assert jobs["train-2"]["params"].items() >= {"x": "2", "model_lr": "0.1", "number": "2"}.items()
    assert status["run"]["simulated"]
    run = sweeps.place / "sweep/gpulaunch"
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert "working on" in sweeps.gpulaunch("logs", "-r", "sweep/gpulaunch", "train-3")
    assert "train-3" in (run / "report.html").read_text()
    assert len([*(run / "hydra").glob("*.pickle")]) == 1, "what all jobs need is kept once"


def test_what_failed_in_any_batch_can_be_gone_on_with(newest: HydraSweeps) -> None:
    told = newest.in_order([["do=at_the_second"]], [["x=1"]])
    assert (told[0]["text"], told[1]) == ("not yet", 0.5)
    newest.gpulaunch("resume", "sweep/gpulaunch", "--quiet")
    status = newest.status()
    assert [len(job["attempts"]) for job in status["jobs"]] == [2, 1]
    assert status["run"]["counts"]["succeeded"] == 2


def test_the_same_directory_gets_a_run_for_each_sweep(newest: HydraSweeps) -> None:
    for _ in range(2):
        newest.run("x=1")
    runs = sorted(one.name for one in (newest.place / "sweep").iterdir() if one.name[0] == "g")
    assert runs == ["gpulaunch", "gpulaunch-2"]


def test_numbers_that_come_once_more_are_a_run_of_their_own(newest: HydraSweeps) -> None:
    words = ["hydra.sweeper.again=0"]
    assert newest.in_order([["x=1"]], [["x=3"]], words=words) == [0.5, 4.5]
    assert newest.status("sweep/gpulaunch-2")["run"]["counts"]["succeeded"] == 1


def test_many_alike_failures_end_the_run_and_the_rest_is_told(newest: HydraSweeps) -> None:
    told = newest.in_order([["do=fail_plainly"]] * 14)
    assert [one["error"] for one in told[:9]] == ["ValueError"] * 9
    assert told[-1]["text"].startswith("job #13 was not run to its end: ")


# ── Signals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_leaves_nothing_and_can_be_gone_on_with(
    sweeps: HydraSweeps, number: signal.Signals
) -> None:
    with sweeps.start("do=stay", "job=0,1,2", "+hydra.launcher.job={grace: 5s}") as process:
        wait_until(lambda: len(pids(sweeps)) == 2)
        began = pids(sweeps)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == -number, out + err
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT), err
    assert not any(alive(pid) for pid in began)
    assert sweeps.status()["run"]["state"] == "stopped"
    (sweeps.place / "go").touch()
    sweeps.gpulaunch("resume", "sweep/gpulaunch", "--quiet")
    assert sweeps.status()["run"]["counts"]["succeeded"] == 3


def pids(sweeps: HydraSweeps) -> list[int]:
    return [int(one.name[4:]) for one in sweeps.place.glob("pid-*")]


def test_nothing_outlives_a_killed_sweep(newest: HydraSweeps) -> None:
    with newest.start("do=stay", "+hydra.launcher.job={grace: 1s}") as process:
        (job,) = wait_until(lambda: pids(newest))
        process.kill()
        process.communicate(timeout=120)
    wait_until(lambda: not alive(job))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a sweep as somebody else")
def test_a_user_who_may_read_all_by_a_capability_has_sweeps_too(newest: HydraSweeps) -> None:
    """The program's Python may stand where this user, by name alone, may not enter."""
    nobody = pwd.getpwnam("nobody")
    os.chown(newest.place, nobody.pw_uid, nobody.pw_gid)
    rights = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    user = (f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups")
    newest.before = ("setpriv", *user, *rights)
    newest.env = {"HOME": str(newest.place), "PYTHONDONTWRITEBYTECODE": "1"}
    newest.run("x=1,2")
    assert [note["x"] for note in newest.notes()] == [1, 2]


# ── What cannot be ──────────────────────────────────────────────────────────────────────────────

WRONG = {
    "hydra.launcher.timeout=soon": "hydra.launcher.timeout: expected",
    "hydra.launcher.retries=-1": "hydra.launcher.retries: expected",
    "hydra.launcher.retries={on: [nothing]}": "hydra.launcher.retries.on[0]: ",
    "hydra.launcher.gpus=some": "hydra.launcher.gpus: expected",
    "hydra.launcher.gpus=[7]": "hydra.launcher.gpus: there is no card 7",
    "hydra.launcher.per_gpu=0": "hydra.launcher.per_gpu: expected",
    "hydra.launcher.gpus_per_job=3": "hydra.launcher.gpus_per_job: ",
    "hydra.launcher.wait=soon": "hydra.launcher.wait: expected",
    "hydra.launcher.simulate=-1": "hydra.launcher.simulate: expected",
    "hydra.launcher.run_dir=/proc/run": "hydra.launcher.run_dir: /proc/run cannot be written: No ",
    "+hydra.launcher.gpu_memory=1GB": "hydra.launcher.gpu_memory: there is no such option; ",
    "+hydra.launcher.job={memroy: 1GB}": "hydra.launcher.job.memroy: unknown key",
    "+hydra.launcher.job={run: ls}": "hydra.launcher.job.run cannot be set",
    "+hydra.launcher.job={gpus: 2}": "hydra.launcher.job.gpus cannot be set: that is",
}


@pytest.mark.parametrize("word", WRONG)
def test_what_cannot_be_is_one_line_and_leaves_nothing(newest: HydraSweeps, word: str) -> None:
    _, err = newest.run(word, status=1)
    line, *rest = err.splitlines()
    assert line.startswith(WRONG[word])
    assert not [one for one in rest if one and "HYDRA_FULL_ERROR" not in one]
    assert not (newest.place / "sweep/gpulaunch").exists()


def test_what_cannot_be_sent_to_jobs_is_one_line(newest: HydraSweeps) -> None:
    newest.env["OWN_LOCK"] = "used"
    _, err = newest.run("do=unsendable", status=1)
    assert err.startswith("hydra/launcher=gpulaunch: the jobs cannot be sent what they need of")
    assert "cannot pickle '_thread.lock' object" in err
    assert not (newest.place / "sweep/gpulaunch").exists()


def test_a_card_that_is_not_here_is_one_line(newest: HydraSweeps) -> None:
    newest.cards = None
    _, err = newest.run("hydra.launcher.gpus=[GPU-ffffffff]", status=1)
    assert err.startswith("hydra.launcher.gpus: there is no card GPU-ffffffff")
    assert "Traceback" not in err


# ── Sweepers of others ──────────────────────────────────────────────────────────────────────────


def test_optunas_sweeper_works_unchanged(sweeps: HydraSweeps) -> None:
    sweeps.run(
        "hydra/sweeper=optuna",
        "x=interval(0, 4)",
        "hydra.sweeper.n_trials=6",
        "hydra.sweeper.n_jobs=3",
        "hydra.sweeper.sampler.seed=1",
    )
    notes = sweeps.notes()
    assert len(notes) == 6
    assert_no_card_twice(notes)
    best = (sweeps.place / "sweep/optimization_results.yaml").read_text()
    lowest = min(2 * (note["x"] - 1.5) ** 2 for note in notes)
    assert f"best_value: {lowest}" in best
    assert sweeps.status()["run"]["counts"]["succeeded"] == 6


def test_axs_sweeper_works_unchanged(tmp_path: Path) -> None:
    """In a Python that has it; with torch it brings 6 GB: `hydra-ax-sweeper>=1.4.0rc3`."""
    if "GPULAUNCH_TEST_AX" not in os.environ:
        pytest.skip("GPULAUNCH_TEST_AX=PYTHON names one that has hydra-ax-sweeper and the plugin")
    sweeps = HydraSweeps(Path(os.environ["GPULAUNCH_TEST_AX"]), tmp_path)
    ax = "hydra.sweeper.ax_config"
    sweeps.run(
        *("hydra/sweeper=ax", "x=interval(0.0, 4.0)"),
        *(f"{ax}.max_trials=6", f"{ax}.experiment.objective_name=loss"),
    )
    notes = sweeps.notes()
    assert len(notes) == 6
    assert_no_card_twice(notes)
    assert "optimizer: ax" in (tmp_path / "sweep/optimization_results.yaml").read_text()
    assert sweeps.status()["run"]["counts"]["succeeded"] == 6
