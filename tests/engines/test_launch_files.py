"""From a job to a ticket to what the job finds on its node; the node is the real shim."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpulaunch import __version__
from gpulaunch.agent.launch import Ticket
from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId, Exited, Job
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import (
    CACHES,
    CHOSEN,
    RANKS,
    THREADS,
    EnvironmentMaker,
    MachineLimits,
)
from gpulaunch.engines.prepare import NotPreparedError, OutputDirs
from gpulaunch.engines.programs import archived
from gpulaunch.engines.slurm import script
from gpulaunch.engines.slurm.node_files import withdraw, write_stop
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.engines.slurm.script import text
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from tests.process.onnode import Node, driver, listing

MACHINE = MachineLimits(cpus=64, pool=2, cache="/cache")
RUN_ID = "20261120-080000-abcdef"


class Bench:
    """Jobs of a file, their tickets, and a node that runs them with what Slurm hands on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Node(folder / "run")
        self.run = self.node.run
        self.run.outs.mkdir()
        self.outs = OutputDirs()
        self.base = {"PATH": os.environ["PATH"]}
        self.cards = driver(folder / "bin", listing(["GPU-a", "GPU-b", "GPU-c"]))

    def job(self, text: str) -> Job:
        jobs = f"jobs: [{{name: job, {text}}}]"
        return load_text(jobs.encode(), Surroundings({}), name="j.yaml", base=self.folder).jobs[0]

    def write(self, job: Job, number: int = 1) -> AttemptId:
        attempt = AttemptId(job.name, number)
        context = RunContext(
            self.run, RUN_ID, 1, EnvironmentMaker(MACHINE, self.base), Loop(), print
        )
        script.write(Launch(attempt, job, ()), context, self.outs)
        return attempt

    def serve(self, job: Job, mask: str | None = None) -> str:
        """What the job said on cards `mask`."""
        attempt = self.write(job)
        self.node.attempts.append(attempt)
        self.node.list()
        environ: Mapping[str, str | None] = {**self.base, **self.cards}
        status, said = self.node.serve(mask=mask, environ=environ)
        assert (status, said) == (0, ""), self.node.log(attempt)
        assert self.node.outcome(attempt) == Exited(0)
        log = self.run.log(attempt)
        return log.read_text() if log.exists() else ""

    def environment(self, job: Job, mask: str | None = None) -> dict[str, str]:
        words = self.serve(replace(job, run=("env", "-0")), mask).rstrip("\0").split("\0")
        return dict(word.split("=", 1) for word in words)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_job_with_cards_finds_what_it_finds_on_one_machine(bench: Bench) -> None:
    bench.base |= dict.fromkeys(RANKS, "7")
    found = bench.environment(bench.job("run: x, gpus: 2"), mask="0,2")
    assert not found.keys() & set(RANKS)
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("0,2", "PCI_BUS_ID")
    own = {name: found[name] for name in found if name.startswith("GPULAUNCH_") and name != CHOSEN}
    assert own.pop("GPULAUNCH_LEASED").startswith(f"{RUN_ID}/")
    assert own == {
        "GPULAUNCH_RUN_DIR": str(bench.run.path),
        "GPULAUNCH_RUN_ID": RUN_ID,
        "GPULAUNCH_JOB": "job",
        "GPULAUNCH_ATTEMPT": "1",
        "GPULAUNCH_OUT": f"{bench.run.path}/out/job.1",
        "GPULAUNCH_GPU_INDEX": "0,2",
        "GPULAUNCH_GPU_UUID": "GPU-a,GPU-c",
    }
    assert {name: found[name] for name in CACHES} == {
        name: f"/cache/{kind}/GPU-a+GPU-c" for name, kind in CACHES.items()
    }
    assert found["MASTER_PORT"].isdigit()
    assert found["PET_MASTER_PORT"] == found["MASTER_PORT"]
    assert {found[name] for name in THREADS} == {"6"}  # as many CPUs as Slurm granted
    assert "@" not in "".join(found.values())


def test_a_job_without_cards_finds_them_hidden(bench: Bench) -> None:
    found = bench.environment(bench.job("run: x, gpus: 0"))
    assert (found["CUDA_VISIBLE_DEVICES"], found["GPULAUNCH_GPU_INDEX"]) == ("", "")
    assert "CUDA_DEVICE_ORDER" not in found
    assert "TRITON_CACHE_DIR" not in found
    assert {found[name] for name in THREADS} == {"1"}


def test_threads_are_as_many_as_the_job_says(bench: Bench) -> None:
    found = bench.environment(bench.job("run: x, cpus: 3"), mask="0")
    assert {found[name] for name in THREADS} == {"3"}


def test_what_the_user_set_wins_on_a_node_too(bench: Bench) -> None:
    bench.base["TRITON_CACHE_DIR"] = "/mine"
    job = bench.job("run: x, env: {OMP_NUM_THREADS: '2', MASTER_PORT: '1234'}")
    found = bench.environment(job, mask="0")
    assert (found["TRITON_CACHE_DIR"], found["OMP_NUM_THREADS"]) == ("/mine", "2")
    assert found["MASTER_PORT"] == found["PET_MASTER_PORT"] == "1234"


def test_placeholders_have_the_nodes_values_wherever_they_stand(bench: Bench) -> None:
    words = "{{gpu}} {{gpu_index}} '{{gpu_uuid}}' \"{{gpu_index}}\" {{port}} $PORT"
    run = f"echo {words} > o.{{{{gpu_uuid}}}}"
    job = bench.job(
        f"run: {json.dumps(run)}, env: {{PORT: '{{{{port}}}}'}}, outputs: ['o.{{{{gpu_uuid}}}}']"
    )
    bench.serve(job, mask="2")
    *cards, port, same = (bench.folder / "o.GPU-c").read_text().split()
    assert cards == ["0", "2", "GPU-c", "2"]
    assert port.isdigit()
    assert port == same


def test_in_a_list_and_without_cards_they_are_empty(bench: Bench) -> None:
    job = bench.job("run: [echo, 'a{{gpu}}b{{gpu_index}}c{{gpu_uuid}}d'], gpus: 0")
    assert bench.serve(job) == "abcd\n"


def test_the_clients_own_mask_and_environment_stay_with_the_client(bench: Bench) -> None:
    bench.base |= {"CUDA_VISIBLE_DEVICES": "57", "SECRET": "xyzzy"}
    attempt = bench.write(bench.job("run: x"))
    data = bench.run.ticket(attempt).read_bytes()
    assert b"xyzzy" not in data
    assert b"CUDA_VISIBLE_DEVICES" not in Ticket(data).order.env_set
    assert bench.run.ticket(attempt).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in bench.run.tickets.iterdir()] == ["job.1"]


def test_a_job_runs_in_its_python_there_too(bench: Bench) -> None:
    job = bench.job(
        f"run: 'python -c \"import sys; print(sys.executable)\"', python: {sys.executable}"
    )
    assert os.path.realpath(bench.serve(job, mask="0").strip()) == os.path.realpath(sys.executable)


def test_what_cannot_be_started_gets_no_ticket(bench: Bench) -> None:
    job = replace(bench.job("run: x"), cwd=str(bench.folder / "gone"))
    with pytest.raises(NotPreparedError, match="gone does not exist"):
        bench.write(job)
    assert list(bench.run.tickets.iterdir()) == []


def test_each_attempt_has_files_of_its_own(bench: Bench) -> None:
    job = bench.job("run: x")
    bench.write(job, 1)
    bench.write(job, 2)
    first, second = (
        Ticket(bench.run.ticket(AttemptId("job", number)).read_bytes()).order for number in (1, 2)
    )
    assert first.log != second.log
    assert (first.id, first.end) != (second.id, second.end)
    assert first.env_set[b"MASTER_PORT"] != second.env_set[b"MASTER_PORT"]


def test_an_attempt_that_a_node_has_begun_is_not_prepared_again(bench: Bench) -> None:
    """The journal may have lost it in a power cut; the file system has not."""
    job = bench.job("run: echo first")
    bench.serve(job, mask="0")
    with pytest.raises(NotPreparedError, match="was started before, as Slurm job 12_0 on node n1"):
        bench.write(job)
    attempt = AttemptId("job", 1)
    assert bench.node.outcome(attempt) == Exited(0)
    assert bench.node.log(attempt) == "first\n"


def test_a_forgotten_stop_is_not_for_the_attempt_that_comes_now(bench: Bench) -> None:
    """It was asked to stop, and withdrawn, and a power cut took both from the journal."""
    attempt = AttemptId("job", 1)
    write_stop(bench.run.stop(attempt), "cancelled")
    withdraw([bench.run.start(attempt)], "cancelled", "you")
    assert bench.serve(bench.job("run: echo ran"), mask="0") == "ran\n"


def test_the_program_is_laid_out_once_and_renewed_when_it_differs(tmp_path: Path) -> None:
    run = SlurmDir(tmp_path)
    script.lay_out_launch_files(run)
    inode = run.node_program.stat().st_ino
    script.lay_out_launch_files(run)
    assert run.node_program.stat().st_ino == inode
    run.node_program.write_text("of an earlier version")
    script.lay_out_launch_files(run)
    assert run.node_program.read_bytes() == archived(run.node_program.read_bytes())
    assert run.slurm.stat().st_mode & 0o777 == 0o700


def test_the_program_of_another_version_stays_for_what_it_handed_to_slurm(tmp_path: Path) -> None:
    run = SlurmDir(tmp_path)
    run.slurm.mkdir()
    other = run.node_program.with_name("agent-0.0.9.zip")
    other.write_text("of another version")
    script.lay_out_launch_files(run)
    assert other.read_text() == "of another version"
    assert run.node_program.name == f"agent-{__version__}.zip"
    assert f"/slurm/agent-{__version__}\n" in text(str(tmp_path), ["python3"])
