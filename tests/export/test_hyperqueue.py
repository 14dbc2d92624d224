"""HyperQueue's job file: TOML, the documented keys and no other, tasks that do what a run does."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.cli.launcher import Launcher
from tests.export.helpers import as_run, hostile, results
from tests.helpers import goes_along, wait_until

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 brings it")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Request(Strict):
    resources: dict[str, int | str]


class Task(Strict):
    """What HyperQueue documents of a task in "Job Definition File", as far as it is used here."""

    id: int = Field(ge=0)
    command: list[str] = Field(min_length=1)
    env: dict[str, str]
    stdout: str
    stderr: str
    request: list[Request] = Field(min_length=1, max_length=1)
    deps: list[int] = []
    time_limit: str | None = Field(None, pattern=r"\d+s")
    priority: int = 0
    crash_limit: int = Field(5, ge=1)

    @property
    def resources(self) -> dict[str, int | str]:
        return self.request[0].resources


class JobFile(Strict):
    name: str
    task: list[Task]


def export(launcher: Launcher, jobs: str = "jobs.yaml") -> dict[str, Task]:
    done = launcher("export", jobs, "--to", "hyperqueue", "-o", "hq.toml", "--force")
    assert done.status == 0, done.err
    read: dict[str, Any] = tomllib.loads((launcher.path / "hq.toml").read_text(encoding="utf-8"))
    tasks = JobFile.model_validate(read).task
    assert [task.id for task in tasks] == list(range(len(tasks)))
    return {task.env["GPULAUNCH_JOB"]: task for task in tasks}


def work(launcher: Launcher, tasks: dict[str, Task]) -> dict[str, int]:
    """The tasks as a worker with one card would do them; the exit status of each that ran."""
    status: dict[str, int] = {}
    names = [*tasks]
    while todo := [name for name in tasks if name not in status]:
        ready = [n for n in todo if all(names[dep] in status for dep in tasks[n].deps)]
        for name in ready:
            if any(status[names[dep]] for dep in tasks[name].deps):
                status[name] = -1
                continue
            mask = {"CUDA_VISIBLE_DEVICES": "5"} if "gpus/nvidia" in tasks[name].resources else {}
            status[name] = subprocess.run(
                tasks[name].command,
                env={**launcher.environ, **mask, **tasks[name].env},
                cwd="/",
                timeout=60,
                check=False,
                preexec_fn=goes_along(),
            ).returncode
    return status


def test_hostile_names_and_values_leave_exactly_what_a_run_leaves(launcher: Launcher) -> None:
    jobs = hostile(launcher)
    expected = as_run(launcher, jobs)
    assert set(work(launcher, export(launcher)).values()) == {0}
    assert results(launcher.path / "hostile-export") == expected
    assert not list(launcher.path.glob("**/owned"))


def test_needs_cards_cpus_tokens_time_and_priority_are_hyperqueues(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        limits: {server: 2}
        jobs:
          - name: a
            gpus: 2
            cpus: 4
            memory: 2GiB
            uses: [server]
            run: "true"
            timeout: 1m
            retries: 1
          - {name: b, gpus: 0, needs: [a], priority: -3, run: "true"}
          - {name: c, per_gpu: 4, needs: [a, b], run: "true"}
        """,
    )
    tasks = export(launcher)
    assert tasks["a"].resources == {"cpus": 4, "gpus/nvidia": 2, "mem": 2048, "server": 1}
    assert tasks["b"].resources == {"cpus": 1}
    assert tasks["c"].resources == {"cpus": 1, "gpus/nvidia": "0.2500"}
    assert [tasks[name].deps for name in "abc"] == [[], [0], [0, 1]]
    assert tasks["a"].time_limit == "200s", "both attempts, their grace, and a minute"
    assert (tasks["a"].priority, tasks["b"].priority) == (0, -3)
    assert tasks["b"].env["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in tasks["a"].env, "HyperQueue sets it"
    assert "--resource server='sum(2)'" in (launcher.path / "hq.toml").read_text()


def test_retries_timeouts_outputs_and_codes_of_success_are_kept(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: third, retries: 2, run: "ls {{out}}; echo > {{out}}/x; test {{attempt}} = 3"}
          - {name: slow, timeout: 300ms, grace: 0, run: sleep 60}
          - {name: empty, outputs: ["{{out}}/x"], run: "touch {{out}}/x"}
          - {name: none, outputs: ["{{out}}/*.pdb"], run: "echo > {{out}}/x"}
          - {name: some, outputs: ["{{out}}/*.pdb", made], run: "echo | tee made > {{out}}/x.pdb"}
          - {name: three, success_codes: [3], run: exit 3}
          - {name: zero, success_codes: [3], run: "true"}
          - {name: never, needs: [zero], run: "true"}
          - {name: card, run: 'echo {{gpu_index}} {{gpu}} $CUDA_VISIBLE_DEVICES {{port}}'}
        """,
    )
    status = work(launcher, export(launcher))
    assert status == {
        "third": 0,
        "slow": 124,
        "empty": 1,
        "none": 1,
        "some": 0,
        "three": 0,
        "zero": 1,
        "never": -1,
        "card": 0,
    }
    logs = launcher.path / "jobs-export" / "logs"
    assert (logs / "third.log").read_text() == "", "{{out}} is empty at each attempt"
    assert (logs / "card.log").read_text().startswith("5 0 5 ")
    assert "no output" in (logs / "empty.log").read_text()


def test_batches_and_fasta_records_are_made_as_in_a_run(launcher: Launcher) -> None:
    for name in ("a one", "b two", "c three"):
        launcher.file(f"in/{name}", name)
    launcher.file("all.fasta", ">one\nAAA\n>two\nCC\nCC\n")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: "b{{index}}", foreach: in/*, batch: 2, run: "cat {{batch_dir}}/* > {{out}}/x"}
          - {name: "r-{{id}}", foreach: {fasta: all.fasta}, run: "cp {{path}} {{out}}/x"}
        """,
    )
    expected = as_run(launcher, Path("jobs.yaml"))
    assert set(work(launcher, export(launcher)).values()) == {0}
    assert results(launcher.path / "jobs-export") == expected


@contextmanager
def hyperqueue(launcher: Launcher) -> Iterator[None]:
    """A server and a worker of its own."""
    environ = launcher.environ | {"HQ_SERVER_DIR": str(launcher.path / "hq")}
    launcher.environ.update(environ)
    cards = "gpus/nvidia=[0,1]"
    begin = [["hq", "server", "start"], ["hq", "worker", "start", "--resource", cards]]
    begun: list[subprocess.Popen[bytes]] = []
    try:
        for argv in begin:
            begun.append(
                subprocess.Popen(
                    argv, env=environ, stdout=subprocess.DEVNULL, preexec_fn=goes_along()
                )
            )
            wait_until(lambda: subprocess.call(["hq", "server", "info"], env=environ) == 0, 60)
        yield
    finally:
        for process in begun:
            process.kill()
            process.wait()


@pytest.mark.skipif(not shutil.which("hq"), reason="no HyperQueue (hq) on PATH")
def test_hyperqueue_runs_it_for_real(launcher: Launcher) -> None:
    jobs = hostile(launcher)
    expected = as_run(launcher, jobs)
    export(launcher)
    with hyperqueue(launcher):
        subprocess.run(
            ["hq", "job", "submit-file", "hq.toml"],
            cwd=launcher.path,
            env=launcher.environ | {"PATH": os.environ["PATH"]},
            check=True,
            timeout=60,
        )
        done = ["hq", "job", "wait", "last"]
        subprocess.run(done, cwd=launcher.path, env=launcher.environ, check=True, timeout=120)
    assert results(launcher.path / "hostile-export") == expected
