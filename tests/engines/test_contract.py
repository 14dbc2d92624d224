"""One suite for every engine: what `engines.protocol` promises, tried with real processes.

A way to make a bench of an engine goes into `make`; the tests know the protocol alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Ended, Started, StopAttempt
from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Interrupted,
    Job,
    MissingOutput,
    NotStarted,
    Signaled,
    TimedOut,
)
from gpulaunch.process.ends import read_end
from tests.engines.bench import Bench, Make, SlurmBench, fresh_pool, run_directory, sh
from tests.slurm.cluster import Cluster


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.cluster)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Benches in one run directory's parent, which share their cards."""
    made: list[Bench] = []
    shared = fresh_pool()

    def build(name: str = "run") -> Bench:
        run, epoch = run_directory(tmp_path / name), len(made) + 1
        if request.param == "local":
            made.append(Bench(run, shared, epoch))
        else:
            cluster: Cluster = request.getfixturevalue("cluster")
            made.append(SlurmBench(cluster, run, shared, epoch))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


# ── Attempts ────────────────────────────────────────────────────────────────────────────────────


def test_a_launch_is_answered_by_started_and_one_end(bench: Bench) -> None:
    bench.hold(bench.gpus[1])
    attempt = bench.launch(sh("echo $GPULAUNCH_GPU_INDEX; exit 3"), bench.gpus[1])
    started = bench.expect(Started)
    assert started.attempt == attempt
    ended = bench.expect(Ended)
    assert (ended.attempt, ended.end.outcome, ended.end.leftovers) == (attempt, Exited(3), 0)
    assert ended.end.started is not None
    assert ended.end.ended is not None
    assert ended.end.started < ended.end.ended
    (gpu,) = started.gpus or bench.gpus[1:]
    assert bench.run.log(attempt).read_text() == f"{gpu.index}\n"
    bench.loop.turn(block=False)
    assert not bench.events


def test_the_end_is_on_disk_before_it_is_told(bench: Bench) -> None:
    attempt = bench.launch(sh("kill -9 $$"))
    ended = bench.expect(Ended)
    record = read_end(bench.run.end(attempt))
    assert record is not None
    assert record.end.outcome == ended.end.outcome == Signaled(9)


@pytest.mark.parametrize(
    ("job", "outcome"),
    [
        (Job("a", ("/no/such/program",)), NotStarted),
        (Job("a", "true", cwd="/no/such/directory"), NotStarted),
        (Job("a", "true", env_file="/no/such/file"), NotStarted),
        (Job("a", "true", outputs=("/no/such/output",)), MissingOutput),
        (Job("a", "exec sleep 100", timeout=0.2, grace=1), TimedOut),
    ],
    ids=["program", "cwd", "env_file", "outputs", "timeout"],
)
def test_every_kind_of_failure_is_an_outcome(bench: Bench, job: Job, outcome: type) -> None:
    attempt = bench.launch(job)
    ended = bench.expect(Ended)
    assert (ended.attempt, type(ended.end.outcome)) == (attempt, outcome)


@pytest.mark.parametrize(
    ("reason", "outcome"), [("cancelled", Cancelled), ("interrupted", Interrupted)]
)
def test_a_stop_decides_the_kind_of_end(bench: Bench, reason: str, outcome: type) -> None:
    attempt = bench.launch(sh("exec sleep 100", grace=5))
    bench.expect(Started)
    bench.engine.carry_out(StopAttempt(attempt, reason, Quoted("a test")))  # type: ignore[arg-type]
    assert type(bench.expect(Ended).end.outcome) is outcome
    bench.engine.carry_out(StopAttempt(attempt, reason, Quoted("again")))  # type: ignore[arg-type]


def test_what_a_job_leaves_behind_is_gone_at_its_end(bench: Bench) -> None:
    bench.launch(
        sh("setsid sleep 1000 & setsid sleep 1000 & echo $! > pid", cwd=str(bench.run.path))
    )
    ended = bench.expect(Ended)
    assert ended.end.leftovers == 2
    pid = int((bench.run.path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
