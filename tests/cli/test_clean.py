"""`gpulaunch clean` on runs as `run` leaves them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.core.facts import AttemptLaunched
from gpulaunch.core.model import AttemptId, Instant
from gpulaunch.journal.append import Journal
from gpulaunch.journal.rundir import RunDir
from gpulaunch.run import clean
from gpulaunch.run.control_server import ControlServer
from gpulaunch.run.options import NOBODY
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.cli.test_contracts import check
from tests.helpers import wait_until
from tests.journal.facts import added, opened
from tests.journal.made import NOTHING_STARTED, made

TRIED = """
jobs:
  - name: a
    retries: 2
    run: head -c 300000 /dev/zero > {{out}}/big; echo k > {{keep}}/ckpt; test {{attempt}} = 3
  - {name: b, run: 'echo hi > {{out}}/x'}
"""
FAILS = "jobs: [{name: f, retries: 1, run: 'echo x > {{out}}/x; exit 1'}]"
TWICE = "echo x > {{out}}/x; [ {{attempt}} = 2 ] && " + UNTIL_GO
WAITS = f"jobs: [{{name: w, retries: 1, run: '{TWICE}'}}]"


def ran(launcher: Launcher, text: str = TRIED, name: str = "jobs.yaml", *more: str) -> Path:
    launcher.file(name, text)
    result = launcher("run", name, "--simulate", "1", "-q", "--new", *more)
    assert result.status in (0, 1), result.err
    return launcher.run


def outs(run: Path) -> set[str]:
    return {entry.name for entry in (run / "out").iterdir()}


def cleaned(launcher: Launcher, *argv: str | Path, status: int = 0) -> dict[str, Any]:
    result = launcher("clean", "--json", *argv)
    assert result.status == status, result.err
    return check("clean", result.out)


def of_this_boot(run: RunDir, launcher: Launcher) -> None:
    """Have a made run be one of the machine that its journal names."""
    text = json.loads(run.manifest.read_text())
    opened = launcher.events("run_opened", run.path)[0]
    for part in (text, *text["epochs"]):
        part["boot"] = opened["boot"]
    run.manifest.write_text(json.dumps(text))


# ── What attempts left ──────────────────────────────────────────────────────────────────────────


def test_what_goes_is_said_first_and_then_only_that_goes(launcher: Launcher) -> None:
    run = ran(launcher)
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}
    dry = launcher("clean", "--dry-run")
    assert dry.status == 0
    assert "out/ of 2 superseded attempts: a.1, a.2" in dry.out
    assert "nothing was removed (--dry-run)" in dry.err
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}
    done = launcher("clean")
    assert done.out == dry.out
    assert "removed " in done.err
    assert outs(run) == {"a.3", "b.1"}
    assert (run / "keep" / "a" / "ckpt").exists()
    assert "nothing to remove" in launcher("clean").err


def test_status_report_and_resume_of_a_cleaned_run_are_truthful(launcher: Launcher) -> None:
    run = ran(launcher)
    assert launcher("clean").status == 0
    attempts = launcher.jobs(run)["a"]["attempts"]
    assert [one["out"] is None for one in attempts] == [True, True, False]
    assert (run / "results" / "a" / "big").stat().st_size == 300_000
    assert all(Path(one["log"]).exists() for one in attempts)
    assert launcher("status", "a").status == 0
    assert launcher("report").status == 0
    again = launcher("resume", "-q")
    assert again.status == 0, again.err


def test_the_last_attempt_of_a_failed_job_stays(launcher: Launcher) -> None:
    run = ran(launcher, FAILS)
    assert launcher("clean").status == 0
    assert outs(run) == {"f.2"}


def test_what_results_point_to_is_never_removed(launcher: Launcher) -> None:
    run = ran(launcher)
    (run / "results" / "first").symlink_to("../out/a.1")
    (run / "results" / "part").symlink_to("../out/a.2/big")
    assert launcher("clean").status == 0
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}


def test_what_lies_in_a_directory_that_results_point_to_is_never_removed(
    launcher: Launcher,
) -> None:
    run = ran(launcher)
    (run / "results" / "all").symlink_to("../out")
    assert launcher("clean").status == 0
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}


def test_a_checkpoint_that_a_link_in_keep_leads_to_is_never_removed(launcher: Launcher) -> None:
    run = ran(launcher)
    (run / "keep" / "a" / "last").symlink_to(run / "out" / "a.1" / "big")
    assert launcher("clean").status == 0
    assert outs(run) == {"a.1", "a.3", "b.1"}


def test_what_is_left_keeps_what_it_leads_to_in_its_turn(launcher: Launcher) -> None:
    run = ran(launcher)
    (run / "keep" / "a" / "last").symlink_to("../../out/a.2/big")
    (run / "out" / "a.2" / "before").symlink_to("../a.1/big")
    (run / "out" / "a.1" / "after").symlink_to("../a.2")
    assert launcher("clean").status == 0
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}


def test_what_the_result_leads_to_itself_is_never_removed(launcher: Launcher) -> None:
    run = ran(launcher)
    (run / "out" / "a.3" / "sub").mkdir()
    (run / "out" / "a.3" / "sub" / "first").symlink_to("../../a.2/link")
    (run / "out" / "a.2" / "link").symlink_to("../a.1/big")
    assert launcher("clean").status == 0
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}
    (run / "out" / "a.3" / "sub" / "first").unlink()
    assert launcher("clean").status == 0
    assert outs(run) == {"a.3", "b.1"}


def test_what_lies_behind_a_link_in_the_place_of_all_outs_is_left(
    launcher: Launcher, tmp_path: Path
) -> None:
    run, disk = ran(launcher), tmp_path / "disk"
    (run / "out").rename(disk)
    (run / "out").symlink_to(disk)
    result = launcher("clean", run)
    assert result.status == 1
    assert f"is left: its out is a link, to {disk}" in result.err
    assert launcher("clean").status == 0, "nobody named it"
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}
    result = launcher("clean", "--runs", run)
    assert result.status == 0
    assert "; what these links lead to stays: out" in result.out
    assert {entry.name for entry in disk.iterdir()} == {"a.1", "a.2", "a.3", "b.1"}


def test_json_says_what_went_from_where(launcher: Launcher) -> None:
    run = ran(launcher)
    told = cleaned(launcher, "--dry-run")
    (one,) = told["runs"]
    assert one["state"] == "succeeded"
    assert [(r["job"], r["attempt"]) for r in one["removes"]] == [("a", 1), ("a", 2)]
    assert all(r["bytes"] >= 300_000 and r["freed"] == 0 for r in one["removes"])
    told = cleaned(launcher)
    assert told["freed"] == told["bytes"] >= 600_000
    assert not any(Path(r["path"]).exists() for r in told["runs"][0]["removes"])
    assert outs(run) == {"a.3", "b.1"}


def test_a_link_in_the_place_of_an_out_is_left(launcher: Launcher, tmp_path: Path) -> None:
    run = ran(launcher)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("x")
    shutil.rmtree(run / "out" / "a.1")
    (run / "out" / "a.1").symlink_to(tmp_path / "elsewhere")
    assert launcher("clean").status == 0
    assert outs(run) == {"a.1", "a.3", "b.1"}
    assert (tmp_path / "elsewhere" / "mine").exists()


# ── Live runs, and those of others ──────────────────────────────────────────────────────────────


def test_a_live_run_is_left_alone_and_named_so(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", "-q"):
        launcher.wait_for("attempt_started", 2)
        run = launcher.run
        for argv in ((), ("--runs",), ("--runs", "--older", "0s")):
            result = launcher("clean", *argv)
            assert result.status == 0, "nobody named it"
            assert "is left: it is alive" in result.err
        named = launcher("clean", "--runs", run)
        assert named.status == 1
        assert outs(run) == {"w.1", "w.2"}
        launcher.file("go", "")
        assert launcher("wait").status == 0
    assert launcher("clean").status == 0
    assert outs(run) == {"w.2"}


def test_a_run_that_comes_to_life_after_the_look_is_left_alone(launcher: Launcher) -> None:
    run = ran(launcher)
    for whole in (False, True):
        plan = clean.look([str(run)], clean.CleanOptions(whole), NOBODY)
        assert plan.bytes
        with ControlServer(plan.runs[0].id):
            done = list(clean.carry_out(plan))
        assert done
        assert all("is alive" in one.left and not one.freed for one in done)
        assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}


def test_what_is_needed_by_now_is_left(launcher: Launcher) -> None:
    run = ran(launcher)
    plan = clean.look([str(run)], clean.CleanOptions(), NOBODY)
    (run / "results" / "first").symlink_to("../out/a.1")
    done = {one.target.path.name: one.left for one in clean.carry_out(plan)}
    assert done == {"a.1": "it is needed by now", "a.2": ""}
    assert outs(run) == {"a.1", "a.3", "b.1"}


@pytest.mark.parametrize("whole", [False, True])
def test_what_another_clean_has_removed_meanwhile_is_not_left(
    launcher: Launcher, whole: bool
) -> None:
    run = ran(launcher)
    plan = clean.look([str(run)], clean.CleanOptions(whole), NOBODY)
    assert all(not one.left for one in clean.carry_out(plan))
    assert all(not (one.left or one.freed) for one in clean.carry_out(plan))


def test_nobody_takes_a_run_up_while_something_of_it_goes(launcher: Launcher) -> None:
    run = ran(launcher)
    tried: dict[str, int] = {}

    def resume(step: str) -> None:
        if step not in tried:
            tried[step] = launcher("resume", run, "-q").status

    plan = clean.look([str(run)], clean.CleanOptions(), NOBODY)
    assert all(not one.left for one in clean.carry_out(plan, resume))
    assert tried == {"renamed": 5, "deleted": 0}


def test_a_run_of_another_machine_is_left_to_it(launcher: Launcher) -> None:
    run = ran(launcher)
    text = (run / "manifest.json").read_text()
    manifest = json.loads(text)
    for part in (manifest, *manifest["epochs"]):
        part["host"], part["boot"] = "elsewhere", "another"
    (run / "manifest.json").write_text(json.dumps(manifest))
    result = launcher("clean", run)
    assert result.status == 1
    assert "is a run of elsewhere" in result.err
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}


def test_a_clusters_run_is_left_while_its_jobs_may_be_in_the_queue_or_on_nodes(
    launcher: Launcher,
) -> None:
    begun = AttemptLaunched(AttemptId("a", 1), (), queued=True)
    run = made(launcher.path, facts=(opened(engine="slurm"), added("a"), begun))
    lines = run.events.read_bytes().splitlines(keepends=True)
    for kept, why in ((lines, "still has"), ([*lines[:-1], b"x" * 50 + b"\n"], "may still have")):
        run.events.write_bytes(b"".join(kept))
        for argv in ((), ("--runs",)):
            result = launcher("clean", *argv, run.path)
            assert result.status == 1
            assert f"is left: Slurm {why} jobs of it" in result.err
    assert run.path.exists()


def test_a_clock_that_was_set_back_makes_no_run_old(launcher: Launcher) -> None:
    ahead = Instant(0.0, time.time() + 86_400)
    run = made(launcher.path, facts=())
    with Journal.reopen(run) as journal:
        journal.append([(fact, ahead) for fact in NOTHING_STARTED])
    result = launcher("clean", "--runs", "--older", "0s", run.path)
    assert "is left: it is not old enough" in result.err
    assert run.path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give a run away")
def test_a_run_of_another_user_is_named_and_left(launcher: Launcher) -> None:
    run = ran(launcher)
    os.chown(run, 65534, 65534)
    for argv in ((), ("--runs",)):
        result = launcher("clean", *argv)
        assert result.status == 0
        assert "is left: it belongs to nobody" in result.err
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}


def test_a_run_whose_supervisor_was_killed_is_left_until_its_jobs_have_ended(
    launcher: Launcher,
) -> None:
    saves = f"trap '{UNTIL_GO}; echo k > $1/ckpt; exit 1' TERM; : > begun; sleep 100 & wait"
    launcher.file("saves.sh", saves)
    command = "exec env -i PATH=$PATH bash saves.sh {{keep}}"  # found by its keepers alone
    launcher.file("jobs.yaml", f"jobs: [{{name: a, grace: 60, run: '{command}'}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", "-q") as supervisor:
        wait_until((launcher.path / "begun").exists)
        run = launcher.run
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
    for argv in ((), ("--runs",)):
        result = launcher("clean", *argv, run)
        assert result.status == 1
        assert "is left: processes of its jobs are still alive" in result.err
    launcher.file("go", "")
    wait_until((run / "keep" / "a" / "ckpt").exists)
    wait_until(lambda: launcher("clean", "--runs", run).status == 0)
    assert not run.exists()


def test_processes_that_have_outlived_their_keepers_keep_the_run(launcher: Launcher) -> None:
    run = made(launcher.path)  # its attempt has no end on record
    of_this_boot(run, launcher)
    marked = {**os.environ, "GPULAUNCH_RUN_ID": run.read_manifest().run}
    with subprocess.Popen(["sleep", "100"], env=marked) as process:
        result = launcher("clean", "--runs", run.path)
        process.kill()
    assert result.status == 1
    assert "is left: processes of its jobs are still alive" in result.err
    assert launcher("clean", "--runs", run.path).status == 0


# ── Whole runs ──────────────────────────────────────────────────────────────────────────────────


def test_whole_runs_go_by_age_and_number_and_latest_is_mended(launcher: Launcher) -> None:
    first, second = ran(launcher), ran(launcher)
    assert launcher("clean", "--runs", "--older", "1h").status == 0
    assert first.exists()
    result = launcher("clean", "--runs", "--keep", "1")
    assert result.status == 0
    assert "the whole run, succeeded, 4 attempts, keep/ of 1 job" in result.out
    assert not first.exists()
    assert launcher.run == second
    third = ran(launcher)
    assert launcher("clean", "--runs", third).status == 0
    assert launcher.run == second, "latest points to what is left"
    assert launcher("clean", "--runs", "--older", "0s").status == 0
    assert list((launcher.path / "gpulaunch-runs").iterdir()) == []


def test_a_run_that_can_be_gone_on_with_goes_only_by_its_name(launcher: Launcher) -> None:
    run = ran(launcher, FAILS)
    result = launcher("clean", "--runs")
    assert result.status == 0
    assert "left, as each can be gone on with: 1 failed" in result.err
    assert run.exists()
    assert launcher("clean", "--runs", "--older", "1h", run).status == 0
    assert run.exists(), "age counts for what is named, too"
    assert launcher("clean", "--runs", run).status == 0
    assert not run.exists()


def test_a_run_in_which_nothing_was_started_goes_with_the_others(launcher: Launcher) -> None:
    run = made(launcher.path, facts=NOTHING_STARTED)
    assert launcher("clean", "--runs").status == 0
    assert not run.path.exists()


def test_a_run_that_was_killed_before_it_started_anything_goes_too(launcher: Launcher) -> None:
    run = made(launcher.path, facts=(added("a"),))
    of_this_boot(run, launcher)
    result = launcher("clean", "--runs")
    assert result.status == 0, result.err
    assert "is left" not in result.err
    assert not run.path.exists()


def test_a_directory_with_other_files_than_the_runs_is_left(launcher: Launcher) -> None:
    kept = launcher.path / "kept"
    kept.mkdir()
    (kept / "paper.tex").write_text("x")
    launcher.file("jobs.yaml", TRIED)
    run = ("run", "jobs.yaml", "--simulate", "1", "-q", "--run-dir", kept)
    assert launcher(*run).status == 0
    result = launcher("clean", "--runs", kept)
    assert result.status == 1
    assert "it holds other files than the run's (paper.tex)" in result.err
    assert (kept / "paper.tex").exists()
    (kept / "paper.tex").unlink()
    assert launcher("clean", "--runs", kept).status == 0
    assert not kept.exists()


def test_a_directory_that_is_no_run_is_refused_and_left(launcher: Launcher) -> None:
    place = launcher.path / "gpulaunch-runs" / "mine"
    place.mkdir(parents=True)
    (place / "events.jsonl").write_text("not a journal\n")
    (launcher.path / "other").mkdir()
    result = launcher("clean", "--runs")
    assert result.status == 0
    assert (place / "events.jsonl").exists()
    assert launcher("clean", "--runs", "other").status == 2
    assert (launcher.path / "other").exists()
    assert launcher("clean", "--runs", place).status == 1
    assert (place / "events.jsonl").exists()


def test_a_run_with_an_unfinished_job_goes_only_by_its_name(launcher: Launcher) -> None:
    """It succeeded, as its file has that job no more: with the job back, `resume` goes on."""
    run = ran(
        launcher, "jobs: [{name: a, run: 'echo k > {{keep}}/k; exit 1'}, {name: b, run: ':'}]"
    )
    launcher.file("jobs.yaml", "jobs: [{name: b, run: ':'}]")
    assert launcher("resume", "-q").status == 0
    assert launcher.status(run)["run"]["state"] == "succeeded"
    assert "can be gone on with" in launcher("clean", "--runs").err
    assert (run / "keep" / "a" / "k").exists()
    assert launcher("clean", "--runs", run).status == 0
    assert not run.exists()


def test_a_run_with_lost_lines_goes_only_by_its_name(launcher: Launcher) -> None:
    """The last resume may be among them: nobody knows that it is over, nor how old it is."""
    run = ran(launcher)
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join([*lines[:-3], b"x" * 50 + b"\n", *lines[-2:]]))
    assert launcher("clean").status == 0
    assert "can be gone on with" in launcher("clean", "--runs").err
    assert outs(run) == {"a.1", "a.2", "a.3", "b.1"}
    assert launcher("clean", "--runs", run).status == 0
    assert not run.exists()


def test_what_is_not_the_runs_own_is_named_before_it_goes_with_it(launcher: Launcher) -> None:
    run = ran(launcher)
    (run / "notes.txt").write_text("x")
    assert "with what is not its own: notes.txt" in launcher("clean", "--runs", "--dry-run").out
    mine = run.rename(run.with_name("for-the-paper"))
    result = launcher("clean", "--runs", mine)
    assert result.status == 1, "a directory of a person's own name"
    assert "it holds other files than the run's (notes.txt)" in result.err
    assert (mine / "notes.txt").exists()


def test_a_run_with_other_runs_in_it_is_left(launcher: Launcher) -> None:
    run = ran(launcher)
    shutil.copytree(run, run / "gpulaunch-runs" / "inner", symlinks=True)
    result = launcher("clean", "--runs", run)
    assert result.status == 1
    assert "is left: other runs are in it" in result.err
    assert run.exists()


def test_the_newest_that_are_kept_are_runs_in_which_something_was_started(
    launcher: Launcher,
) -> None:
    run = ran(launcher)
    for seconds in (86_400 * 365, 86_400 * 366):
        made(launcher.path, seconds=seconds, facts=NOTHING_STARTED)
    assert launcher("clean", "--runs", "--keep", "1").status == 0
    assert run.exists()
    assert [each for each in run.parent.iterdir() if not each.is_symlink()] == [run]


def test_a_name_that_may_mean_something_else_removes_nothing(launcher: Launcher) -> None:
    run = ran(launcher)
    for name in (run / "logs" / "a.1.log", run / "jobs.yaml", "gpulaunch-runs/latest/report.html"):
        result = launcher("clean", "--runs", name)
        assert result.status == 2
        assert f"is a part of the run gpulaunch-runs/{run.name}: name that itself" in result.err
    inside = Launcher(run, launcher.environ)
    result = inside("clean", "--runs", "")
    assert (result.status, result.err) == (
        2,
        "gpulaunch: RUN is empty: is a variable not set?\n",
    )
    assert run.exists()


def test_latest_does_not_dangle_when_it_led_to_a_run_by_another_link(launcher: Launcher) -> None:
    run, disk = ran(launcher), launcher.path / "disk"
    disk.mkdir()
    moved = run.rename(disk / run.name)
    run.symlink_to(moved)
    assert launcher("clean", "--runs", run).status == 0
    assert not moved.exists()
    assert not (run.parent / "latest").is_symlink()


def test_a_persons_own_link_called_latest_is_left(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", TRIED)
    kept = launcher.path / "kept"
    run = ("run", "jobs.yaml", "--simulate", "1", "-q", "--run-dir", kept)
    assert launcher(*run).status == 0
    (launcher.path / "latest").symlink_to("not-there-yet")
    assert launcher("clean", "--runs", kept).status == 0
    assert launcher("clean").status == 0
    assert (launcher.path / "latest").is_symlink()


def test_where_no_run_was_begun_there_is_nothing_to_do(launcher: Launcher) -> None:
    result = launcher("clean", "--runs", "--older", "30d")
    assert (result.status, result.err) == (0, "gpulaunch: nothing to remove\n")
    assert launcher("clean", "nowhere").status == 2
