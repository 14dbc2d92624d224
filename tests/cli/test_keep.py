"""`{{keep}}`: a job's own directory, which outlives its attempts, `resume` and `retry`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.launcher import UNTIL_GO, Launcher

COUNTS = """
    jobs:
      - name: count
        retries: 1
        run: |
          [ "$GPULAUNCH_KEEP" = {{keep}} ]
          [ -z "$(ls -A {{out}})" ]; touch {{out}}/seen
          echo x >> {{keep}}/lines
          [ "$(wc -l < {{keep}}/lines)" -ge {{until}} ]
        foreach: {csv: jobs.csv}
"""


AGED = """
    jobs:
      - name: moved
        run: mv before/{{job}} {{out}}/d
        outputs: ["{{out}}/d/made", "{{out}}/*/m*"]
      - name: kept
        run: mv before/{{job}} {{keep}}/d
        outputs: ["{{keep}}/d/made"]
      - name: outside
        run: "true"
        outputs: ["before/{{job}}/made"]
"""
"""Jobs with outputs that no time tells from older ones."""


def test_what_is_in_out_or_keep_is_the_jobs_own_however_old_it_looks(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", AGED)
    for name in ("moved", "kept", "outside"):
        launcher.file(f"before/{name}/made", "x")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    assert launcher.states() == {"moved": "succeeded", "kept": "succeeded", "outside": "failed"}


def counting(launcher: Launcher, until: int) -> None:
    launcher.file("jobs.csv", f"until\n{until}\n")
    launcher.file("jobs.yaml", COUNTS.replace("name: count", 'name: count-of-"{{index}}"'))


def lines(run: Path, job: str = 'count-of-"0"') -> int:
    return len((run / "keep" / job / "lines").read_text().splitlines())


def test_every_attempt_finds_what_the_ones_before_kept(launcher: Launcher) -> None:
    counting(launcher, 5)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    assert lines(launcher.run) == 2, "an attempt and its retry"
    assert launcher("retry").status == 1
    assert lines(launcher.run) == 4
    result = launcher("resume")
    assert result.status == 0, result.err
    assert lines(launcher.run) == 5
    assert len(launcher.jobs()['count-of-"0"']["attempts"]) == 5


def test_a_killed_launcher_takes_nothing_of_it_along(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        f"jobs: [{{name: a, run: 'echo x >> {{{{keep}}}}/lines; touch began; {UNTIL_GO}'}}]",
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as first:
        launcher.wait_for("attempt_started")
        first.kill()
        first.wait()
    (launcher.path / "go").touch()
    assert launcher("resume").status == 0
    assert 1 <= lines(launcher.run, "a") <= 2


def test_no_directory_is_made_and_no_variable_set_for_a_job_that_uses_none(
    launcher: Launcher,
) -> None:
    launcher.environ["GPULAUNCH_KEEP"] = "/of/a/launcher/around/this/one"
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'env > found'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert not (launcher.run / "keep").exists()
    assert "GPULAUNCH_KEEP" not in (launcher.path / "found").read_text()
    assert launcher.jobs()["a"]["keep"] is None


def test_a_job_that_names_the_variable_alone_has_the_directory(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'cp /dev/null $GPULAUNCH_KEEP/here'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert (launcher.run / "keep/a/here").exists()


def test_outputs_that_are_kept_may_be_older_than_the_attempt(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: "a[1]"
            outputs: ["{{keep}}/final.*"]
            run: "[ -e {{keep}}/final.pt ] || { touch -d 2001-01-01 {{keep}}/final.pt; exit 1; }"
          - name: b
            outputs: ["{{keep}}/final.pt"]
            run: "true"
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    jobs = launcher.jobs()
    assert [jobs[name]["failure"] for name in ("a[1]", "b")] == ["exit", "missing_output"]
    (launcher.run / "keep/a[1]/final.pt").write_text("weights")
    assert launcher("retry").status == 1
    assert launcher.states() == {"a[1]": "succeeded", "b": "failed"}


def test_later_jobs_find_it_by_the_runs_directory(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: train, run: "echo weights > {{keep}}/final.pt"}
          - {name: use, needs: [train], run: "grep weights {{run_dir}}/keep/train/final.pt"}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "2").status == 0


def test_every_view_names_it(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'touch {{keep}}/here; exit 3'}]")
    launcher("run", "jobs.yaml", "--simulate", "1")
    kept = launcher.run / "keep" / "a"
    assert launcher.jobs()["a"]["keep"] == str(kept)
    shown = launcher("status", "a")
    assert f"keep  gpulaunch-runs/{launcher.run.name}/keep/a" in shown.out
    assert '<a href="keep/a">' in (launcher.run / "report.html").read_text()


def test_a_column_cannot_take_its_name(launcher: Launcher) -> None:
    launcher.file("jobs.csv", "keep\n1\n")
    launcher.file("jobs.yaml", "jobs: [{name: a, foreach: {csv: jobs.csv}, run: echo}]")
    result = launcher("check", "jobs.yaml", "--json")
    assert result.status == 2
    assert "the name keep is reserved for {{keep}}" in result.err, json.dumps(result.out)
