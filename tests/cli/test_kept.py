"""What a run keeps from one start to the next, and what a start can say otherwise."""

from __future__ import annotations

import json
import signal
from typing import Any

from msgspec.structs import replace

from gpulaunch.journal.choices import Choices
from tests.cli.launcher import Launcher

MANY = """
    jobs:
      - {name: long-1, run: 'echo {{gpu_index}}; [ -e fixed ] || exec sleep 600'}
      - {name: long-2, run: 'echo {{gpu_index}}'}
      - {name: long-3, run: 'echo {{gpu_index}}'}
      - {name: long-4, run: 'echo {{gpu_index}}'}
"""


def killed(launcher: Launcher, *argv: str) -> None:
    """`run` with these options, its supervisor killed while long-1 runs."""
    with launcher.begun("run", "jobs.yaml", *argv) as process:
        launcher.wait_for("attempt_started", 1)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    launcher.file("fixed", "")


def choices(launcher: Launcher) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((launcher.run / "manifest.json").read_text())["choices"]
    return {name: value for name, value in found.items() if value not in (None, [])}


def test_a_resumed_run_keeps_to_its_cards_and_jobs(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", MANY)
    killed(launcher, "--simulate", "4", "--gpus", "1,2", "--only", "long-1", "--only", "long-2")
    result = launcher("resume")
    assert result.status == 0, result.err
    assert launcher.states() == {"long-1": "succeeded", "long-2": "succeeded"}
    assert [gpu["index"] for gpu in launcher.status()["gpus"]] == [1, 2]
    assert "as before: --gpus 1,2 --only long-1 --only long-2 --simulate 4" in result.err
    assert "gpulaunch: GPUs 1, 2 of 4 simulated cards; " in result.err
    assert "leaves out 2 jobs of the file" in result.err
    assert "--only '*'" in result.err


def test_what_was_left_out_runs_when_all_is_asked_for_and_from_then_on(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", MANY)
    launcher.file("fixed", "")
    result = launcher("run", "jobs.yaml", "--simulate", "4", "--gpus", "2", "--only", "long-1")
    assert "--only long-1 leaves out 3 jobs of the file" in result.err
    assert launcher("resume", "--only", "*", "--gpus", "all").status == 0
    assert set(launcher.states().values()) == {"succeeded"}
    assert len(launcher.states()) == 4
    assert choices(launcher) == {"gpus": "all", "only": ["*"], "simulate": 4}


def test_each_option_is_kept_and_can_be_overridden(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: bad, run: exit 1}]")
    begun = "--fail-fast --breaker 3 --pin warn --share-busy --free-below 2GB,5%"
    begun += " --per-gpu 2 --explain --no-preload"
    assert launcher("run", "jobs.yaml", "--simulate", "1", *begun.split()).status == 1
    kept = {
        "simulate": 1,
        "fail_fast": True,
        "breaker": 3,
        "pin": "warn",
        "share_busy": True,
        "free_below": "2GB,5%",
        "per_gpu": 2,
        "explain": True,
        "preload": False,
    }
    assert choices(launcher) == kept
    assert launcher("retry").status == 1
    assert choices(launcher) == kept
    then = (
        "--no-fail-fast --breaker 0 --pin fail --no-share-busy --free-below 3GB --per-gpu 1"
        " --no-explain --preload"
    )
    assert launcher("retry", "--simulate", "2", *then.split()).status == 1
    assert choices(launcher) == {
        "simulate": 2,
        "fail_fast": False,
        "breaker": 0,
        "pin": "fail",
        "share_busy": False,
        "free_below": "3GB",
        "per_gpu": 1,
        "explain": False,
        "preload": True,
    }


def test_a_number_of_failures_takes_the_place_of_the_first_one() -> None:
    begun = Choices(fail_fast=True, gpus="2")
    assert Choices(max_failures=3).over(begun) == Choices(gpus="2", max_failures=3)
    both = Choices(fail_fast=True, max_failures=3)
    assert both.over(begun) == replace(both, gpus="2")


def test_another_engine_takes_over_a_number_of_cards_and_no_names() -> None:
    here = Choices(gpus="[0,1]", simulate=4, share_busy=True, free_below="2GB", pin="warn")
    assert here.elsewhere() == Choices(pin="warn")
    assert Choices(gpus="2").elsewhere() == Choices(gpus="2")


def test_fail_fast_holds_for_a_resumed_run(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: bad, run: exit 1, priority: 1}
          - {name: other, run: 'true'}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--fail-fast").status == 1
    assert launcher("resume").status == 1
    assert launcher.states() == {"bad": "failed", "other": "waiting"}
    assert launcher("resume", "--no-fail-fast").status == 1
    assert launcher.states() == {"bad": "failed", "other": "succeeded"}


def test_how_many_share_a_card_is_kept(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: exit 1}, {name: b, run: exit 1}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--per-gpu", "2").status == 1
    told = json.loads(launcher("retry", "--dry-run", "--json").out)
    assert [job["per_gpu"] for job in told["jobs"]] == [2, 2]


def test_jobs_of_a_map_share_a_card_again_after_a_kill(launcher: Launcher) -> None:
    result = launcher("map", "--simulate", "1", "--per-gpu", "2", "exit 1", ":::", "a", "b")
    assert result.status == 1
    told = json.loads(launcher("retry", "--dry-run", "--json").out)
    assert [job["per_gpu"] for job in told["jobs"]] == [2, 2]


def test_continue_keeps_what_the_run_was_begun_with(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", MANY)
    killed(launcher, "--simulate", "4", "--gpus", "[3]", "--only", "long-1")
    result = launcher("run", "--continue", "jobs.yaml")
    assert result.status == 0, result.err
    assert launcher.states() == {"long-1": "succeeded"}
    assert launcher.log("long-1", 2) == "3\n"


def test_what_concerns_one_start_alone_is_not_kept(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: bad, run: exit 1}]")
    begun = ("--wait", "1h", "--quiet", "--no-progress", "--metrics-port", "0")
    assert launcher("run", "jobs.yaml", "--simulate", "1", *begun).status == 1
    assert choices(launcher) == {"simulate": 1}
    assert "metrics at" not in launcher("retry").err


def test_a_pattern_that_picks_nothing_any_more_is_told_as_the_runs_own(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: exit 1}, {name: b, run: 'true'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--only", "a").status == 1
    launcher.file("jobs.yaml", "jobs: [{name: b, run: 'true'}]")
    result = launcher("resume")
    assert result.status == 2
    assert "--only a" in result.err
    assert "--only '*'" in result.err


# ── What would run ──────────────────────────────────────────────────────────────────────────────


def planned(launcher: Launcher, *argv: str) -> list[str]:
    result = launcher(*argv, "--dry-run", "--json")
    assert result.status == 0, result.err
    return [job["name"] for job in json.loads(result.out)["jobs"]]


def test_a_dry_resume_lists_what_would_run_and_nothing_else(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", MANY)
    killed(launcher, "--simulate", "2", "--gpus", "1")
    assert planned(launcher, "resume") == ["long-1", "long-2", "long-3", "long-4"]
    assert planned(launcher, "resume", "--only", "long-[13]") == ["long-1", "long-3"]
    assert launcher("resume").status == 0
    assert planned(launcher, "resume") == []
    launcher.file("jobs.yaml", MANY + "      - {name: new, run: 'true'}\n")
    assert planned(launcher, "resume") == ["new"]


def test_a_dry_retry_lists_failures_and_what_was_skipped_because_of_them(
    launcher: Launcher,
) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: good, run: 'true'}
          - {name: bad, run: exit 1}
          - {name: after-bad, needs: [bad], run: 'true'}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    assert planned(launcher, "retry") == ["bad", "after-bad"]


def test_a_done_job_that_no_longer_fits_keeps_nobody_from_going_on(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml", "jobs: [{name: wide, gpus: 2, run: 'true'}, {name: bad, run: exit 1}]"
    )
    assert launcher("run", "jobs.yaml", "--simulate", "2").status == 1
    assert launcher("resume", "--gpus", "1").status == 1
