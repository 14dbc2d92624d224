"""Jobs that put something else in the place of what their run keeps."""

from __future__ import annotations

import json
import stat

import pytest

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


@pytest.mark.parametrize(
    "how", ["mkfifo {}", "cp jobs.yaml copy; ln -s $PWD/copy {}", "test ! -e {}"]
)
def test_a_journal_that_is_replaced_ends_the_run_with_status_4(
    launcher: Launcher, how: str
) -> None:
    """What to do is no matter of room, though some regular file be there."""
    events = "$GPULAUNCH_RUN_DIR/events.jsonl"
    run = f"rm {events}; {how.format(events)}"
    launcher.file(
        "jobs.yaml", f"jobs: [{{name: a, run: {run!r}}}, {{name: b, needs: [a], run: 'true'}}]"
    )
    done = launcher(
        *("run", "jobs.yaml", "--simulate", "2", "--gpus", "1,", "--run-dir", "D", "--quiet")
    )
    assert done.status == 4
    (told,) = done.err.splitlines()[-1:]
    assert "events.jsonl was deleted or replaced) and was stopped" in told
    assert "nothing of it can be resumed; start again: gpulaunch run jobs.yaml" in told
    assert " gpulaunch run jobs.yaml --gpus 1, --simulate 2" in told
    assert told.endswith(" --run-dir D") or "!" not in how
    assert "Traceback" not in done.err


FORGER = """
import binascii, os, signal, sys

line = sys.argv[1].encode()
ends = os.path.join(os.environ["GPULAUNCH_RUN_DIR"], "ends")
(slots,) = os.listdir(ends)
with open(os.path.join(ends, slots), "r+b") as file:
    file.write(b"%08x %s\\n" % (binascii.crc32(line), line))
keepers, parent = [], os.getppid()
while "keeper" in open(f"/proc/{parent}/cmdline").read():
    keepers.append(parent)
    parent = int(open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[1])
for signum in (signal.SIGSTOP, signal.SIGKILL):
    for keeper in reversed(keepers):  # this process dies with the innermost
        os.kill(keeper, signum)
"""


@pytest.mark.parametrize("line", ["[]", '{"status": "0"}', "[" * 5000])
def test_an_end_that_a_job_wrote_itself_is_its_own_matter(launcher: Launcher, line: str) -> None:
    launcher.file("forger.py", FORGER)
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: forger, run: [python3, forger.py, {json.dumps(line)}]}}
          - {{name: other, run: "true", after: [forger]}}
        """,
    )
    done = launcher("run", "jobs.yaml", "--simulate", "1")
    assert (done.status, "Traceback" in done.err) == (1, False), done.err
    assert launcher.states() == {"forger": "failed", "other": "succeeded"}
