"""One suite for every engine: what `engines.protocol` promises, tried with real processes.

A way to make a bench of an engine goes into `make`; the tests know the protocol alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Ended, ImageFailed, PullImage, StopAttempt, StopReason
from gpulaunch.core.facts import AttemptStarted
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Exited,
    ImageSource,
    Interrupted,
    Job,
    Ladder,
    MissingOutput,
    NotStarted,
    Signaled,
    TimedOut,
)
from gpulaunch.core.template import Slot, text_of
from gpulaunch.journal.ends import Ends
from tests.engines.bench import Bench, Make, SlurmBench, fresh_pool, on_driver, run_directory, sh
from tests.slurm.cluster import Cluster


@pytest.fixture(params=["local", "driver", pytest.param("slurm", marks=pytest.mark.cluster)])
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Benches in one run directory's parent, which share their cards."""
    made: list[Bench] = []
    shared = fresh_pool()

    def build(name: str = "run") -> Bench:
        run, epoch = run_directory(tmp_path / name), len(made) + 1
        if request.param == "local":
            made.append(Bench(run, shared, epoch))
        elif request.param == "driver":
            on_driver(request.getfixturevalue("driver"), monkeypatch)
            made.append(Bench(run, shared, epoch, simulate=None))
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


def test_a_launch_is_answered_by_started_and_one_end(bench: Bench) -> None:
    bench.hold(bench.gpus[1])
    leaves = "setsid sleep 1000 & setsid sleep 1000 & echo $! > pid"
    script = f"echo $GPULAUNCH_GPU_INDEX; {leaves}; exit 3"
    attempt = bench.launch(sh(script, cwd=str(bench.run.path)), bench.gpus[1])
    started = bench.expect(AttemptStarted)
    assert started.attempt == attempt
    ended = bench.expect(Ended)
    assert (ended.attempt, ended.end.outcome) == (attempt, Exited(3))
    assert ended.end.started is not None
    assert ended.end.ended is not None
    assert ended.end.started < ended.end.ended
    assert ended.end.leftovers == 2, "what a job leaves behind"
    pid = int((bench.run.path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists(), "is gone at its end"
    (gpu,) = started.gpus or bench.gpus[1:]
    assert bench.run.log(attempt).read_text() == f"{gpu.index}\n"
    bench.loop.turn(block=False)
    assert not bench.events


def test_an_image_that_is_asked_for_is_answered_for_once(bench: Bench) -> None:
    source = ImageSource("/no/such/image.sif", "apptainer", "never")
    bench.engine.carry_out(PullImage(source, ""))
    assert bench.expect(ImageFailed).source == source
    assert bench.engine.pulls() == {}


def test_a_launch_at_a_step_of_its_ladder_has_its_values(bench: Bench) -> None:
    ladder = Ladder(("batch", "chunk"), (("32", "no"), ("1 6", "64")))
    run = text_of(["echo ", Slot("batch", "bare"), " $CHUNK $GPULAUNCH_STEP"])
    env = {"CHUNK": text_of(["c", Slot("chunk")])}
    job = Job("a", run, env=env, ladder=ladder)
    attempt = bench.launch(job, step=ladder.step(2))
    assert bench.expect(Ended).end.outcome == Exited(0)
    assert bench.run.log(attempt).read_text() == "1 6 c64 2\n"


KINDS: dict[str, tuple[Job, type]] = {
    "program": (Job("program", ("/no/such/program",)), NotStarted),
    "cwd": (Job("cwd", "true", cwd="/no/such/directory"), NotStarted),
    "env_file": (Job("env_file", "true", env_file="/no/such/file"), NotStarted),
    "signal": (Job("signal", "kill -9 $$"), Signaled),
    "outputs": (Job("outputs", "true", outputs=("/no/such/output",)), MissingOutput),
    "timeout": (Job("timeout", "exec sleep 100", timeout=0.2, grace=1), TimedOut),
}


def test_every_kind_of_end_is_an_outcome_and_on_disk_before_it_is_told(bench: Bench) -> None:
    for job, _ in KINDS.values():
        bench.launch(job)
    told: dict[str, type] = {}
    for _ in KINDS:
        ended = bench.expect(Ended)
        assert ended.attempt.job not in told
        told[ended.attempt.job] = type(ended.end.outcome)
        if told[ended.attempt.job] is not NotStarted:
            record = Ends(bench.run.ends).of(str(ended.attempt))
            assert record is not None, f"no end of {ended.attempt} is on disk"
            assert record.end.outcome == ended.end.outcome
    assert told == {name: kind for name, (_, kind) in KINDS.items()}


def test_a_stop_decides_the_kind_of_end(bench: Bench) -> None:
    reasons: dict[str, tuple[StopReason, type]] = {
        "a": ("cancelled", Cancelled),
        "b": ("interrupted", Interrupted),
    }
    for name in reasons:
        bench.launch(sh("exec sleep 100", name, grace=5))
        bench.expect(AttemptStarted)
    for again in ("a test", "again"):
        for name, (reason, kind) in reasons.items():
            stop = StopAttempt(AttemptId(name, 1), reason, Quoted(again))
            bench.engine.carry_out(stop)
            if again == "a test":
                ended = bench.expect(Ended)
                assert (ended.attempt.job, type(ended.end.outcome)) == (name, kind)
