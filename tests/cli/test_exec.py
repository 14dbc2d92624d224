"""`gpulaunch exec` stands where CUDA_VISIBLE_DEVICES=1 CMD stood."""

from __future__ import annotations

import signal
import sys

from tests.cli.launcher import Launcher


def test_exec_becomes_the_command(launcher: Launcher) -> None:
    result = launcher(
        "exec",
        "--simulate",
        "2",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; exit 7",
    )
    assert (result.status, result.out) == (7, "0 PCI_BUS_ID\n")


def test_exec_keeps_pid_and_standard_input(launcher: Launcher) -> None:
    with launcher.begun(
        "exec", "--simulate", "1", "--", "sh", "-c", "echo $$; exec sleep 60"
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    assert launcher("exec", "--simulate", "1", "--", "cat", stdin="through").out == "through"


def test_exec_of_two_cards_takes_both_or_waits(launcher: Launcher) -> None:
    result = launcher(
        "exec", "-g", "2", "--simulate", "2", "--", "sh", "-c", "echo $GPULAUNCH_GPU_UUID"
    )
    assert result.out == "SIM-0,SIM-1\n"
    result = launcher("exec", "-g", "3", "--simulate", "2", "--", "true")
    assert result.status == 125
    assert "3 cards" in result.err


def test_exec_without_a_card_hides_them(launcher: Launcher) -> None:
    result = launcher(
        "exec", "-g", "0", "--simulate", "1", "--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]"
    )
    assert result.out == "[]\n"


def test_exec_says_what_cannot_be_executed(launcher: Launcher) -> None:
    assert launcher("exec", "--simulate", "1", "--", "no-such-program").status == 127
    launcher.file("text", "no program")
    result = launcher("exec", "--simulate", "1", "--", "./text")
    assert result.status == 126
    assert "Traceback" not in result.err


def test_exec_on_a_machine_without_a_card(launcher: Launcher) -> None:
    launcher.environ["CUDA_VISIBLE_DEVICES"] = ""
    result = launcher("exec", "--", "true")
    assert result.status == 125
    assert "Traceback" not in result.err


def test_the_pool_inside_a_job_is_the_jobs_own(launcher: Launcher) -> None:
    """A launcher inside a job leases below its parent's lease, and is not held up by it."""
    launcher.environ["GPULAUNCH_SIM_POOL"] = "nested"
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: outer
            run: {sys.executable} -m gpulaunch exec --simulate 1 --no-wait -- echo inner
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert launcher.log("outer") == "inner\n"


def test_a_bare_number_of_cards_is_how_many_and_what_was_understood_is_said(
    launcher: Launcher,
) -> None:
    def on(*words: str) -> tuple[int, str, str]:
        script = "echo $GPULAUNCH_GPU_UUID"
        done = launcher("exec", "--simulate", "4", *words, "--", "sh", "-c", script)
        return done.status, done.out.strip(), done.err.strip()

    said = "gpulaunch exec: "
    assert on("--gpus", "3") == (0, "SIM-0,SIM-1,SIM-2", f"{said}3 of 4 simulated cards, any")
    assert on("--gpus", "3,") == (0, "SIM-3", f"{said}GPU 3 of 4 simulated cards")
    assert on("--gpus", "2,3") == (0, "SIM-2", f"{said}1 of GPUs 2, 3 of 4 simulated cards")
    assert on("--gpus", "3", "-g", "1") == (0, "SIM-0", f"{said}1 of 4 simulated cards, any")
    assert on("--gpus", "2", "-g", "3")[0] == 125
    assert on("--gpus", "9")[0] == 125
    assert on() == (0, "SIM-0", ""), "nothing was asked for, nothing is said"
