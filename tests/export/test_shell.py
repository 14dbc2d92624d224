"""The shell script: bash reads it, running it leaves what a run leaves, lines stand alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.export.helpers import as_run, hostile, results
from tests.helpers import goes_along, wait_until


def export(launcher: Launcher, *options: str) -> Path:
    done = launcher("export", "jobs.yaml", "--to", "shell", "-o", "jobs.sh", *options)
    assert done.status == 0, done.err
    script = launcher.path / "jobs.sh"
    subprocess.run(["bash", "-n", script], check=True)
    return script


def bash(launcher: Launcher, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *argv],
        cwd=launcher.path.parent,
        env=launcher.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=goes_along(),
    )


def kept(launcher: Launcher, name: str = "jobs") -> Path:
    return launcher.path / f"{name}-export"


def log(launcher: Launcher, job: str) -> str:
    return (kept(launcher) / "logs" / f"{job}.1.log").read_text()


def end(launcher: Launcher, job: str) -> str:
    return (kept(launcher) / "ends" / job).read_text().strip()


def test_hostile_names_and_values_leave_exactly_what_a_run_leaves(launcher: Launcher) -> None:
    jobs = hostile(launcher)
    expected = as_run(launcher, jobs)
    done = bash(launcher, export(launcher))
    assert done.returncode == 0, done.stderr
    assert results(kept(launcher, "hostile")) == expected
    assert not list(launcher.path.glob("**/owned"))


def test_each_terminal_has_its_card_and_a_job_without_one_sees_none(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - &a
            name: a{{item}}
            foreach: {values: [0, 1, 2, 3, 4, 5]}
            run: echo "=$CUDA_VISIBLE_DEVICES= {{gpu_index}} {{gpu}}"
          - {<<: *a, name: "{{item}}", foreach: {values: [wide]}, gpus: 2}
          - {<<: *a, name: "{{item}}", foreach: {values: [none]}, gpus: 0}
        """,
    )
    done = bash(launcher, export(launcher, "--gpus", "3"))
    assert done.returncode == 0, done.stderr
    assert sorted(log(launcher, f"a{i}").split()[0] for i in range(6)) == sorted(
        f"={i}=" for i in (0, 0, 1, 1, 2, 2)
    )
    assert log(launcher, "wide") == "=0,1= 0,1 0\n"
    assert log(launcher, "none") == "==  \n"


def test_a_line_can_be_copied_on_its_own(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: touch here}]")
    script = export(launcher)
    (kept(launcher) / "logs").mkdir(parents=True)
    line = next(x for x in script.read_text().splitlines() if x.startswith("CUDA_VISIBLE"))
    assert line.startswith("CUDA_VISIBLE_DEVICES=0 CUDA_DEVICE_ORDER=PCI_BUS_ID touch here >>")
    done = bash(launcher, "-c", f"cd {launcher.path} && {line}")
    assert done.returncode == 0
    assert (launcher.path / "here").exists()


def test_what_needs_a_failed_job_is_skipped_and_what_comes_after_it_runs(
    launcher: Launcher,
) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: bad, run: exit 3}
          - {name: never, needs: [bad], run: touch never}
          - {name: later, needs: [never], run: touch never}
          - {name: after, after: [bad], run: touch after}
        """,
    )
    done = bash(launcher, export(launcher))
    assert done.returncode == 1
    assert "3 of 4 did not succeed" in done.stderr
    ends = [end(launcher, job) for job in ("bad", "never", "later", "after")]
    assert ends == ["3", "skipped", "skipped", "0"]
    assert (launcher.path / "after").exists()
    assert not (launcher.path / "never").exists()


def test_retries_timeouts_outputs_and_codes_of_success_are_kept(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: third, retries: 2, run: "ls {{out}}; touch {{out}}/x; test {{attempt}} = 3"}
          - {name: slow, timeout: 300ms, grace: 0, run: sleep 60}
          - {name: empty, outputs: ["{{out}}/x"], run: "touch {{out}}/x"}
          - {name: none, outputs: ["{{out}}/*.pdb"], run: "echo > {{out}}/x"}
          - {name: some, outputs: ["{{out}}/*.pdb", made], run: "echo | tee made > {{out}}/x.pdb"}
          - {name: three, success_codes: [3], run: exit 3}
          - {name: zero, success_codes: [3], run: "true"}
        """,
    )
    done = bash(launcher, export(launcher))
    assert done.returncode == 1, done.stderr
    assert log(launcher, "third") == "", "{{out}} is empty at each attempt"
    assert {job: end(launcher, job) for job in ("third", "slow", "empty", "none")} == {
        "third": "0",
        "slow": "124",
        "empty": "1",
        "none": "1",
    }
    assert [end(launcher, job) for job in ("some", "three", "zero")] == ["0", "0", "1"]


def test_the_longest_job_goes_first_and_a_token_keeps_its_users_apart(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        limits: {server: 1}
        jobs:
          - {name: "a{{cost}}", matrix: {cost: [1, 2, 3, 6]}, cost: "{{cost}}", run: "true"}
          - {name: "t{{item}}", foreach: {values: [1, 2]}, cost: 1, uses: [server], run: "true"}
        """,
    )
    text = export(launcher).read_text()
    terminals = [re.findall(r"begin (\w+)", part) for part in text.split("( # terminal")[1:]]
    assert terminals == [["a6", "t1", "t2"], ["a3", "a2", "a1"]]


def test_environment_directory_interpreter_and_ports_are_as_in_a_run(launcher: Launcher) -> None:
    launcher.file("venv/bin/python", "#!/bin/sh\necho mine\n").chmod(0o755)
    launcher.file("else where/x", "")
    launcher.environ["GONE"] = "here"
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: env, env: {A: "a b", GONE: null, "od.d": x}, run: 'echo $A-$GONE; env'}
          - {name: cwd, cwd: else where, run: ls}
          - {name: venv, venv: venv, run: python --version}
          - {name: port, env: {P: "{{port}}"}, run: [python3, -c, "print({{port}})"]}
        """,
    )
    done = bash(launcher, export(launcher))
    assert done.returncode == 0, done.stderr
    assert log(launcher, "env").startswith("a b-\n")
    assert "od.d=x\n" in log(launcher, "env")
    assert log(launcher, "cwd") == "x\n"
    assert log(launcher, "venv") == "mine\n"
    assert 1024 < int(log(launcher, "port")) < 65536


def test_batches_and_fasta_records_are_made_as_in_a_run(launcher: Launcher) -> None:
    for directory in "ab":
        for name in ("same name", f"only-{directory}"):
            launcher.file(f"{directory}/{name}", f"{directory} {name}\n")
    launcher.file("all.fasta", ">one\nAAA\n>two words\nCC\nCC\n")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: b{{index}}
            foreach: "*/*[ny]*"
            batch: 3
            run: "cat {{batch_dir}}/* > {{out}}/x"
          - {name: "r-{{id}}", foreach: {fasta: all.fasta}, run: "cp {{path}} {{out}}/x"}
        """,
    )
    expected = as_run(launcher, Path("jobs.yaml"))
    done = bash(launcher, export(launcher))
    assert done.returncode == 0, done.stderr
    assert results(kept(launcher)) == expected
    assert len(expected) == 4


def test_a_file_whose_name_is_not_utf8_is_found_and_refused_for_toml(launcher: Launcher) -> None:
    (launcher.path / os.fsdecode(b"\xff a.txt")).write_text("inside")
    launcher.file("jobs.yaml", 'jobs: [{name: a, foreach: "*.txt", run: "cat {{path}}"}]')
    done = bash(launcher, export(launcher))
    assert done.returncode == 0, done.stderr
    (kept_log,) = (kept(launcher) / "logs").iterdir()
    assert kept_log.read_text() == "inside"
    toml = launcher("export", "jobs.yaml", "--to", "hyperqueue")
    assert (toml.status, toml.out) == (2, "")
    assert "not UTF-8" in toml.err


def test_what_is_only_half_checked_of_outputs_is_named(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true', outputs: ['{{out}}/*', old]}]")
    said = launcher("export", "jobs.yaml", "--to", "shell", "-o", "jobs.sh").err
    assert "jobs[0].outputs: patterns are only checked to match a file" in said
    assert "jobs[0].outputs: files that are older than the job count as its own" in said


def test_a_second_time_it_says_what_is_in_its_way(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: echo once >> here}]")
    script = export(launcher)
    assert bash(launcher, script).returncode == 0
    again = bash(launcher, script)
    assert again.returncode == 1
    assert "move away what is there" in again.stderr
    assert (launcher.path / "here").read_text() == "once\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_what_runs(launcher: Launcher, number: int, status: int) -> None:
    launcher.file(
        "jobs.yaml", "jobs: [{name: a, timeout: 1h, run: echo $$ > pid; sleep 600 & wait}]"
    )
    script = export(launcher)
    pid = launcher.path / "pid"
    with subprocess.Popen(
        ["bash", script], env=launcher.environ, stderr=subprocess.DEVNULL, preexec_fn=goes_along()
    ) as running:
        wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"), 60)
        running.send_signal(number)
        assert running.wait(60) == status
    job = Path(f"/proc/{pid.read_text().strip()}")
    wait_until(lambda: not job.exists(), 60, "the job is gone")


def test_init_reads_the_script_back(launcher: Launcher) -> None:
    launcher.file("in/a.fasta", "")
    launcher.file("in/b c.fasta", "")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: "fold-{{stem}}", foreach: "in/*", run: "python fold.py {{path}} --x 'y z'"}
          - {name: wide, gpus: 2, run: [python, wide.py, "a b"]}
          - {name: table, gpus: 0, after: ["fold-*"], run: python table.py --all}
        """,
    )
    script = export(launcher)
    again = launcher("init", script, "-o", "again.yaml")
    assert again.status == 0
    old, new = plan_of(launcher, "jobs.yaml"), plan_of(launcher, "again.yaml")
    assert sorted(old) == sorted(new)


def plan_of(launcher: Launcher, name: str) -> list[tuple[list[str], int, str]]:
    """Words, cards and directory of every job."""
    import shlex

    from gpulaunch.jobfile import load

    plan = load(launcher.path / name, environ={})
    found = []
    for job in plan.jobs:
        words = list(map(str, job.run)) if isinstance(job.run, tuple) else shlex.split(str(job.run))
        found.append((words, job.demand.gpus, job.cwd))
    return found
