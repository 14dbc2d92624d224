"""Failures as people meet them: recognised, advised on, tried again where it may help."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.launcher import COMMAND, Launcher
from tests.helpers import goes_along, wait_until

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total"
MIXED = (
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices,"
    " cuda:3 and cuda:1!"
)
LOST = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def program(launcher: Launcher, name: str, raised: str, before: str = "") -> Path:
    """A Python program that ends with this error as torch prints it."""
    error, _, message = raised.partition(": ")
    kind = error.rpartition(".")[2]
    return launcher.file(
        name,
        f"""\
        import os, sys
        {before or "pass"}
        print("Traceback (most recent call last):", file=sys.stderr)
        print('  File "predict.py", line 12, in <module>', file=sys.stderr)
        print("    model(batch)", file=sys.stderr)
        print({f"{error}: {message}"!r}, file=sys.stderr)  # {kind}
        sys.exit(1)
        """,
    )


def test_each_failure_has_its_class_its_evidence_and_an_advice(launcher: Launcher) -> None:
    program(launcher, "oom.py", OOM)
    program(launcher, "mixed.py", MIXED)
    launcher.file(
        "jobs.yaml",
        """
        defaults: {retries: 2}
        jobs:
          - {name: oom, run: python3 oom.py}
          - {name: mixed, run: python3 mixed.py}
          - {name: plain, run: "echo something; exit 3", retries: 0}
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "2")
    assert result.status == 1
    jobs = launcher.jobs()
    assert [jobs[name]["failure"] for name in ("oom", "mixed", "plain")] == [
        "gpu_oom",
        "device_mismatch",
        "exit",
    ]
    assert [len(job["attempts"]) for job in jobs.values()] == [1, 1, 1], "it would end the same way"
    assert "no card of the run has more memory" in jobs["oom"]["reason"]
    (attempt,) = jobs["mixed"]["attempts"]
    assert "cuda:3 and cuda:1" in attempt["evidence"]
    assert "cuda:0" in attempt["advice"]
    assert attempt["advice"].splitlines()[0] in result.err


def test_a_card_that_is_lost_costs_its_job_no_retry(launcher: Launcher) -> None:
    once = "if os.environ['GPULAUNCH_ATTEMPT'] == '2': sys.exit(0)"
    program(launcher, "lost.py", LOST, before=once)
    launcher.file("jobs.yaml", "jobs: [{name: a, run: python3 lost.py}]")
    assert launcher("run", "jobs.yaml", "--simulate", "2").status == 0
    first, second = launcher.jobs()["a"]["attempts"]
    assert first["failure"] == "gpu_lost"
    assert second["gpus"] != first["gpus"]
    (end, _) = launcher.events("attempt_ended")
    assert "charged" not in end


def test_a_success_whose_log_says_otherwise_is_pointed_at(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: boltz
            run: "echo '| WARNING: ran out of memory, skipping batch'"
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 0
    assert "ran out of memory, skipping batch" in result.err


def test_a_list_that_fails_fast_and_alike_is_not_burnt(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: fold-{{item}}
            foreach: {values: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o]}
            run: "echo $GPULAUNCH_JOB: chai-lab is not here; exit 4"
        """,
    )
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 1
    counts = launcher.status()["run"]["counts"]
    assert (counts["failed"], counts["waiting"]) == (10, 5)
    assert "10 jobs in a row failed within 60 s of their start, all in the same way" in result.err
    assert "gpulaunch resume" in result.err
    again = launcher("resume", "--breaker", "0")
    assert again.status == 1
    assert launcher.status()["run"]["counts"]["failed"] == 15


@contextmanager
def at_a_terminal(launcher: Launcher, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command with a terminal of its own, as where a person sits before it."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *argv],
        cwd=launcher.path,
        env=launcher.environ,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=goes_along(),
    ) as process:
        os.close(terminal)
        try:
            yield process
        finally:
            process.kill()
            os.close(controller)


BROKEN = """
    jobs:
      - name: fold-{{item}}
        foreach: {values: [a, b, c, d, e, f]}
        run: "[ -e installed ]"
"""


def test_a_run_at_a_terminal_waits_for_a_word_and_goes_on(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", BROKEN)
    argv = ("run", "jobs.yaml", "--simulate", "1", "--no-progress", "--breaker", "3")
    with at_a_terminal(launcher, *argv) as run:
        launcher.wait_for("admission_paused")
        assert launcher.status()["run"]["state"] == "running"
        (launcher.path / "installed").touch()
        assert launcher("retry").status == 0
        wait_until(lambda: run.poll() is not None, 60, "the end of the run")
        assert run.returncode == 0
    assert set(launcher.states().values()) == {"succeeded"}


def test_resume_lets_a_paused_run_go_on_without_what_failed(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", BROKEN)
    argv = ("run", "jobs.yaml", "--simulate", "1", "--no-progress", "--breaker", "2")
    with at_a_terminal(launcher, *argv) as run:
        launcher.wait_for("admission_paused")
        (launcher.path / "installed").touch()
        result = launcher("resume")
        assert result.status == 0, result.err
        assert "goes on" in result.err
        wait_until(lambda: run.poll() is not None, 60, "the end of the run")
        assert run.returncode == 1
    assert sorted(launcher.states().values()) == ["failed"] * 2 + ["succeeded"] * 4


def test_a_progress_bar_is_no_evidence(launcher: Launcher) -> None:
    bar = r"printf '\\r 10%%|#    | 1/10 [00:01<00:09]\\r 20%%|##   | 2/10 [00:02<00:08]'"
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: a, gpus: 0, run: "echo loading chain A; {bar}; kill -SEGV $$"}}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    job = launcher.jobs()["a"]
    assert (job["failure"], job["evidence"]) == ("signal", "loading chain A")
    assert "loading chain A" in launcher("status").out
