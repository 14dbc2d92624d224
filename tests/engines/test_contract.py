"""One suite for every engine: what `engines.protocol` promises, tried with real processes.

A fixture per engine goes into `ENGINES`; the tests know the protocol alone.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from gpulaunch.core.events import (
    Acquire,
    Drain,
    Drained,
    Elsewhere,
    Ended,
    Event,
    Freed,
    Granted,
    Launch,
    Refused,
    Release,
    Sick,
    Started,
    StopAttempt,
    Wanted,
)
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Exited,
    Gpu,
    Interrupted,
    Job,
    Lost,
    MissingOutput,
    NotStarted,
    Signaled,
    TimedOut,
)
from gpulaunch.engines import cards
from gpulaunch.engines.attempts import Context
from gpulaunch.engines.local import Local
from gpulaunch.engines.pool import open_pool
from gpulaunch.engines.protocol import Engine
from gpulaunch.gpus import lease, lockfile
from gpulaunch.journal.rundir import RunDir
from gpulaunch.loop import Loop
from gpulaunch.process.ends import read_end

E = TypeVar("E")


class Bench:
    """An engine with its loop, and the events it posted."""

    def __init__(
        self, run: RunDir, run_id: str, pool: str, build: Callable[[Bench], Engine]
    ) -> None:
        self.loop = Loop()
        self.run = run
        self.run_id = run_id
        self.events: list[Event] = []
        environ = {**os.environ, "GPULAUNCH_SIM_POOL": pool}
        environ.pop("GPULAUNCH_LEASED", None)
        self.environ = environ
        self.pool = open_pool(None, 2, environ, run_id)
        self.engine = build(self)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.pool.gpus

    def expect(self, kind: type[E] | tuple[type[E], ...], seconds: float = 60.0) -> E:
        """The next event of that kind; those before it are dropped."""
        late: list[bool] = []
        self.loop.call_after("late", seconds, lambda: late.append(True))
        while True:
            while self.events:
                event = self.events.pop(0)
                if isinstance(event, kind):
                    self.loop.forget("late")
                    return event
            assert not late, f"no {kind} within {seconds} s"
            self.loop.turn()

    def hold(self, *gpus: Gpu) -> None:
        for gpu in gpus:
            self.engine.carry_out(Acquire(gpu.uuid))
            self.expect(Granted)

    def launch(self, job: Job, *gpus: Gpu, number: int = 1) -> AttemptId:
        attempt = AttemptId(job.name, number)
        self.engine.carry_out(Launch(attempt, job, gpus))
        return attempt

    def close(self) -> None:
        self.engine.close()
        self.loop.close()


def local(bench: Bench) -> Engine:
    context = Context(
        run=bench.run,
        run_id=bench.run_id,
        epoch=1,
        machine=bench.pool.machine,
        base=bench.environ,
    )
    return Local(context, bench.pool, bench.loop, bench.events.append)


ENGINES = {"local": local}
Make = Callable[..., Bench]


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Benches in one run directory's parent; those with the same `pool` share cards."""
    made: list[Bench] = []
    shared = uuid.uuid4().hex[:12]

    def build(name: str = "run") -> Bench:
        path = tmp_path / name
        if not path.exists():
            for entry in ("logs", "out", "results", "ends"):
                (path / entry).mkdir(parents=True)
        run_id = f"{shared}-{name}"
        made.append(Bench(RunDir(path), run_id, shared, ENGINES[request.param]))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


def sh(script: str, name: str = "a", **fields: object) -> Job:
    return Job(name, script, **fields)  # type: ignore[arg-type]


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────


def test_a_free_card_is_granted_with_its_memory(bench: Bench) -> None:
    bench.engine.carry_out(Acquire(bench.gpus[0].uuid))
    granted = bench.expect(Granted)
    assert granted.gpu == bench.gpus[0].uuid
    assert granted.memory_free == bench.gpus[0].memory


def test_a_card_that_another_holds_is_refused_and_its_return_announced(make: Make) -> None:
    one, other = make("one"), make("other")
    gpu = one.gpus[0]
    one.hold(gpu)
    other.engine.carry_out(Acquire(gpu.uuid))
    refused = other.expect(Refused)
    assert isinstance(refused.why, Elsewhere)
    assert str(os.getpid()) in refused.why.holder
    assert one.expect(Wanted) == Wanted(gpu.uuid, True)
    one.engine.carry_out(Release(gpu.uuid))
    assert other.expect(Freed) == Freed(gpu.uuid)
    other.engine.carry_out(Acquire(gpu.uuid))
    assert other.expect(Granted).gpu == gpu.uuid


def test_a_card_held_in_another_container_is_no_news_until_it_is_free(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAUNCH_LEASE_DIR", str(tmp_path))
    monkeypatch.setattr(lease, "POLL", 0.01)
    tries: list[str] = []

    def counted(key: str, scope: str) -> lease.Lease:
        tries.append(key)
        return lease.take(key, scope)

    monkeypatch.setattr(cards, "take", counted)
    bench = make()
    gpu = bench.gpus[0]
    # As from there: the file is locked, and the name is free.
    held = lockfile.lock(str(tmp_path), gpu.key)
    assert held is not None
    bench.engine.carry_out(Acquire(gpu.uuid))
    assert isinstance(bench.expect(Refused).why, Elsewhere)
    while len(tries) < 10:
        bench.loop.turn()
        assert bench.events == []
    os.close(held)
    assert bench.expect(Freed) == Freed(gpu.uuid)
    bench.engine.carry_out(Acquire(gpu.uuid))
    assert bench.expect(Granted).gpu == gpu.uuid


def test_a_card_handed_over_and_not_wanted_any_more_goes_on(make: Make) -> None:
    one, other, third = make("one"), make("other"), make("third")
    gpu = one.gpus[0]
    one.hold(gpu)
    other.engine.carry_out(Acquire(gpu.uuid))
    other.expect(Refused)
    one.expect(Wanted)
    one.engine.carry_out(Release(gpu.uuid))
    other.expect(Freed)
    other.loop.turn()
    third.hold(gpu)


def test_a_drained_card_says_its_memory(bench: Bench) -> None:
    gpu = bench.gpus[0]
    bench.hold(gpu)
    bench.engine.carry_out(Drain(gpu.uuid))
    assert bench.expect(Drained) == Drained(gpu.uuid, gpu.memory)


# ── Attempts ────────────────────────────────────────────────────────────────────────────────────


def test_a_launch_is_answered_by_started_and_one_end(bench: Bench) -> None:
    bench.hold(bench.gpus[1])
    attempt = bench.launch(sh("echo $CUDA_VISIBLE_DEVICES; exit 3"), bench.gpus[1])
    assert bench.expect(Started).attempt == attempt
    ended = bench.expect(Ended)
    assert (ended.attempt, ended.outcome, ended.leftovers) == (attempt, Exited(3), 0)
    assert ended.started is not None
    assert ended.ended is not None
    assert ended.started < ended.ended
    assert bench.run.log(attempt).read_text() == "1\n"
    bench.loop.turn(block=False)
    assert not bench.events


def test_the_end_is_on_disk_before_it_is_told(bench: Bench) -> None:
    attempt = bench.launch(sh("kill -9 $$"))
    ended = bench.expect(Ended)
    end = read_end(bench.run.end(attempt))
    assert end is not None
    assert end.outcome == ended.outcome == Signaled(9)


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
    assert (ended.attempt, type(ended.outcome)) == (attempt, outcome)


@pytest.mark.parametrize(
    ("reason", "outcome"), [("cancelled", Cancelled), ("interrupted", Interrupted)]
)
def test_a_stop_decides_the_kind_of_end(bench: Bench, reason: str, outcome: type) -> None:
    attempt = bench.launch(sh("exec sleep 100", grace=5))
    bench.expect(Started)
    bench.engine.carry_out(StopAttempt(attempt, reason, "a test"))  # type: ignore[arg-type]
    assert type(bench.expect(Ended).outcome) is outcome
    bench.engine.carry_out(StopAttempt(attempt, reason, "again"))  # type: ignore[arg-type]


def test_what_a_job_leaves_behind_is_gone_at_its_end(bench: Bench) -> None:
    bench.launch(
        sh("setsid sleep 1000 & setsid sleep 1000 & echo $! > pid", cwd=str(bench.run.path))
    )
    ended = bench.expect(Ended)
    assert ended.leftovers == 2
    pid = int((bench.run.path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_attempts_on_the_same_card_follow_each_other(bench: Bench) -> None:
    bench.hold(bench.gpus[0])
    for number in range(1, 6):
        bench.launch(sh(f"exit {number}"), bench.gpus[0], number=number)
        assert bench.expect(Ended).outcome == Exited(number)


def test_two_attempts_may_share_a_card(bench: Bench) -> None:
    bench.hold(bench.gpus[0])
    for name in ("a", "b"):
        bench.launch(sh("exec sleep 0.3", name), bench.gpus[0])
    assert {bench.expect(Ended).attempt.job for _ in range(2)} == {"a", "b"}


def test_the_lease_outlives_the_engine_as_long_as_the_job_lives(make: Make) -> None:
    one, other = make("one"), make("other")
    gpu = one.gpus[0]
    one.hold(gpu)
    one.launch(sh("trap '' TERM; sleep 100", grace=2.0), gpu)
    one.expect(Started)
    other.engine.carry_out(Acquire(gpu.uuid))
    other.expect(Refused)
    one.engine.close()
    other.engine.carry_out(Acquire(gpu.uuid))
    other.expect(Refused)
    other.expect(Freed)
    other.hold(gpu)


# ── Attempts of an earlier supervisor ───────────────────────────────────────────────────────────


def test_an_attempt_that_ended_unseen_is_adopted_with_its_end(make: Make) -> None:
    first = make("run")
    attempt = first.launch(sh("exec sleep 100", grace=0.2))
    first.expect(Started)
    first.engine.close()
    second = make("run")
    second.engine.adopt([attempt])
    ended = second.expect(Ended)
    assert ended.attempt == attempt
    assert isinstance(ended.outcome, Interrupted)


def test_what_outlived_its_keepers_is_killed_before_the_attempt_is_called_lost(
    bench: Bench,
) -> None:
    environ = {**os.environ, "GPULAUNCH_RUN_ID": bench.run_id, "GPULAUNCH_ATTEMPT": "1"}
    sleep = ["sleep", "1000"]
    with (
        subprocess.Popen(sleep, env={**environ, "GPULAUNCH_JOB": "orphaned"}) as straggler,
        subprocess.Popen(sleep, env={**environ, "GPULAUNCH_JOB": "other"}) as bystander,
    ):
        bench.engine.adopt([AttemptId("orphaned", 1)])
        assert isinstance(bench.expect(Ended).outcome, Lost)
        assert straggler.wait(60) == -9
        assert bystander.poll() is None, "another attempt of the run is alive and well"
        bystander.kill()


def test_what_is_lost_is_said_while_new_attempts_run_and_rest(bench: Bench) -> None:
    bench.launch(sh("true", "new"))
    bench.expect(Ended)
    bench.engine.adopt([AttemptId("old", 1)])
    assert bench.expect(Ended).attempt == AttemptId("old", 1)


def test_a_card_that_falls_ill_after_a_job_is_given_back_whole(make: Make) -> None:
    one, other = make("one"), make("other")
    gpu = one.gpus[0]
    one.hold(gpu)
    one.launch(sh("true"), gpu)
    one.expect(Ended)
    cards = one.engine._cards  # type: ignore[attr-defined]
    cards._eyes.look = lambda gpu, then: then(Sick("lost"))
    one.engine.carry_out(Drain(gpu.uuid))
    assert one.expect(Refused).why == Sick("lost")
    other.engine.carry_out(Acquire(gpu.uuid))
    if not isinstance(other.expect((Granted, Refused)), Granted):
        other.expect(Freed)
        other.hold(gpu)


def test_a_release_that_crosses_the_cards_refusal_is_no_trouble(bench: Bench) -> None:
    gpu = bench.gpus[0]
    bench.hold(gpu)
    cards = bench.engine._cards  # type: ignore[attr-defined]
    look = cards._eyes.look
    cards._eyes.look = lambda gpu, then: then(Sick("lost"))
    bench.engine.carry_out(Drain(gpu.uuid))
    bench.engine.carry_out(Release(gpu.uuid))
    cards._eyes.look = look
    bench.hold(gpu)


def test_an_attempt_of_which_nothing_is_left_is_lost(bench: Bench) -> None:
    attempt = AttemptId("never", 1)
    bench.engine.adopt([attempt])
    ended = bench.expect(Ended)
    assert ended.attempt == attempt
    assert isinstance(ended.outcome, Lost)
