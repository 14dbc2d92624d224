"""The throw-away cluster itself: what the other tests in here rest on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import goes_along, wait_until
from tests.slurm import nest
from tests.slurm.cluster import PATIENCE, processes_told_of

# As a daemon leaves its parent, and so does a job under it.
DAEMON = """
trap '' TERM HUP
setsid sh -c 'setsid sleep 600 & echo $! > pid.new; mv pid.new pid; sleep 600' &
exec sleep 600
"""
OWNER = f"""
import subprocess, sys
made = subprocess.Popen(
    [sys.executable, "-I", "-S", {nest.__file__!r}, "sh", "-c", sys.argv[1]], stdin=subprocess.PIPE
)
made.wait()
"""


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "its owner is killed"])
def test_nothing_that_came_of_a_daemon_is_left_when_its_nest_goes(
    tmp_path: Path, killed: bool
) -> None:
    direct = [sys.executable, "-I", "-S", nest.__file__, "sh", "-c", DAEMON]
    argv = [sys.executable, "-c", OWNER, DAEMON] if killed else direct
    marked = os.environ | {"MARK": str(tmp_path)}
    with subprocess.Popen(
        argv, cwd=tmp_path, stdin=subprocess.PIPE, env=marked, preexec_fn=goes_along()
    ) as process:
        wait_until((tmp_path / "pid").exists, PATIENCE, "what left its parents is there")
        assert len(processes_told_of(tmp_path)) > 3
        if killed:
            process.send_signal(signal.SIGKILL)
        else:
            process.communicate()
    wait_until(lambda: not processes_told_of(tmp_path), PATIENCE, "all its processes have ended")


def test_one_to_play_with_says_how_to_speak_to_it_and_ends_when_told(slurm_here: None) -> None:
    play = subprocess.Popen(
        [sys.executable, "-m", "tests.slurm.cluster"],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )
    assert play.stdout is not None
    said = play.stdout.readline().strip()
    assert said.startswith("export SLURM_CONF=")
    directory = Path(said.partition("=")[2]).parent
    assert directory.is_dir()
    assert len(processes_told_of(directory)) > 4
    play.terminate()
    assert play.wait(PATIENCE) == 143
    play.stdout.close()
    assert not directory.exists()
    assert processes_told_of(directory) == []
