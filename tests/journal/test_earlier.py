"""How long jobs took before, from a run's journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.journal import earlier
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
    found = earlier.durations(RunDir(launcher.run))
    assert found.keys() == {"good"}
    assert 0.2 <= found["good"] < 60


def test_no_run_a_torn_one_and_a_large_one_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert earlier.durations(None) == {}
    assert earlier.durations(RunDir(tmp_path)) == {}
    (tmp_path / "events.jsonl").write_text("nonsense\n" * 3)
    assert earlier.durations(RunDir(tmp_path)) == {}
    monkeypatch.setattr(earlier, "MOST", 1)
    assert earlier.durations(RunDir(tmp_path)) == {}
