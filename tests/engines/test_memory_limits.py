"""Which attempts get a cgroup, under whose name, and what is said where none can be made."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpulaunch.base.cgroups import RunCgroups, Unlimited
from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId, Container, Demand, ImageSource, Job
from gpulaunch.diagnose.failure.evidence import OwnMemory
from gpulaunch.engines.context import ImageHere, RunContext
from gpulaunch.engines.local import memory_limits
from gpulaunch.engines.local.memory_limits import MemoryLimits

IMAGE = ImageSource("img")


class Bench:
    """Limits below a directory that stands for the kernel's."""

    def __init__(self, path: Path, opened: RunCgroups | Unlimited) -> None:
        self.warned: list[str] = []
        self.images: dict[ImageSource, ImageHere] = {}
        context = SimpleNamespace(
            run_id="run", images=self.images, warn=lambda job, text: self.warned.append(text)
        )
        self.limits = MemoryLimits(cast(RunContext, context))
        self.path = path / "gpulaunch-run"
        self.opened = opened

    def counted(self, name: str, kills: int) -> None:
        (self.path / f"job-{name}" / "memory.oom_control").write_text(f"oom_kill {kills}\n")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path, RunCgroups(tmp_path, "run", 1))
    monkeypatch.setattr(memory_limits, "opened_for", lambda name: made.opened)

    def limited(directory: Path, value: int, name: str, optional: bool = False) -> None:
        (directory / name).write_text(str(value))

    monkeypatch.setattr("gpulaunch.base.cgroups._limit", limited)
    made.path.mkdir()
    return made


def launch(name: str, memory: int = 1000, worker: str | None = None, boxed: bool = False) -> Launch:
    job = Job(name, "x", demand=Demand(gpus=0, memory=memory))
    if boxed:
        job = Job(name, "x", demand=job.demand, container=Container("img"))
    seat = AttemptId(worker, 1) if worker else None
    return Launch(AttemptId(name, 1), job, (), seat)


def test_an_attempt_enters_a_cgroup_of_its_name_with_its_limit(bench: Bench) -> None:
    one = launch("a")
    assert bench.limits.entrance(one) == f"{bench.path}/job-a.1/cgroup.procs"
    bench.limits.begin(one)
    assert (bench.path / "job-a.1" / "memory.limit_in_bytes").read_text() == "1000"
    assert (bench.path / "job-a.1" / "memory.memsw.limit_in_bytes").read_text() == "1000"


def test_without_memory_there_is_none(bench: Bench) -> None:
    assert bench.limits.entrance(launch("a", memory=0)) == ""
    assert not list(bench.path.iterdir())


def test_a_workers_next_attempt_has_the_workers_and_its_own_kills_alone(bench: Bench) -> None:
    first, second = launch("a"), launch("b", worker="a")
    bench.limits.begin(first)
    bench.counted("a.1", 1)
    assert bench.limits.used(first) == OwnMemory(1000, None, 1)
    bench.limits.begin(second)
    assert not (bench.path / "job-b.1").exists()
    assert bench.limits.used(second) == OwnMemory(1000, None, 0)
    bench.counted("a.1", 3)
    assert bench.limits.used(second) == OwnMemory(1000, None, 2)


def test_a_container_of_a_daemon_has_its_engines_and_others_have_ours(bench: Bench) -> None:
    bench.images[IMAGE] = ImageHere("docker", "id")
    assert bench.limits.entrance(launch("a", boxed=True)) == ""
    bench.images[IMAGE] = ImageHere("apptainer", "id")
    assert bench.limits.entrance(launch("a", boxed=True)).endswith("job-a.1/cgroup.procs")


def test_where_no_cgroup_may_be_made_it_is_said_once_and_jobs_run(bench: Bench) -> None:
    bench.opened = Unlimited("it is not this user's")
    for name in ("a", "b"):
        assert bench.limits.entrance(launch(name)) == ""
        bench.limits.begin(launch(name))
        assert bench.limits.used(launch(name)) is None
        bench.limits.end(AttemptId(name, 1))
    bench.limits.close()
    assert bench.warned == ["memory: is reserved, but no limit: it is not this user's"]
