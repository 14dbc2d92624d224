"""Few descriptors are allowed (`ulimit -n`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.launcher import COMMAND, Launcher

JOBS = """
jobs:
  - name: j-{{item}}
    foreach: {values: [1, 2, 3, 4]}
    run: echo {{item}}
  - worker: {function: work.py:double}
    name: w-{{item}}
    foreach: {values: [1]}
    gpus: 0
"""


def limited(path: Path, limit: str) -> Launcher:
    return Launcher(path, command=["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *COMMAND])


@pytest.mark.parametrize("limit", ["-n 48", "-Sn 10"])
def test_a_run_needs_few_descriptors(tmp_path: Path, limit: str) -> None:
    launcher = limited(tmp_path, limit)
    launcher.file("jobs.yaml", JOBS)
    launcher.file("work.py", "def double(item):\n    return 2\n")
    done = launcher("run", "jobs.yaml", "--simulate", "4", "--quiet")
    assert done.status == 0, done.err
    assert set(launcher.states().values()) == {"succeeded"}


def test_too_few_for_the_cards_are_said_and_nothing_is_started(tmp_path: Path) -> None:
    launcher = limited(tmp_path, "-n 47")
    launcher.file("jobs.yaml", JOBS)
    launcher.file("work.py", "def double(item):\n    return 2\n")
    done = launcher("run", "jobs.yaml", "--simulate", "4")
    assert done.status == 2
    assert "may have 47 files open (ulimit -Hn), and a run on 4 cards needs 48" in done.err
    assert not (tmp_path / "gpulaunch-runs").exists()


def test_exec_keeps_its_lease_where_few_are_allowed(tmp_path: Path) -> None:
    done = limited(tmp_path, "-n 24")("exec", "--simulate", "1", "--", "sh", "-c", "echo yes")
    assert (done.status, done.out) == (0, "yes\n")
