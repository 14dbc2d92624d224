"""Names and states off the journal's text are those of a replay, wherever the journal ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.journal.read import replay, states_of
from gpulaunch.journal.rundir import RunDir
from tests.cli.launcher import Launcher


def test_after_every_line_the_states_are_those_of_a_replay(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Retries, a needed job that failed, a cancelled one, a name with quotes, a second start."""
    launcher.file(
        "jobs.yaml",
        r"""
        defaults: {gpus: 0}
        jobs:
          - {name: "a\"b\\ ü", run: "true"}
          - {name: again, run: "test -e ok", retries: 1}
          - {name: needs, needs: [again], run: "true"}
          - {name: later, after: [again], run: "true"}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--quiet").status == 1
    launcher.file("ok", "")
    assert launcher("retry", "--quiet").status == 0
    lines = (launcher.run / "events.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) > 20
    short = RunDir(tmp_path / "short")
    short.path.mkdir()
    seen = set()
    for count in range(1, len(lines) + 1):
        short.events.write_bytes(b"".join(lines[:count]))
        expected = {name: job.state for name, job in replay(short.events).jobs.items()}
        assert states_of(short) == expected, lines[count - 1]
        seen |= set(expected.values())
    assert seen == {"waiting", "running", "succeeded", "failed", "skipped"}


def test_a_text_of_a_job_that_looks_like_a_line_is_none(tmp_path: Path) -> None:
    text = '{"n":1,"e":"noted","text":"\\"e\\":\\"job_added\\",\\"job\\":\\"x\\""}\n'
    (tmp_path / "events.jsonl").write_text(text)
    assert states_of(RunDir(tmp_path)) == {}
    with pytest.raises(OSError):
        states_of(RunDir(tmp_path / "none"))
