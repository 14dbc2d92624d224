"""`report.html` at the end of a run, and `gpulaunch report` at any time."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cli.launcher import Launcher
from tests.helpers import wait_until

JOBS = """
    jobs:
      - {name: "good-{{item}}", foreach: {values: [a, b]}, run: "echo made {{item}}"}
      - {name: bad, run: "echo it went wrong; exit 3"}
"""


def data(text: str) -> dict[str, Any]:
    """What the page draws."""
    _, _, rest = text.partition('id="data">')
    found: dict[str, Any] = json.loads(rest.partition("</script>")[0])
    return found


def test_every_run_leaves_its_report_and_names_it(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", JOBS)
    done = launcher("run", "jobs.yaml", "--simulate", "2")
    assert done.status == 1
    where = f"gpulaunch-runs/{launcher.run.name}/report.html"
    assert done.err.splitlines()[-1] == f"    report  {where}"
    text = (launcher.run / "report.html").read_text()
    assert "it went wrong" in text
    assert "simulated cards" in text
    drawn = data(text)
    assert drawn["names"] == ["good-a", "good-b", "bad"]
    assert [drawn["kinds"][kind] for kind in drawn["attempts"]["kind"]].count("failed") == 1


def test_quiet_and_json_runs_write_it_and_say_nothing(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    for option in ("--quiet", "--json"):
        done = launcher("run", "jobs.yaml", "--simulate", "1", "--new", option)
        assert done.status == 0
        assert "report" not in done.err + done.out
        assert (launcher.run / "report.html").exists()


def test_a_run_that_goes_on_writes_it_anew(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'test -e ready'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    (launcher.path / "ready").touch()
    assert launcher("retry").status == 0
    text = (launcher.run / "report.html").read_text()
    assert "in 2 starts" in text
    assert len(data(text)["attempts"]["job"]) == 2


def test_a_report_that_cannot_be_written_is_a_line_and_no_failure(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'mkdir -p {{run_dir}}/report.html/x'}]")
    done = launcher("run", "jobs.yaml", "--simulate", "1")
    assert done.status == 0
    last = done.err.splitlines()[-1]
    assert last.startswith("gpulaunch: the report could not be written: ")
    assert last.endswith(
        f"report.html cannot be written: Is a directory;"
        f" once more: gpulaunch report gpulaunch-runs/{launcher.run.name}"
    )


def test_a_live_and_a_killed_run_have_one_on_demand(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: first, run: 'true'}
          - {name: slow, run: 'echo begun; sleep 600'}
        """,
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        launcher.wait_for("attempt_started", 2)
        wait_until(lambda: "begun" in launcher.log("slow"), 60)
        done = launcher("report")
        assert (done.status, done.out) == (0, f"gpulaunch-runs/{launcher.run.name}/report.html\n")
        live = (launcher.run / "report.html").read_text()
        assert "the run goes on" in live
        assert data(live)["live"] is True
        os.kill(run.pid, signal.SIGKILL)
        run.wait(60)
    with (launcher.run / "events.jsonl").open("ab") as journal:
        journal.write(b'{"n":99,"t":"2026')
    done = launcher("report", launcher.run, "--output", "night.html")
    assert (done.status, done.out) == (0, "night.html\n")
    text = (launcher.path / "night.html").read_text()
    assert "The run was cut off" in text
    drawn = data(text)
    assert drawn["logs"] == f"gpulaunch-runs/{launcher.run.name}/logs/"
    assert [drawn["kinds"][kind] for kind in drawn["attempts"]["kind"]] == ["succeeded", "unknown"]
    assert drawn["tails"]["1"] == ["begun"]
    assert "the run goes on" in (launcher.run / "report.html").read_text(), "left as it was"


def test_a_stopped_run_has_one_too(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: slow, run: 'sleep 600'}, {name: b, run: 'true'}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        launcher.wait_for("attempt_started")
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait(60) == 143
    text = (launcher.run / "report.html").read_text()
    assert "Stopped: SIGTERM" in text
    assert "interrupted" in data(text)["kinds"]


def test_a_run_that_is_not_there_gets_one_line(launcher: Launcher) -> None:
    done = launcher("report", "nothing")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("gpulaunch: no run 'nothing': ")
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    launcher("run", "jobs.yaml", "--simulate", "1")
    done = launcher("report", "--output", "no/such/place.html")
    assert done.status == 2
    assert done.err.endswith("no/such/place.html cannot be written: No such file or directory\n")
    assert len(done.err.splitlines()) == 1


def test_its_process_is_ready_while_the_last_jobs_run_and_gone_with_the_run(
    launcher: Launcher,
) -> None:
    """The last job succeeds once it sees the process; the first one would have seen none."""
    launcher.file(
        "look.py",
        """
        import sys, time
        from pathlib import Path

        def there():
            for one in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if b"gpulaunch.observe.report.writing" in (told := one.read_bytes()):
                        if sys.argv[1].encode() in told:
                            return True
                except OSError:
                    pass
            return False

        if sys.argv[2] == "first":
            sys.exit(there())
        end = time.monotonic() + 60
        while not there():
            assert time.monotonic() < end
        """,
    )
    look = f"{sys.executable} look.py {{{{run_dir}}}}"
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: first, run: "{look} first"}}
          - {{name: last, run: "{look} last", needs: first}}
        """,
    )
    done = launcher("run", "jobs.yaml", "--simulate", "1")
    assert launcher.states() == {"first": "succeeded", "last": "succeeded"}, done.err
    assert data((launcher.run / "report.html").read_text())["names"] == ["first", "last"]
    left = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ends as we look
            left.append(one.read_bytes())
    ours = [told for told in left if b"gpulaunch.observe.report.writing" in told]
    assert not [told for told in ours if os.fsencode(launcher.run) in told]
