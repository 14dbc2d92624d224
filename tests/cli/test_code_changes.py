"""`train.py changed at 14:02, after 1 of 3 jobs had started`: live, in status, report and JSON."""

from __future__ import annotations

from tests.cli.launcher import UNTIL_GO, Launcher
from tests.helpers import wait_until

JOBS = """
jobs:
  - {name: "a-{{n}}", matrix: {n: [1, 2]}, run: "python train.py"}
"""
WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"


def test_a_script_that_changes_between_two_jobs_is_told_everywhere(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", JOBS)
    launcher.file("train.py", WAITS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", "--no-progress") as process:
        launcher.wait_for("attempt_started")
        launcher.file("train.py", WAITS + "# a change\n")
        (fact,) = launcher.wait_for("code_changed")
        assert (fact["path"], fact["started"], fact["jobs"]) == ("train.py", 1, 2)
        line = "train.py changed at "
        after = "after 1 of 2 jobs had started"
        shown = launcher("status").out
        assert line in shown
        assert after in shown
        launcher.file("go", "")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    live = [text for text in err.splitlines() if "changed" in text and "train.py" in text]
    assert len(live) == 2, "once when it was noticed, once in the summary"
    assert all(after in text for text in live)
    told = launcher.status()["run"]["code_changes"]
    assert [(one["path"], one["started"], one["jobs"]) for one in told] == [("train.py", 1, 2)]
    assert after in (launcher.run / "report.html").read_text()


def test_what_was_edited_while_the_run_was_stopped_is_told_when_it_goes_on(
    launcher: Launcher,
) -> None:
    launcher.file("jobs.yaml", JOBS)
    launcher.file("train.py", "import sys; sys.exit(1)\n")
    assert launcher("run", "jobs.yaml", "--simulate", "1", "-q").status == 1
    launcher.file("train.py", WAITS)
    with launcher.begun("resume", "--simulate", "1", "--no-progress") as process:
        (fact,) = launcher.wait_for("code_changed")
        assert fact["started"] == 2
        launcher.file("go", "")
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_script_of_added_jobs_is_followed_too(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", f"jobs: [{{name: first, gpus: 0, run: '{UNTIL_GO}'}}]")
    launcher.file("more.yaml", JOBS)
    launcher.file("train.py", WAITS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", "-q") as process:
        launcher.wait_for("attempt_started")
        assert launcher("add", "more.yaml").status == 0
        wait_until(lambda: len(launcher.events("attempt_started")) == 2)
        launcher.file("train.py", WAITS + "# a change\n")
        (fact,) = launcher.wait_for("code_changed")
        assert (fact["started"], fact["jobs"]) == (1, 2)
        launcher.file("go", "")
        process.communicate(timeout=60)
    assert process.returncode == 0
