"""Several launchers at once, of one user and of two, on the same cards: never two jobs on one.

The cards are simulated, shared by GPULAUNCH_SIM_POOL; leases are the real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli.launcher import COMMAND, Launcher
from tests.helpers import goes_along

# Fails if another job has the card's file locked: the file is the card.
JOB = """
import fcntl, os, sys, time
card = os.environ["GPULAUNCH_GPU_INDEX"]
lock = open(f"{sys.argv[1]}/card-{card}", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(f"{sys.argv[1]}/DOUBLE-{card}-{os.getpid()}", "w")
    sys.exit(1)
time.sleep(0.02)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user may enter and write to, as pytest's own are not."""
    with TemporaryDirectory() as name:
        cards = Path(name)
        cards.chmod(0o1777)
        for card in range(4):
            file = cards / f"card-{card}"
            file.touch()
            file.chmod(0o666)
        yield cards


def job_file(launcher: Launcher, cards: Path, jobs: int) -> None:
    launcher.file("job.py", JOB)
    values = ", ".join(map(str, range(jobs)))
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: j-{{{{item}}}}
            foreach: {{values: [{values}]}}
            run: [{sys.executable}, -I, -S, {launcher.path}/job.py, {cards}]
        """,
    )


def test_six_launchers_in_the_same_instant_on_four_cards(tmp_path: Path, shared: Path) -> None:
    environ = {"GPULAUNCH_SIM_POOL": uuid.uuid4().hex[:12]}
    launchers = [Launcher(tmp_path / f"user-{n}", environ) for n in range(6)]
    for launcher in launchers:
        launcher.path.mkdir()
        job_file(launcher, shared, 8)
    processes = [
        subprocess.Popen(
            [*COMMAND, "run", "jobs.yaml", "--simulate", "4", "--quiet"],
            cwd=launcher.path,
            env=launcher.environ,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=goes_along(),
        )
        for launcher in launchers
    ]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert not list(shared.glob("DOUBLE-*"))
    for launcher in launchers:
        assert set(launcher.states().values()) == {"succeeded"}


def test_execs_wait_for_a_card_and_share_none(tmp_path: Path, shared: Path) -> None:
    launcher = Launcher(tmp_path, {"GPULAUNCH_SIM_POOL": uuid.uuid4().hex[:12]})
    launcher.file("job.py", JOB)
    processes = [
        subprocess.Popen(
            [*COMMAND, "exec", "--simulate", "2", "--", sys.executable, "job.py", str(shared)],
            cwd=tmp_path,
            env=launcher.environ,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=goes_along(),
        )
        for _ in range(6)
    ]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert not list(shared.glob("DOUBLE-*"))


@pytest.mark.skipif(os.getuid() != 0, reason="a second user is made by root only")
def test_two_users_never_share_a_card(tmp_path: Path, shared: Path) -> None:
    """Pretend cards are each user's own: the leases of real ones are taken by hand here."""
    script = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import fcntl
from gpulaunch.gpus.lease import take; from gpulaunch.gpus.socket_locks import NameHeldError
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))  # after: another user reads no module
done = 0
while done < 40:
    for card in range(4):
        try:
            lease = take(f"test-{{sys.argv[2]}}-{{card}}")
        except NameHeldError:
            continue
        with open(f"{{sys.argv[3]}}/card-{{card}}", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.001)
        lease.close()
        done += 1
"""
    pool = uuid.uuid4().hex[:8]
    users = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(uid), pool, str(shared)],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=goes_along(),
        )
        for uid in (65534, 12345, 65534, 12345, 0, 0)
    ]
    for process in users:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err


def test_a_run_gives_way_to_a_launcher_that_holds_no_card(tmp_path: Path, shared: Path) -> None:
    environ = {"GPULAUNCH_SIM_POOL": uuid.uuid4().hex[:12]}
    launcher = Launcher(tmp_path, environ)
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: 'j-{{item}}'
            foreach: {values: [1, 2, 3, 4, 5, 6, 7, 8]}
            run: if [ -e mine ]; then echo after; else sleep 1; fi >> order
        """,
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        assert launcher("exec", "--simulate", "1", "--", "touch", "mine").status == 0
        assert process.wait(60) == 0
    assert "after" in (launcher.path / "order").read_text(), "the run still had jobs"


def test_a_killed_holder_leaves_no_stale_lease(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, {"GPULAUNCH_SIM_POOL": uuid.uuid4().hex[:12]})
    launcher.file("jobs.yaml", "jobs: [{name: a, run: sleep 1000, grace: 0}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        assert launcher("exec", "--simulate", "1", "--no-wait", "--", "true").status == 124
        process.kill()
        process.wait()
    assert launcher("exec", "--simulate", "1", "--wait", "10s", "--", "true").status == 0
