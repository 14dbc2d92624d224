"""How long jobs took before, from a run's journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.journal import find
from gpulaunch.journal.find import before
from gpulaunch.journal.rundir import RunDir
from tests.cli.launcher import Launcher


def test_each_jobs_last_success_is_what_counts(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: good, run: sleep 0.2}
          - {name: bad, run: exit 1}
        """,
    )
    launcher("run", "jobs.yaml", "--simulate", "1")
    found = find.durations(RunDir(launcher.run))
    assert found.keys() == {"good"}
    assert 0.2 <= found["good"] < 60


def test_no_run_a_torn_one_and_a_large_one_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find.durations(None) == {}
    assert find.durations(RunDir(tmp_path)) == {}
    (tmp_path / "events.jsonl").write_text("nonsense\n" * 3)
    assert find.durations(RunDir(tmp_path)) == {}
    monkeypatch.setattr(find, "MAX_JOURNAL_BYTES", 1)
    assert find.durations(RunDir(tmp_path)) == {}


def test_a_run_knows_the_one_before_it_of_the_same_file(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    launcher.file("other.yaml", "jobs: [{name: b, run: 'true'}]")
    runs = []
    for name in ("jobs.yaml", "other.yaml", "jobs.yaml"):
        launcher("run", name, "--simulate", "1", "--new")
        runs.append(RunDir(launcher.run))
    first, other, last = runs
    assert before(last) == first
    assert find.durations_before(last).keys() == {"a"}
    assert before(first) is None
    assert before(other) is None
    assert find.durations_before(first) == {}
    last.manifest.unlink()
    assert before(last) is None, "nobody knows of which file it is"


def test_what_a_job_took_under_another_definition_says_nothing(launcher: Launcher) -> None:
    for command in ("sleep 0.3", "true"):
        launcher.file("jobs.yaml", f"jobs: [{{name: a, run: {command}}}, {{name: b, run: 'true'}}]")
        launcher("run", "jobs.yaml", "--simulate", "1", "--new")
    last = RunDir(launcher.run)
    assert find.durations_before(last).keys() == {"b"}
    assert find.durations_before(last, {"a": "another", "b": "too"}) == {}
