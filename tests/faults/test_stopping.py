"""Ctrl-C, SIGTERM, SIGHUP and SIGKILL: what is left, what is recorded, how it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.helpers import goes_along, wait_until

OBEDIENT = """
    jobs:
      - name: j-{{item}}
        foreach: {values: [1, 2, 3]}
        grace: 2
        run: exec sleep 1000
"""
STUBBORN = """
    jobs:
      - name: j-{{item}}
        foreach: {values: [1, 2]}
        grace: 60
        run: "trap '' TERM INT HUP; while :; do sleep 1000; done"
"""


def alive(run_id: str) -> list[int]:
    """Processes of the run, by the variable in every job's environment."""
    marker = f"GPULAUNCH_RUN_ID={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def run_id(launcher: Launcher) -> str:
    return str(launcher.wait_for("run_opened")[0]["run"])


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["ctrl-c", "term", "hup"],
)
def test_a_signal_ends_the_run_and_a_resume_goes_on(
    launcher: Launcher, number: int, status: int
) -> None:
    launcher.file("jobs.yaml", OBEDIENT)
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        launcher.wait_for("attempt_started", 2)
        process.send_signal(number)
        assert process.wait(60) == status
    assert not alive(run_id(launcher))
    assert set(launcher.states().values()) == {"waiting"}
    assert launcher.status()["run"]["state"] == "stopped"
    assert launcher("run", "jobs.yaml", "--simulate", "2").status == 5
    launcher.file("jobs.yaml", OBEDIENT.replace("sleep 1000", "true"))
    assert launcher("resume").status == 0
    attempts = {name: len(job["attempts"]) for name, job in launcher.jobs().items()}
    assert sorted(attempts.values()) == [1, 2, 2]


@pytest.fixture
def launcher(not_simulated: Launcher) -> Launcher:
    return not_simulated


def test_ctrl_c_twice_kills_at_once(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", STUBBORN)
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        launcher.wait_for("attempt_started", 2)
        process.send_signal(signal.SIGINT)
        launcher.wait_for("stop_asked")
        assert process.poll() is None, "the grace is a minute"
        process.send_signal(signal.SIGINT)
        assert process.wait(50) == 130
    assert not alive(run_id(launcher))


def test_sighup_means_nothing_under_nohup(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml", "jobs: [{name: a, run: 'until [ -e go ]; do sleep 0.02; done; echo done'}]"
    )
    with subprocess.Popen(
        [
            "sh",
            "-c",
            'trap "" HUP; exec "$@"',
            "sh",
            *_command(),
            "run",
            "jobs.yaml",
            "--simulate",
            "1",
        ],
        cwd=launcher.path,
        env=launcher.environ,
        stderr=subprocess.DEVNULL,
        preexec_fn=goes_along(),
    ) as process:
        launcher.wait_for("attempt_started")
        process.send_signal(signal.SIGHUP)
        assert launcher("ps").status == 0  # a whole command later
        launcher.file("go", "")
        assert process.wait(60) == 0
    assert launcher.log("a") == "done\n"


def test_a_sigkilled_supervisor_leaves_no_process_and_resume_goes_on(launcher: Launcher) -> None:
    quick = "{name: quick, run: echo quick >> ran}"
    long = "trap 'touch asked' TERM; setsid sleep 1000 & while :; do sleep 1000; done"
    launcher.file("jobs.yaml", f'jobs: [{quick}, {{name: long, grace: 2, run: "{long}"}}]')
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        launcher.wait_for("attempt_started", 2)
        launcher.wait_for("job_settled")
        process.kill()
        process.wait()
    run = run_id(launcher)
    wait_until(lambda: not alive(run), what="everything gone after the grace")
    assert (launcher.path / "asked").exists(), "its keepers gave the job its grace"
    assert launcher.status()["run"]["state"] == "interrupted"
    job = launcher.jobs()["long"]
    assert (job["state"], job["reason"]) == ("waiting", "was running when the run was cut off")
    assert [attempt["state"] for attempt in job["attempts"]] == ["interrupted"]
    launcher.file("jobs.yaml", f"jobs: [{quick}, {{name: long, run: 'true'}}]")
    assert launcher("resume").status == 0
    assert (launcher.path / "ran").read_text() == "quick\n", "what succeeded is not run again"
    assert [a["failure"] for a in launcher.jobs()["long"]["attempts"]] == [None, None]


def test_a_resume_during_the_grace_spares_its_own_new_jobs(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        "jobs: [{name: old, grace: 2, run: \"trap '' TERM; sleep 1000 & wait; sleep 1000\"}]",
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        launcher.wait_for("attempt_started")
        process.kill()
        process.wait()
    launcher.file("jobs.yaml", "jobs: [{name: old, run: 'true'}, {name: new, run: sleep 3}]")
    result = launcher("resume")
    assert result.status == 0, result.err
    assert len(launcher.jobs()["new"]["attempts"]) == 1


def test_a_second_supervisor_is_refused(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", OBEDIENT)
    with launcher.begun("run", "jobs.yaml", "--simulate", "2"):
        launcher.wait_for("attempt_started", 2)
        result = launcher("resume")
        assert result.status == 5
        assert "alive" in result.err


def test_a_keeper_that_is_killed_costs_its_job_no_retry(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: '[ {{attempt}} = 2 ] || sleep 1000'}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        (event,) = launcher.wait_for("attempt_started")
        monitor = int(Path(f"/proc/{event['pid']}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(monitor, signal.SIGKILL)
        assert process.wait(60) == 0
    attempts = launcher.jobs()["a"]["attempts"]
    assert [a["failure"] for a in attempts] == ["lost", None]


def _command() -> list[str]:
    from tests.cli.launcher import COMMAND

    return COMMAND
