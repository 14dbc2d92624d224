"""Whole runs through the pretend MPS, on the pretend driver's cards."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from gpulaunch.engines.local.mps import system
from tests.cli.launcher import Launcher
from tests.faults.test_stopping import alive
from tests.gpus.fake import FakeDriver, usual
from tests.helpers import wait_until
from tests.mps.pretend import PretendMps
from tests.process.support import parent_of

KILLS = int(os.environ.get("GPULAUNCH_TEST_KILLS", "6"))
CARDS = [str(usual(n)["uuid"]) for n in range(2)]


@pytest.fixture
def launcher(on_cards: Launcher, driver: FakeDriver, mps: PretendMps) -> Launcher:
    """A launcher whose machine has one card, and MPS's programs."""
    driver.card(0)
    on_cards.environ |= mps.environ
    return on_cards


def jobs(launcher: Launcher, run: str, count: int = 4, more: str = "") -> None:
    launcher.file(
        "jobs.yaml",
        f"""
        per_gpu: 4
        jobs:
          - name: "j{{{{n}}}}"
            matrix: {{n: [{", ".join(map(str, range(count)))}]}}
            mps: true
            run: "{run}"
            {more}
        """,
    )


def over(mps: PretendMps) -> bool:
    return not (mps.alive() or mps.left())


def test_jobs_of_a_card_are_clients_of_one_daemon_which_ends_with_them(
    launcher: Launcher, mps: PretendMps
) -> None:
    jobs(
        launcher,
        "mps-client 0.3; env | grep ^CUDA_ | sort",
        count=6,
        more="gpu_memory: 1000000001B",
    )
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert over(mps)
    seen = [launcher.log(f"j{n}").splitlines() for n in range(6)]
    assert [lines[:2] for lines in seen] == 6 * [[f"computes on {CARDS[0]}", "done"]]
    (logs,) = (launcher.run / "mps").iterdir()
    variables = dict(line.split("=", 1) for line in seen[0][2:])
    pipes = variables.pop("CUDA_MPS_PIPE_DIRECTORY")
    assert Path(pipes).parent.parent == mps.tmp
    assert (
        variables
        == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": CARDS[0],
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=954M",
        }
        or "CUDA_DEVICE_ORDER" not in variables
    )
    assert {line for lines in seen for line in lines if "PIPE_DIRECTORY" in line} == {
        f"CUDA_MPS_PIPE_DIRECTORY={pipes}"
    }
    assert logs.name == "gpu-0.1"
    assert "connected" in (logs / "server.log").read_text()


def test_a_users_own_limit_wins_and_a_users_own_daemon_does_not(
    launcher: Launcher, mps: PretendMps
) -> None:
    launcher.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=1G"
    launcher.environ["CUDA_MPS_PIPE_DIRECTORY"] = "/nowhere"
    jobs(launcher, "mps-client 0; env | grep ^CUDA_MPS_P", count=1, more="gpu_memory: 2GB")
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G\n" in launcher.log("j0")
    assert f"CUDA_MPS_PIPE_DIRECTORY={mps.tmp}" in launcher.log("j0")


def test_what_a_job_is_promised_is_its_limit(launcher: Launcher, mps: PretendMps) -> None:
    launcher.file(
        "jobs.yaml",
        """
        defaults: {share: true, mps: true}
        jobs:
          - {name: a, gpu_memory: 1GiB, run: mps-client 0.2; env}
          - {name: b, gpu_memory: 2GiB, run: mps-client 0.2; env}
          - {name: unknown, run: mps-client 0; env}
        """,
    )
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M\n" in launcher.log("a")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M\n" in launcher.log("b")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in launcher.log("unknown")


def test_jobs_with_and_without_mps_do_not_meet_on_a_card(
    launcher: Launcher, mps: PretendMps
) -> None:
    launcher.file(
        "jobs.yaml",
        f"""
        per_gpu: 4
        jobs:
          - {{name: "m{{{{n}}}}", matrix: {{n: [1, 2, 3]}}, mps: true, run: mps-client 0.2}}
          - name: "p{{{{n}}}}"
            matrix: {{n: [1, 2, 3]}}
            run: '[ -z "$CUDA_MPS_PIPE_DIRECTORY" ] && ls {mps.tmp}'
        """,
    )
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert "gpulaunch-mps-" not in "".join(launcher.log(f"p{n}") for n in (1, 2, 3))


def test_the_card_drains_once_the_daemon_is_gone(
    launcher: Launcher, driver: FakeDriver, mps: PretendMps
) -> None:
    mps.misbehave("quit=slow")
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: first, priority: 1, per_gpu: 2, mps: true, run: mps-client 0}}
          - {{name: second, run: ls {mps.tmp}}}
        """,
    )
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert "gpulaunch-mps-" not in launcher.log("second")
    assert over(mps)


def test_a_daemon_that_does_not_come_up_fails_its_jobs_with_what_it_said(
    launcher: Launcher, mps: PretendMps
) -> None:
    mps.misbehave("daemon=die")
    jobs(launcher, "mps-client 0", count=2)
    result = launcher("run", "jobs.yaml")
    assert result.status == 1
    found = launcher.jobs()
    assert {job["failure"] for job in found.values()} == {"mps"}
    assert "Failed to open the device: error 999" in result.err
    assert over(mps)
    mps.misbehave()
    assert launcher("retry").status == 0


def test_a_daemon_that_dies_fails_its_clients_and_the_next_has_another(
    launcher: Launcher, mps: PretendMps
) -> None:
    jobs(launcher, "if [ $GPULAUNCH_ATTEMPT = 1 ]; then mps-client 60; else mps-client 0; fi", 2)
    with launcher.begun("run", "jobs.yaml") as process:
        wait_until(lambda: len(mps.alive("mps-client")) == 2 and mps.daemons())
        wait_until(lambda: all("computes" in launcher.log(f"j{n}") for n in range(2)))
        os.kill(mps.daemons()[0], signal.SIGKILL)
        assert process.wait(60) == 1
        said = process.stderr.read() if process.stderr else ""
    assert "MPS on GPU 0: the control daemon ended (killed by signal 9)" in said
    ends = [e for e in launcher.events("attempt_ended") if e["attempt"] == 1]
    for end in ends:
        failure = end["end"]["failure"]
        assert failure["kind"] == "mps"
        assert "the control daemon ended (killed by signal 9)" in failure["evidence"]
    assert len(ends) == 2
    assert "j1" in json.dumps(ends[0] if ends[0]["job"] == "j0" else ends[1])
    assert launcher("retry").status == 0
    assert len(list((launcher.run / "mps").iterdir())) == 2
    assert over(mps)


def test_a_fatal_fault_says_who_was_beside(launcher: Launcher, mps: PretendMps) -> None:
    fault = "RuntimeError: CUDA error: an illegal memory access was encountered"
    launcher.file(
        "jobs.yaml",
        f"""
        per_gpu: 2
        defaults: {{mps: true}}
        jobs:
          - name: wrong
            run: 'mps-client 0.5; echo "{fault}"; exit 1'
          - {{name: beside, run: mps-client 2}}
        """,
    )
    result = launcher("run", "jobs.yaml")
    assert result.status == 1
    assert launcher.jobs()["wrong"]["failure"] == "crash"
    assert "It ran through MPS beside beside: a fatal fault" in launcher("status", "wrong").out


def test_a_stopped_run_ends_the_daemon_after_its_clients(
    launcher: Launcher, mps: PretendMps
) -> None:
    jobs(launcher, "exec mps-client 60")
    with launcher.begun("run", "jobs.yaml") as process:
        wait_until(lambda: len(mps.alive("mps-client")) == 4)
        wait_until(lambda: all("computes" in launcher.log(f"j{n}") for n in range(4)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert [launcher.log(f"j{n}").splitlines()[-1] for n in range(4)] == 4 * ["saved"]
    assert over(mps)


def test_a_killed_launcher_leaves_clients_their_grace_and_then_nothing(
    launcher: Launcher, mps: PretendMps
) -> None:
    mps.misbehave("quit=hasty")
    jobs(launcher, "exec mps-client 60")
    with launcher.begun("run", "jobs.yaml") as process:
        wait_until(lambda: len(mps.alive("mps-client")) == 4)
        wait_until(lambda: all("computes" in launcher.log(f"j{n}") for n in range(4)))
        process.kill()
    wait_until(lambda: over(mps))
    assert [launcher.log(f"j{n}").splitlines()[-1] for n in range(4)] == 4 * ["saved"]


def test_a_daemon_waits_for_its_clients_as_long_as_the_longest_of_their_graces(
    launcher: Launcher, mps: PretendMps
) -> None:
    launcher.file(
        "jobs.yaml",
        """
        per_gpu: 2
        defaults: {mps: true}
        jobs:
          - {name: first, priority: 1, grace: 1, run: exec mps-client 60}
          - {name: second, grace: 20, run: exec mps-client 60}
        """,
    )
    with launcher.begun("run", "jobs.yaml") as process:
        wait_until(lambda: len(mps.alive("mps-client")) == 2)
        (directory,) = mps.tmp.glob("gpulaunch-mps-*")
        assert float((directory / "grace").read_text()) > 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143


def test_a_guard_whose_keepers_are_killed_together_leaves_nothing(
    launcher: Launcher, mps: PretendMps
) -> None:
    jobs(launcher, "exec mps-client 60")
    with launcher.begun("run", "jobs.yaml") as process:
        wait_until(lambda: len(mps.alive("mps-client")) == 4)
        family = [pid for pid in below(process.pid) if b"gpulaunch-mps" not in _command(pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none sees another one's end
            for pid in (process.pid, *family):
                kill(pid, number)
    wait_until(lambda: over(mps))


def test_a_guard_that_its_monitor_kills_leaves_a_directory_to_the_next_launcher(
    launcher: Launcher, mps: PretendMps
) -> None:
    """As a monitor does it when the processes above it are gone."""
    jobs(launcher, "exec mps-client 60", count=1)
    with launcher.begun("run", "jobs.yaml") as process:
        wait_until(lambda: mps.alive("mps-client"))
        (daemon,) = mps.daemons()
        monitor = parent_of(parent_of(daemon))
        victims = [pid for pid in (process.pid, *below(process.pid)) if pid != monitor]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                kill(pid, number)
    wait_until(lambda: not mps.alive())
    assert len(mps.left()) == 1
    jobs(launcher, "mps-client 0", count=1)
    assert launcher("run", "jobs.yaml", "--run-dir", "next").status == 0
    assert over(mps)


def test_a_cancelled_job_whose_daemon_starts_lets_it_go(
    launcher: Launcher, mps: PretendMps
) -> None:
    mps.misbehave("server=never")
    jobs(launcher, "mps-client 0", count=1)
    with launcher.begun("run", "jobs.yaml") as process:
        wait_until(mps.daemons)
        assert launcher("cancel", "--all").status == 0
        process.wait(60)
    assert launcher.states() == {"j0": "cancelled"}
    assert over(mps)


def test_killed_at_random_moments_nothing_is_left_and_the_list_is_completed(
    launcher: Launcher, driver: FakeDriver, mps: PretendMps
) -> None:
    """The launcher alone, or with all its keepers and the guards, at once."""
    driver.card(1)
    jobs(launcher, "echo {{n}} >> done; exec mps-client 0.2", count=24, more="grace: 1")
    generator = random.Random(os.environ.get("GPULAUNCH_TEST_SEED", "11"))
    clean = True
    for _ in range(KILLS):
        before = len(launcher.events())
        command = ("resume",) if before else ("run", "jobs.yaml")
        with launcher.begun(*command, "--quiet") as process:
            wait_until(
                lambda before=before, process=process: (
                    len(launcher.events()) > before + 1 or process.poll() is not None
                )
            )
            with suppress(subprocess.TimeoutExpired):
                process.wait(generator.uniform(0, 1.5))
            family = below(process.pid) if generator.random() < 0.5 else []
            for pid in (process.pid, *family):
                kill(pid)
            process.wait()
        run = launcher.events()[0]["run"]
        wait_until(lambda: not mps.daemons())
        clean = clean and not family
        if clean:  # else servers and jobs that lost all their keepers are a later start's to end
            wait_until(lambda run=run: not mps.alive() and not alive(run))
            # A guard that had not begun yet leaves its directory, which the next start clears.
            system.clear(launcher.environ)
            assert not mps.left()
        if set(launcher.states().values()) == {"succeeded"}:
            shutil.rmtree(launcher.path / "gpulaunch-runs")
    result = launcher("resume" if launcher.events() else "run", "--quiet", *job_file(launcher))
    assert result.status == 0, result.err
    assert set(launcher.states().values()) == {"succeeded"}
    wait_until(lambda: over(mps) and not alive(launcher.events()[0]["run"]))


def job_file(launcher: Launcher) -> list[str]:
    return [] if launcher.events() else ["jobs.yaml"]


def below(pid: int) -> list[int]:
    """All descendants of a process, but for guards, MPS's own programs and the jobs."""
    found: list[int] = []
    for child in _children(pid):
        found += [child, *below(child)]
    return [one for one in found if not re.search(rb"mps-client|nvidia-cuda", _command(one))]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_two_launchers_have_a_daemon_each(
    launcher: Launcher, driver: FakeDriver, mps: PretendMps
) -> None:
    driver.card(1)
    jobs(launcher, "mps-client 0.5", count=2)
    with (
        launcher.begun("run", "jobs.yaml", "--gpus", "0,", "--run-dir", "one") as one,
        launcher.begun("run", "jobs.yaml", "--gpus", "1,", "--run-dir", "two") as two,
    ):
        wait_until(lambda: len(mps.daemons()) == 2)
        assert (one.wait(60), two.wait(60)) == (0, 0)
    assert over(mps)


def test_workers_are_clients_from_item_to_item(launcher: Launcher, mps: PretendMps) -> None:
    launcher.file(
        "made.py", "import os\ndef act(item):\n    print(os.environ['CUDA_MPS_PIPE_DIRECTORY'])\n"
    )
    launcher.file(
        "jobs.yaml",
        """
        per_gpu: 2
        jobs:
          - {name: "j{{n}}", matrix: {n: [1, 2, 3, 4, 5, 6]}, mps: true, worker: "made.py:act"}
        """,
    )
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    logs = list((launcher.run / "logs").iterdir())  # one was taken back from its worker, maybe
    assert len(logs) >= 6
    assert len({log.read_text() for log in logs}) == 1
    assert over(mps)


@pytest.mark.parametrize("command", ["check", "run"])
def test_without_the_program_or_with_mig_it_is_refused_before_anything_starts(
    launcher: Launcher, driver: FakeDriver, mps: PretendMps, command: str
) -> None:
    jobs(launcher, "mps-client 0", count=1)
    driver.mig(0, 0)
    result = launcher(command, "jobs.yaml")
    assert result.status == 2
    assert "jobs.yaml:6:10: jobs[0].mps: MIG-00000000-0000" in result.err
    assert "is a MIG instance, and gpulaunch runs MPS on whole cards alone" in result.err
    driver.card(0, mig_mode=0)
    mps.control.unlink()
    result = launcher(command, "jobs.yaml")
    assert result.status == 2
    assert "nvidia-cuda-mps-control is not on PATH" in result.err
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_on_simulated_cards_it_is_passed_over_with_a_note(
    launcher: Launcher, mps: PretendMps
) -> None:
    jobs(launcher, "echo here$CUDA_MPS_PIPE_DIRECTORY", count=1)
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 0, result.err
    assert "mps: does nothing on simulated cards" in result.err
    assert launcher.log("j0") == "here\n"


def test_doctor_says_whether_it_can_be_used(launcher: Launcher, mps: PretendMps) -> None:
    assert f"jobs may share a card through MPS: {mps.control}" in launcher("doctor").out
    (mps.tmp / "gpulaunch-mps-left" / "pipe").mkdir(mode=0o700, parents=True)
    assert "gpulaunch-mps-left" in launcher("doctor").out
    mps.control.unlink()
    assert "nvidia-cuda-mps-control is not on PATH" in launcher("doctor").out
