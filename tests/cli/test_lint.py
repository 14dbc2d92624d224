"""`check` and `run` tell what is found in the scripts, and run them all the same."""

from __future__ import annotations

import json

from tests.cli.launcher import Launcher
from tests.gpus.fake import FakeDriver

JOBS = "jobs: [{name: a, run: python x.py}]\n"


def test_check_shows_the_line_of_the_script_and_succeeds(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", JOBS)
    launcher.file("x.py", 'device = "cuda:1"\n')
    result = launcher("check", "jobs.yaml", "--simulate", "2")
    assert result.status == 0
    assert "warning: x.py:1:10: cuda:1 is not there" in result.err
    assert '\n    device = "cuda:1"\n             ^\n' in result.err
    (warning,) = json.loads(launcher("check", "jobs.yaml", "--simulate", "2", "--json").out)[
        "warnings"
    ]
    assert (warning["path"], warning["line"], warning["rule"]) == ("x.py", 1, "device-index")


def test_run_warns_runs_and_is_quiet_when_asked(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", JOBS)
    launcher.file("x.py", 'device = "cuda:1"\n')
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 0
    assert "[device-index]" in result.err
    result = launcher("run", "jobs.yaml", "--new", "--simulate", "1", "--quiet")
    assert result.status == 0
    assert "[device-index]" not in result.err


def test_run_shows_the_first_twenty_and_counts_the_rest(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", JOBS)
    launcher.file("x.py", "".join(f'device{n} = dev = "cuda:1"\n' for n in range(30)))
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--dry-run")
    assert result.err.count("[device-index]") == 20
    assert "and 10 more warnings: gpulaunch check shows them all" in result.err
    assert launcher("check", "jobs.yaml", "--simulate", "1").err.count("[device-index]") == 30


def test_without_findings_nothing_is_said(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", JOBS)
    launcher.file("x.py", 'device = "cuda:0"\n')
    result = launcher("check", "jobs.yaml", "--simulate", "1")
    assert "warning" not in result.err


def test_a_mask_read_as_numbers_is_told_on_a_machine_with_mig_instances(
    on_cards: Launcher, driver: FakeDriver
) -> None:
    driver.card(0)
    on_cards.file(
        "jobs.yaml",
        "jobs: [{name: a, run: 'python x.py || true  # gpulaunch: ok hidden-status'}]\n",
    )
    on_cards.file("x.py", "import os\nint(os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0])\n")
    assert "[mask-value]" not in on_cards("check", "jobs.yaml").err
    driver.mig(0, 0)
    checked = on_cards("check", "jobs.yaml", "--json")
    assert checked.err.count("[mask-value]") == 1
    (warning,) = json.loads(checked.out)["warnings"]
    assert warning["rule"] == "mask-value"
    assert on_cards("run", "jobs.yaml").err.count("[mask-value]") == 1
