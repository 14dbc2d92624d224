"""Jobs that put something else in the place of what their run keeps."""

from __future__ import annotations

import stat

from tests.cli.launcher import Launcher

REPLACE = """
jobs:
  - name: a
    run: 'cd "$GPULAUNCH_RUN_DIR"; for what in {what}; do rm -rf $what; mkfifo $what; done'
  - name: b
    after: [a]
    run: echo all is well
"""


def test_fifos_in_the_place_of_a_run_s_files_keep_nothing_waiting(launcher: Launcher) -> None:
    what = "joblog.tsv metrics.db report.html results jobs.yaml"
    launcher.file("jobs.yaml", REPLACE.format(what=what))
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--quiet").status == 0
    assert launcher.states() == {"a": "succeeded", "b": "succeeded"}
    assert "all is well" in launcher("logs", "b").out
    assert stat.S_ISREG((launcher.run / "report.html").stat().st_mode)
    assert launcher("resume", "--recorded").err.count("Traceback") == 0


def test_a_log_that_cannot_be_read_is_one_line_and_the_others_are_shown(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", REPLACE.format(what="logs/a.1.log"))
    launcher("run", "jobs.yaml", "--simulate", "1", "--quiet")
    alone = launcher("logs", "a")
    assert alone.status == 2
    assert alone.err.endswith("logs/a.1.log cannot be read: it is no regular file\n")
    both = launcher("logs")
    assert both.status == 0
    assert "all is well" in both.out
    assert "logs/a.1.log cannot be read" in both.err
    followed = launcher("logs", "a", "-f")
    assert followed.status == 0
    assert "logs/a.1.log cannot be read" in followed.err
    assert launcher("report").status == 0


def test_a_journal_that_is_replaced_ends_the_run_with_status_4(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", REPLACE.format(what="events.jsonl"))
    done = launcher("run", "jobs.yaml", "--simulate", "1", "--quiet")
    assert done.status == 4
    assert "Traceback" not in done.err
