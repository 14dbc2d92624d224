"""The engine on a throw-away cluster: what is handed over, taken up again, ended, and lost."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import (
    Asked,
    Ended,
    GoOn,
    HoldQueue,
    Launch,
    Queued,
    Started,
    Stop,
    StopAttempt,
)
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Demand,
    Exited,
    Interrupted,
    Job,
    Lost,
    NotStarted,
    Signaled,
)
from gpulaunch.engines.slurm import batches, engine, launch_files, outbox, probe
from gpulaunch.process.ends import read_end
from gpulaunch.wording import cause
from tests.engines.bench import SlurmBench, fresh_pool, run_directory, sh
from tests.helpers import wait_until
from tests.slurm.cluster import Cluster, release, unlimited
from tests.slurm.conftest import MakeCluster

Make = Callable[[Cluster], SlurmBench]
NO_ROOM = ("Resources", "InvalidAccount")
"""Why a job waits for cards; 23.11.4 without accounting says the latter of all that wait."""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Launchers of one run, one after the other: the one before is killed."""
    made: list[SlurmBench] = []
    pool = fresh_pool()

    def build(cluster: Cluster) -> SlurmBench:
        for before in made:
            before.close()
        epoch = len(made) + 1
        made[:] = [SlurmBench(cluster, run_directory(tmp_path / "run"), pool, epoch)]
        return made[0]

    yield build
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Make, cluster: Cluster) -> SlurmBench:
    return make(cluster)


def ends(bench: SlurmBench, count: int) -> dict[str, Ended]:
    found = [bench.expect(Ended) for _ in range(count)]
    return {str(ended.attempt): ended for ended in found}


def begun(bench: SlurmBench, job: Job, gpus: int = 1) -> AttemptId:
    attempt = bench.launch(job, *bench.gpus[:gpus])
    bench.expect(Started)
    return attempt


def submissions(bench: SlurmBench) -> int:
    return len(list(bench.run.batch_lists.glob("*.id")))


def has_end(bench: SlurmBench, attempt: AttemptId) -> bool:
    return bench.run.end(attempt).exists() and read_end(bench.run.end(attempt)) is not None


def words_of(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


# ── Handing over ────────────────────────────────────────────────────────────────────────────────


def test_jobs_alike_go_as_one_array_and_each_has_its_own_log(bench: SlurmBench) -> None:
    for number in range(10):
        bench.launch(sh(f"echo {number}; exit {number}", f"a{number}"))
    found = ends(bench, 10)
    assert {name: e.outcome for name, e in found.items()} == {
        f"a{number}.1": Exited(number) for number in range(10)
    }
    logs = [bench.run.log(AttemptId(f"a{number}", 1)).read_text() for number in range(10)]
    assert logs == [f"{number}\n" for number in range(10)]
    assert submissions(bench) == 1


def test_what_waits_says_for_what_and_what_runs_on_which_card(bench: SlurmBench) -> None:
    for number in range(5):
        bench.launch(sh("exec sleep 100", f"a{number}"), bench.gpus[0])
    queued = [bench.expect(Queued) for _ in range(5)]
    assert all(event.id.startswith("Slurm job ") for event in queued)
    started = [bench.expect(Started) for _ in range(4)]
    places = {(gpu.node, gpu.index) for event in started for gpu in event.gpus}
    assert places == {("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)}
    waiting = ({event.attempt for event in queued} - {event.attempt for event in started}).pop()

    def says_why() -> bool:
        bench.loop.turn()
        return bench.engine.why(waiting).endswith(tuple(f"({reason})" for reason in NO_ROOM))

    wait_until(says_why)


def test_one_with_two_cards_waits_until_both_of_a_node_are_free(bench: SlurmBench) -> None:
    for node in ("n1", "n2"):
        wait = f"until [ -e '{bench.run.path / node}' ]; do sleep 0.1; done"
        there = {"slurm": {"extra": (f"--nodelist={node}",)}}
        begun(bench, sh(wait, node, engine=there))
    wide = bench.launch(sh("true", "wide"), *bench.gpus[:2])
    bench.expect(Queued)
    why = ("squeue", "-h", "--states=PENDING", "-o", "%r")
    wait_until(lambda: bench.cluster.command(*why).strip() in NO_ROOM)
    (bench.run.path / "n2").touch()
    started = bench.expect(Started)
    assert (started.attempt, {gpu.node for gpu in started.gpus}) == (wide, {"n2"})
    assert len(started.gpus) == 2
    (bench.run.path / "n1").touch()
    assert {e.outcome for e in ends(bench, 2).values()} == {Exited(0)}


def test_what_slurm_refuses_was_not_started_and_says_why(bench: SlurmBench) -> None:
    bench.launch(sh("true"), *bench.gpus * 4)
    ended = bench.expect(Ended)
    assert isinstance(ended.outcome, NotStarted)
    assert ended.outcome.error.startswith("sbatch: ")
    assert ended.outcome.error.count("sbatch") == 1
    assert ended.failure is not None
    assert (ended.failure.kind, "--slurm" in ended.failure.advice) == ("not_started", True)


def test_a_hostile_name_is_no_trouble(bench: SlurmBench) -> None:
    name = " --wrap=x 'ü' $(touch owned) `a`|b"
    bench.launch(sh("echo $GPULAUNCH_JOB", name))
    assert bench.expect(Ended).outcome == Exited(0)
    assert bench.run.log(AttemptId(name, 1)).read_text() == f"{name.strip()}\n"


def test_more_than_an_array_may_hold_goes_as_several(make: Make, own_cluster: MakeCluster) -> None:
    bench = make(own_cluster(settings={"MaxArraySize": "4"}))
    for number in range(9):
        bench.launch(sh("true", f"a{number}"))
    assert {e.outcome for e in ends(bench, 9).values()} == {Exited(0)}
    assert submissions(bench) == 3


@pytest.mark.slow
def test_a_queue_that_is_full_is_waited_for(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(own_cluster(settings={"MaxJobCount": "4", "MinJobAge": "2"}))
    for number in range(8):
        bench.launch(sh(f"exit {number}", f"a{number}"))
    found = ends(bench, 8)
    assert {name: e.outcome for name, e in found.items()} == {
        f"a{number}.1": Exited(number) for number in range(8)
    }


# ── Ending ──────────────────────────────────────────────────────────────────────────────────────


def test_one_that_waits_is_cancelled_and_its_siblings_are_not(bench: SlurmBench) -> None:
    gate = bench.run.path / "go"
    wait = f"until [ -e '{gate}' ]; do sleep 0.1; done"
    attempts = [bench.launch(sh(wait, f"a{number}"), bench.gpus[0]) for number in range(8)]
    started = {bench.expect(Started).attempt for _ in range(4)}
    waiting = [attempt for attempt in attempts if attempt not in started]
    bench.engine.carry_out(StopAttempt(waiting[0], "cancelled", Quoted("a test")))
    ended = bench.expect(Ended)
    assert (ended.attempt, ended.outcome) == (waiting[0], Cancelled())
    gate.touch()
    assert {e.outcome for e in ends(bench, 7).values()} == {Exited(0)}
    assert not bench.run.log(waiting[0]).exists()


def test_one_of_an_array_that_a_person_cancels_in_slurm_is_cancelled(
    bench: SlurmBench, cluster: Cluster
) -> None:
    for number in range(6):
        bench.launch(sh("exec sleep 100", f"a{number}"), bench.gpus[0])
    for _ in range(4):
        bench.expect(Started)
    (batch,) = batches.read_all(bench.run)
    cluster.command("scancel", f"{batch.id}_5")
    ended = bench.expect(Ended)
    assert (ended.attempt.job, ended.outcome) == ("a5", Cancelled())


def test_a_stop_gives_the_jobs_own_grace_and_now_gives_none(bench: SlurmBench) -> None:
    slowly = "trap 'sleep 3; exit 5' TERM; echo trapped; while :; do sleep 0.1; done"
    patient = begun(bench, sh(slowly, grace=60))
    wait_until(lambda: words_of(bench.run.log(patient)))
    bench.engine.carry_out(StopAttempt(patient, "cancelled", Quoted("a test")))
    assert bench.expect(Ended).outcome == Cancelled(Exited(5))
    never = "trap '' TERM; echo trapped; while :; do sleep 0.1; done"
    stubborn = begun(bench, sh(never, "b", grace=600))
    wait_until(lambda: words_of(bench.run.log(stubborn)))
    bench.engine.carry_out(StopAttempt(stubborn, "interrupted", Quoted("a test")))
    bench.engine.carry_out(StopAttempt(stubborn, "interrupted", Quoted("a test"), now=True))
    assert bench.expect(Ended).outcome == Interrupted(Quoted("a test"), Signaled(9))


def test_one_that_is_stopped_while_it_is_handed_over_never_runs_on(bench: SlurmBench) -> None:
    for turns in range(12):
        attempt = bench.launch(sh("exec sleep 100", f"a{turns}"))
        for _ in range(turns):
            bench.loop.turn()
        bench.engine.carry_out(StopAttempt(attempt, "interrupted", Quoted("a test")))
        ended = bench.expect(Ended)
        assert ended.attempt == attempt
        assert isinstance(ended.outcome, Interrupted)


@pytest.mark.parametrize("script", ["exec sleep 100", "trap 'exit 0' TERM; sleep 100 & wait"])
def test_a_person_may_cancel_it_in_slurm(bench: SlurmBench, cluster: Cluster, script: str) -> None:
    """That is no success of a job which heeds it with 0."""
    attempt = begun(bench, sh(f"echo up; {script}"))
    log = bench.run.log(attempt)
    wait_until(lambda: log.exists() and "up" in log.read_text())
    cluster.command("scancel", f"--user={os.getuid()}")
    assert isinstance(bench.expect(Ended).outcome, Cancelled)


# ── A paused run ────────────────────────────────────────────────────────────────────────────────


def reasons(cluster: Cluster) -> list[str]:
    """Slurm's, for each job and task that waits."""
    return cluster.command("squeue", "-h", "-r", "-t", "PD", "-o", "%r").split()


def held(cluster: Cluster) -> int:
    return sum(reason.startswith("JobHeld") for reason in reasons(cluster))


def turns_until(bench: SlurmBench, condition: Callable[[], bool]) -> None:
    def met() -> bool:
        bench.loop.turn()
        return condition()

    wait_until(met)


def waiting_for(bench: SlurmBench, *names: str) -> list[AttemptId]:
    """All cards are taken by jobs that end when `go` is there; behind them these wait."""
    gate = bench.run.path / "go"
    for number in range(4):
        begun(bench, sh(f"until [ -e '{gate}' ]; do sleep 0.1; done", f"a{number}"))
    attempts = [bench.launch(sh("true", name), bench.gpus[0]) for name in names]
    assert [bench.expect(Queued).attempt for _ in names] == attempts
    return attempts


def passes_by(cluster: Cluster) -> None:
    """A job of somebody else's is done: what could have started by now has started."""
    cluster.command("sbatch", "--wait", "--output=/dev/null", "--gpus=1", "--wrap=true")


def test_while_paused_what_waits_in_slurm_does_not_start_and_what_runs_goes_on(
    bench: SlurmBench, cluster: Cluster
) -> None:
    one, _ = waiting_for(bench, "one", "two")
    lone = bench.launch(sh("true", "lone", env={"OWN": "x"}), *bench.gpus)
    bench.expect(Queued)
    bench.engine.carry_out(HoldQueue(True))
    turns_until(bench, lambda: held(cluster) == 3)
    turns_until(bench, lambda: ": held until the run goes on (JobHeld" in bench.engine.why(one))
    submitted = submissions(bench)
    late = bench.launch(sh("true", "late"))
    (bench.run.path / "go").touch()
    assert {e.outcome for e in ends(bench, 4).values()} == {Exited(0)}
    passes_by(cluster)
    assert (held(cluster), submissions(bench)) == (3, submitted)
    assert bench.engine.why(late) == "not yet handed to Slurm"
    bench.engine.carry_out(HoldQueue(False))
    assert set(ends(bench, 4)) == {"one.1", "two.1", "late.1", str(lone)}
    assert not bench.run.held.exists()


def test_what_was_held_when_its_launcher_died_is_released_by_the_next(
    make: Make, cluster: Cluster
) -> None:
    first = make(cluster)
    attempts = waiting_for(first, "one", "two")
    first.engine.carry_out(HoldQueue(True))
    turns_until(first, lambda: held(cluster) == 2)
    second = make(cluster)
    (second.run.path / "go").touch()
    passes_by(cluster)
    assert held(cluster) == 2
    second.engine.adopt(attempts)
    assert {e.outcome for e in ends(second, 2).values()} == {Exited(0)}


def test_a_pause_that_is_over_at_once_holds_nothing(bench: SlurmBench, cluster: Cluster) -> None:
    waiting_for(bench, "one", "two")
    for on in (True, False, True, False):
        bench.engine.carry_out(HoldQueue(on))
        bench.loop.turn()
    (bench.run.path / "go").touch()
    assert {e.outcome for e in ends(bench, 6).values()} == {Exited(0)}


def test_what_a_person_held_in_slurm_stays_held_when_the_run_goes_on(
    bench: SlurmBench, cluster: Cluster
) -> None:
    waiting_for(bench, "theirs")
    (number,) = cluster.command("squeue", "-h", "-t", "PD", "-o", "%i").split()
    cluster.command("scontrol", "hold", number)
    bench.launch(sh("true", "ours", timeout=600.0), bench.gpus[0])
    bench.expect(Queued)
    turns_until(bench, lambda: "JobHeld" in bench.engine.why(AttemptId("theirs", 1)))
    bench.engine.carry_out(HoldQueue(True))
    turns_until(bench, lambda: held(cluster) == 2)
    bench.engine.carry_out(HoldQueue(False))
    (bench.run.path / "go").touch()
    assert set(ends(bench, 5)) == {"ours.1", *(f"a{n}.1" for n in range(4))}
    assert held(cluster) == 1


# ── Taken up by a later launcher ────────────────────────────────────────────────────────────────


def test_what_runs_goes_on_without_its_launcher_and_is_taken_up(
    make: Make, cluster: Cluster
) -> None:
    first = make(cluster)
    gate = first.run.path / "go"
    attempt = begun(first, sh(f"until [ -e '{gate}' ]; do sleep 0.1; done; exit 3"))
    second = make(cluster)
    second.engine.adopt([attempt])
    assert second.expect(Started).attempt == attempt
    gate.touch()
    ended = second.expect(Ended)
    assert (ended.attempt, ended.outcome) == (attempt, Exited(3))


def test_what_was_taken_up_can_be_stopped(make: Make, cluster: Cluster) -> None:
    attempt = begun(make(cluster), sh("exec sleep 100"))
    second = make(cluster)
    second.engine.adopt([attempt])
    second.expect(Started)
    second.engine.carry_out(StopAttempt(attempt, "cancelled", Quoted("a test")))
    assert isinstance(second.expect(Ended).outcome, Cancelled)


def test_an_end_that_nobody_saw_is_found(make: Make, cluster: Cluster) -> None:
    first = make(cluster)
    attempt = begun(first, sh("sleep 0.5; exit 3"))
    first.engine.close()
    wait_until(lambda: has_end(first, attempt))
    second = make(cluster)
    second.engine.adopt([attempt])
    assert second.expect(Ended).outcome == Exited(3)


def test_what_was_never_handed_over_is_interrupted(bench: SlurmBench) -> None:
    bench.engine.adopt([AttemptId("never", 1)])
    assert isinstance(bench.expect(Ended).outcome, Interrupted)


def test_a_launcher_killed_before_it_knew_the_number_hands_nothing_over_twice(
    make: Make, cluster: Cluster
) -> None:
    first = make(cluster)
    ran = first.run.path / "ran"
    gate = first.run.path / "go"
    script = f"echo once >> '{ran}'; until [ -e '{gate}' ]; do sleep 0.1; done"
    attempt = begun(first, sh(script))
    (number,) = first.run.batch_lists.glob("*.id")
    number.unlink()
    second = make(cluster)
    second.engine.adopt([attempt])
    assert second.expect(Queued).attempt == attempt
    gate.touch()
    assert second.expect(Ended).outcome == Exited(0)
    assert words_of(ran) == ["once"]
    jobs = cluster.command("squeue", "-h", "-t", "all", "-o", "%j").split()
    assert sum(f"{first.run_id}:1-" in job for job in jobs) == 1


def test_a_launcher_killed_before_it_called_slurm_hands_it_over_later(
    make: Make, cluster: Cluster
) -> None:
    first = make(cluster)
    ran = first.run.path / "ran"
    attempt = first.launch(sh(f"echo once >> '{ran}'"))
    while not list(first.run.batch_lists.glob("*.json")):
        first.loop.turn()
    first.engine.close()  # sbatch with it, most likely before it has spoken
    second = make(cluster)
    second.engine.adopt([attempt])
    assert second.expect(Ended).outcome == Exited(0)
    assert words_of(ran) == ["once"]


def test_a_batch_that_slurm_got_twice_runs_once(make: Make, cluster: Cluster) -> None:
    bench = make(cluster)
    ran = bench.run.path / "ran"
    gate = bench.run.path / "go"
    script = f"echo once >> '{ran}'; until [ -e '{gate}' ]; do sleep 0.1; done; exit 3"
    attempt = begun(bench, sh(script))
    (batch,) = batches.read_all(bench.run)
    script = str(bench.run.batch_script)
    name = f"--job-name={batch.title}"
    again = cluster.command("sbatch", *batch.terms.options, name, script, batch.name).strip()
    state = ("squeue", "-h", "-t", "all", "-o", "%T", "-j", again)
    wait_until(lambda: cluster.command(*state).strip() == "FAILED")
    gate.touch()
    ended = bench.expect(Ended)
    assert (ended.attempt, ended.outcome) == (attempt, Exited(3))
    assert words_of(ran) == ["once"]


# ── Slurm in trouble ────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_while_the_controller_is_away_nothing_is_judged_and_nothing_lost(
    make: Make, own_cluster: MakeCluster
) -> None:
    cluster = own_cluster()
    bench = make(cluster)
    gate = bench.run.path / "go"
    running = begun(bench, sh(f"until [ -e '{gate}' ]; do sleep 0.1; done"))
    cluster.stop_controller()
    late = bench.launch(sh("exit 4", "late"))

    def knows() -> bool:
        bench.loop.turn()
        return "does not answer" in bench.engine.why(late)

    wait_until(knows)
    gate.touch()
    ended = bench.expect(Ended)
    assert (ended.attempt, ended.outcome) == (running, Exited(0))
    cluster.start_controller()
    ended = bench.expect(Ended)
    assert (ended.attempt, ended.outcome) == (late, Exited(4))


@pytest.mark.slow
def test_what_ran_on_a_node_that_is_gone_is_lost(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "NFS_VISIBILITY_TIMEOUT", 1.0)
    cluster = own_cluster(nodes=1)
    bench = make(cluster)
    attempt = begun(bench, sh("exec sleep 100"))
    cluster.kill_node(1)
    # Power that fails leaves its keepers no time to write.
    bench.run.end(attempt).unlink(missing_ok=True)
    outcome = bench.expect(Ended, 120).outcome
    assert isinstance(outcome, Lost)
    assert cause(outcome.why).startswith("requeued by Slurm (n1), as when a node fails")


@pytest.mark.slow
def test_what_slurm_has_forgotten_is_known_by_its_record_or_lost(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "NFS_VISIBILITY_TIMEOUT", 1.0)
    cluster = own_cluster(settings={"MinJobAge": "2"})
    first = make(cluster)
    attempts = [begun(first, sh("sleep 0.5; exit 3", name)) for name in ("kept", "erased")]
    first.engine.close()
    wait_until(lambda: all(has_end(first, attempt) for attempt in attempts))
    os.unlink(first.run.end(attempts[1]))
    for batch in batches.read_all(first.run):
        cluster.forget(batch.id)
    second = make(cluster)
    second.engine.adopt(attempts)
    found = ends(second, 2)
    assert found["kept.1"].outcome == Exited(3)
    assert isinstance(found["erased.1"].outcome, Lost)


# ── One after the other ─────────────────────────────────────────────────────────────────────────


def after(bench: SlurmBench, job: Job, *needs: AttemptId) -> AttemptId:
    attempt = AttemptId(job.name, 1)
    job = replace(job, demand=Demand(gpus=0))
    bench.engine.carry_out(Launch(attempt, job, (), after=needs))
    return attempt


def test_what_needs_another_follows_it_into_the_queue_and_starts_without_its_launcher(
    make: Make, cluster: Cluster
) -> None:
    first = make(cluster)
    gate, ran = first.run.path / "go", first.run.path / "ran"
    script = f"until [ -e '{gate}' ]; do sleep 0.1; done; echo a >> '{ran}'"
    one = first.launch(sh(script))
    two = after(first, sh(f"echo b >> '{ran}'", "b"), one)
    three = after(first, sh(f"echo c >> '{ran}'", "c"), one, two)
    assert [first.expect(Queued).attempt for _ in range(3)] == [one, two, three]
    first.engine.close()
    gate.touch()
    wait_until(lambda: words_of(ran) == ["a", "b", "c"])
    second = make(cluster)
    second.engine.adopt([one, two, three])
    assert {e.outcome for e in ends(second, 3).values()} == {Exited(0)}


@pytest.mark.slow
def test_what_needs_one_that_slurm_has_forgotten_since_it_succeeded_is_run(
    make: Make, own_cluster: MakeCluster
) -> None:
    cluster = own_cluster(settings={"MinJobAge": "2"})
    first = make(cluster)
    gate = first.run.path / "go"
    one = first.launch(sh(f"until [ -e '{gate}' ]; do sleep 0.1; done"))
    two = after(first, sh("true", "b"), one)
    for _ in range(2):
        first.expect(Queued)
    first.engine.close()
    # As if it had been killed before it handed the second over.
    done, lost = batches.read_all(first.run)
    cluster.command("scancel", lost.id)
    first.run.batch_id(lost.name).unlink()
    gate.touch()
    for batch in (done, lost):
        cluster.forget(batch.id)
    second = make(cluster)
    second.engine.adopt([one, two])
    assert {e.outcome for e in ends(second, 2).values()} == {Exited(0)}


def test_what_one_left_is_found_in_its_results_without_its_launcher(
    make: Make, cluster: Cluster
) -> None:
    first = make(cluster)
    (first.run.path / "results").mkdir(exist_ok=True)
    gate, left = first.run.path / "go", first.run.out(AttemptId("a", 1)) / "left"
    one = first.launch(sh(f"until [ -e '{gate}' ]; do sleep 0.1; done; echo x > '{left}'"))
    two = after(first, sh(f"cat '{first.run.results}/a/left'", "b"), one)
    for _ in range(2):
        first.expect(Queued)
    first.engine.close()
    gate.touch()
    wait_until(lambda: has_end(first, two))
    assert first.run.log(two).read_text() == "x\n"


def test_what_needs_one_that_fails_is_interrupted_by_slurm_itself(bench: SlurmBench) -> None:
    one = bench.launch(sh("sleep 0.5; exit 3"))
    two = after(bench, sh("true", "b"), one)
    found = ends(bench, 2)
    assert found["a.1"].outcome == Exited(3)
    assert isinstance(found["b.1"].outcome, Interrupted)
    assert not bench.run.log(two).exists()


def test_what_another_is_to_make_is_waited_for(bench: SlurmBench) -> None:
    made = bench.run.path / "made"
    one = bench.launch(sh(f"sleep 0.5; mkdir '{made}'"))
    after(bench, sh("pwd", "b", cwd=str(made)), one)
    assert {e.outcome for e in ends(bench, 2).values()} == {Exited(0)}


# ── Item by item ────────────────────────────────────────────────────────────────────────────────


def gated(bench: SlurmBench, number: int, code: int = 0) -> Job:
    """Ends with that code when `go-NUMBER` is there, or `go`."""
    go = bench.run.path / "go"
    return sh(f"until [ -e '{go}-{number}' -o -e '{go}' ]; do sleep 0.1; done; exit {code}",
              f"a{number}")  # fmt: skip


def pairs(bench: SlurmBench, *which: int, bad: int = -1) -> tuple[list[AttemptId], list[AttemptId]]:
    """Six jobs that wait for `go`; behind those which are told, another each. `bad` is to fail."""
    firsts = [bench.launch(gated(bench, n, 3 if n == bad else 0)) for n in range(6)]
    return firsts, [after(bench, sh(f"echo {n}", f"b{n}"), firsts[n]) for n in which]


def all_queued(bench: SlurmBench, *attempts: AttemptId) -> None:
    assert {bench.expect(Queued).attempt for _ in attempts} == set(attempts)


def outcomes(bench: SlurmBench, count: int) -> dict[str, object]:
    return {name: ended.outcome for name, ended in ends(bench, count).items()}


def good(*names: str) -> dict[str, object]:
    return dict.fromkeys(names, Exited(0))


def test_what_follows_item_by_item_goes_as_an_array_and_each_waits_for_its_own_alone(
    bench: SlurmBench,
) -> None:
    firsts, seconds = pairs(bench, *range(6))
    all_queued(bench, *firsts, *seconds)
    assert submissions(bench) == 2
    (bench.run.path / "go-4").touch()
    assert outcomes(bench, 2) == good("a4.1", "b4.1")
    (bench.run.path / "go").touch()
    left = [f"{kind}{n}.1" for kind in "ab" for n in range(6) if n != 4]
    assert outcomes(bench, 10) == good(*left)
    assert [bench.run.log(a).read_text() for a in seconds] == [f"{n}\n" for n in range(6)]


def test_of_items_one_that_fails_keeps_its_own_successor_alone_from_running(
    bench: SlurmBench, cluster: Cluster
) -> None:
    firsts, seconds = pairs(bench, *range(6), bad=2)
    all_queued(bench, *firsts, *seconds)
    (bench.run.path / "go").touch()
    found = outcomes(bench, 12)
    assert (found.pop("a2.1"), found.pop("b2.1")) == (
        Exited(3),
        Interrupted(Quoted("what it needs did not succeed")),
    )
    assert found == good(*(f"{kind}{n}.1" for kind in "ab" for n in range(6) if n != 2))
    assert not bench.run.log(seconds[2]).exists()
    wait_until(lambda: not cluster.command("squeue", "-h"))


def test_items_may_be_missing_and_their_launcher_may_die(make: Make, cluster: Cluster) -> None:
    first = make(cluster)
    firsts, seconds = pairs(first, 1, 3, 4)
    all_queued(first, *firsts, *seconds)
    (last,) = (b for b in batches.read_all(first.run) if b.terms.each)
    shown = cluster.command("squeue", "-h", "-r", "-j", last.id, "-o", "%K").split()
    assert (sorted(shown), submissions(first)) == (["1", "3", "4"], 2)
    second = make(cluster)
    second.engine.adopt([*firsts, *seconds])
    (second.run.path / "go").touch()
    assert outcomes(second, 9) == good(*map(str, (*firsts, *seconds)))
    assert [second.run.log(a).read_text() for a in seconds] == ["1\n", "3\n", "4\n"]


def test_an_array_behind_an_array_that_is_not_known_to_be_handed_over_is_looked_up(
    make: Make, cluster: Cluster
) -> None:
    first = make(cluster)
    firsts, seconds = pairs(first, 2, 5)
    all_queued(first, *firsts, *seconds)
    (last,) = (b for b in batches.read_all(first.run) if b.terms.each)
    first.run.batch_id(last.name).unlink()
    second = make(cluster)
    second.engine.adopt([*firsts, *seconds])
    all_queued(second, *firsts, *seconds)
    (second.run.path / "go").touch()
    assert outcomes(second, 8) == good(*map(str, (*firsts, *seconds)))
    assert [second.run.log(a).read_text() for a in seconds] == ["2\n", "5\n"]


def test_several_may_follow_each_item(bench: SlurmBench) -> None:
    firsts, seconds = pairs(bench, *range(6))
    thirds = [after(bench, sh(f"echo {n}", f"c{n}"), firsts[n]) for n in range(6)]
    all_queued(bench, *firsts, *seconds, *thirds)
    assert submissions(bench) == 3
    (bench.run.path / "go").touch()
    assert outcomes(bench, 18) == good(*map(str, (*firsts, *seconds, *thirds)))


@pytest.mark.parametrize("by", ["us", "a person in Slurm"])
def test_of_what_follows_item_by_item_one_can_be_cancelled_while_it_waits(
    bench: SlurmBench, cluster: Cluster, by: str
) -> None:
    firsts, seconds = pairs(bench, *range(6))
    all_queued(bench, *firsts, *seconds)
    if by == "us":
        bench.engine.carry_out(StopAttempt(seconds[3], "cancelled", Quoted("a test")))
    else:
        (last,) = (b for b in batches.read_all(bench.run) if b.terms.each)
        cluster.command("scancel", f"{last.id}_3")
    ended = bench.expect(Ended)
    assert (ended.attempt, ended.outcome) == (seconds[3], Cancelled())
    (bench.run.path / "go").touch()
    assert outcomes(bench, 11) == good(*map(str, (*firsts, *seconds[:3], *seconds[4:])))


def test_what_an_item_needs_may_be_over_when_the_others_are_handed_over(bench: SlurmBench) -> None:
    firsts, _ = pairs(bench)
    for _ in firsts:
        bench.expect(Started)
    bench.engine.carry_out(HoldQueue(True))
    seconds = [after(bench, sh(f"echo {n}", f"b{n}"), firsts[n]) for n in (0, 1, 2)]
    bench.loop.call_after(
        "gathered", 2 * outbox.GATHERED, lambda: bench.events.append(Asked(GoOn()))
    )
    bench.expect(Asked)
    (bench.run.path / "go-0").touch()
    assert outcomes(bench, 1) == good("a0.1")
    bench.engine.carry_out(HoldQueue(False))
    assert outcomes(bench, 1) == good("b0.1")
    assert submissions(bench) == 3
    (bench.run.path / "go").touch()
    assert outcomes(bench, 7) == good(*map(str, (*firsts[1:], *seconds[1:])))


@pytest.mark.slow
def test_of_items_that_are_too_many_at_once_some_follow_later(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(own_cluster(settings={"MaxJobCount": "10", "MinJobAge": "2"}))
    firsts, seconds = pairs(bench, *range(6))
    all_queued(bench, *firsts, *seconds[:3])
    (bench.run.path / "go").touch()
    assert outcomes(bench, 12) == good(*map(str, (*firsts, *seconds)))


# ── What the nodes see ──────────────────────────────────────────────────────────────────────────


def test_a_run_directory_that_the_nodes_do_not_see_stops_the_run_with_a_line(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PROBE_FILE_TIMEOUT", 1.0)
    bench = make(own_cluster(nodes=1))
    # As on a node without that file system: Slurm cannot even open its own output there.
    hidden = bench.run.slurm / "said"
    hidden.rmdir()
    hidden.write_text("no directory")
    attempt = bench.launch(sh("true"))
    asked = bench.expect(Asked).request
    assert isinstance(asked, Stop)
    assert f"{bench.run.path} is not to be seen on " in cause(asked.why)
    bench.engine.carry_out(StopAttempt(attempt, "interrupted", asked.why))
    assert isinstance(bench.expect(Ended).outcome, Interrupted)
    assert not bench.run.log(attempt).exists()


def test_a_node_that_cannot_run_jobs_stops_the_run_with_its_own_words(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PROBE_FILE_TIMEOUT", 1e9)
    bench = make(own_cluster(nodes=1))
    bench.run.batch_script.write_text("#!/bin/sh\necho no such thing >&2\nexit 78\n")
    bench.launch(sh("true"))
    asked = bench.expect(Asked).request
    assert isinstance(asked, Stop)
    assert cause(asked.why) == "node n1 cannot run jobs of this run: no such thing"


def test_where_the_nodes_seem_to_see_nothing_no_more_is_handed_over(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer versions make a missing directory on the node, and what is said there is not seen."""
    monkeypatch.setattr(probe, "PROBE_FILE_TIMEOUT", 1e9)
    bench = make(own_cluster(nodes=1))
    script = bench.run.batch_script.read_text()
    bench.run.batch_script.write_text("#!/bin/sh\nexit 78\n")
    job = sh("true")
    bench.launch(job)
    assert isinstance(bench.expect(Ended).outcome, Interrupted)
    bench.launch(job, number=2)
    several_looks: list[bool] = []
    bench.loop.call_after("several looks", 2.0, lambda: several_looks.append(True))
    while not several_looks:
        bench.loop.turn()
    assert submissions(bench) == 1
    # It was late, that is all.
    bench.run.batch_script.write_text(script)
    bench.run.seen.touch()
    assert bench.expect(Ended).outcome == Exited(0)
    assert submissions(bench) == 2


def test_the_nodes_are_looked_at_once_in_a_run(make: Make, cluster: Cluster) -> None:
    for number in range(3):
        bench = make(cluster)
        bench.launch(sh("true", f"a{number}"))
        assert bench.expect(Ended).outcome == Exited(0)
    jobs = cluster.command("squeue", "-h", "-t", "all", "-o", "%j").splitlines()
    assert sum(job.startswith(f"gl:{bench.run_id}:probe") for job in jobs) == 1


def most_time(cluster: Cluster, minutes: str) -> None:
    cluster.command("scontrol", "update", "PartitionName=main", f"MaxTime={minutes}")


def test_the_nodes_are_looked_at_where_a_job_is_given_no_more_than_a_minute(
    make: Make, own_cluster: MakeCluster
) -> None:
    cluster = own_cluster(nodes=1)
    most_time(cluster, "1")
    bench = make(cluster)
    attempt = bench.launch(sh("true"))
    late = bench.launch(sh("true", "late", timeout=60.0))
    ended = bench.expect(Ended)
    assert (ended.attempt, ended.outcome) == (attempt, Exited(0))
    words = "asks for more time than its partition gives: a shorter timeout:, or another partition"
    turns_until(bench, lambda: f"{words} (PartitionTimeLimit)" in bench.engine.why(late))


def test_a_probe_that_can_never_start_is_said_and_what_waits_for_it_says_so(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PROBE_TIME_LIMIT", "5")
    cluster = own_cluster(nodes=1)
    most_time(cluster, "2")
    bench = make(cluster)
    attempt = bench.launch(sh("true"))
    turns_until(bench, lambda: " (PartitionTimeLimit)" in bench.engine.why(attempt))
    why = bench.engine.why(attempt)
    assert why.endswith(" (Dependency)")
    number = min(cluster.command("squeue", "-h", "-o", "%A").split(), key=int)
    said = f"the probe of the run directory, {number}, goes first; it waits: asks for more time"
    assert said in why
    turns_until(bench, lambda: len(bench.warned) == 1)
    said = (
        f"the probe of the run directory, Slurm job {number}, does not start, and nothing of the"
        " run before it: asks for more time"
    )
    assert bench.warned[0].startswith(said)
    assert bench.warned[0].endswith(" (PartitionTimeLimit)")


def test_what_is_scarce_here_is_waited_for_and_fails_no_job(
    bench: SlurmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full = (
        launch_files.write,
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "tickets/a.1"),
    )
    tries: list[OSError] = [full, full, full]

    def until_there_is_room(*given: Any) -> None:
        if tries:
            raise tries.pop()
        write(*given)

    monkeypatch.setattr(launch_files, "write", until_there_is_room)
    stopped = bench.launch(sh("true", "stopped"))
    waits = bench.launch(sh("true", "waits"))
    assert bench.engine.why(waits) == f"{os.strerror(errno.ENOSPC)}: tickets/a.1"
    bench.engine.carry_out(StopAttempt(stopped, "cancelled", Quoted("a person")))
    assert outcomes(bench, 2) == {"stopped.1": Cancelled(), "waits.1": Exited(0)}
    assert not tries
    assert [said for said in bench.warned if os.strerror(errno.ENOSPC) in said] == bench.warned[:1]


# ── A token that Slurm keeps count of ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("largest", ["1001", "4"], ids=["one array", "several, one after another"])
def test_no_more_run_at_once_than_their_token_allows(
    make: Make, own_cluster: MakeCluster, largest: str
) -> None:
    bench = make(own_cluster(settings={"MaxArraySize": largest}))
    at_work = bench.run.path / "at-work"
    at_work.mkdir()
    mine = f"'{at_work}'/$GPULAUNCH_JOB"
    script = f"mkdir {mine}; ls '{at_work}' | wc -l; sleep 0.5; rmdir {mine}"
    attempts = [AttemptId(f"a{number}", 1) for number in range(6)]
    for attempt in attempts:
        job = replace(sh(script, attempt.job), demand=Demand(gpus=0))
        bench.engine.carry_out(Launch(attempt, job, (), share=("msa", 2)))
    assert {e.outcome for e in ends(bench, 6).values()} == {Exited(0)}
    together = [int(bench.run.log(attempt).read_text()) for attempt in attempts]
    assert max(together) == 2
    assert submissions(bench) == (1 if largest == "1001" else 2)


def test_a_number_that_came_to_be_anothers_is_not_taken_for_ones_own(
    make: Make, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a controller was killed: it gives numbers anew that it had not written down yet."""
    monkeypatch.setattr(engine, "NFS_VISIBILITY_TIMEOUT", 0.0)
    first = make(cluster)
    attempt = first.launch(sh("exec sleep 100"), *first.gpus[:1])
    first.expect(Queued)
    (mine,) = batches.read_all(first.run)
    cluster.command("scancel", mine.id)
    another = ("--parsable", "--output=/dev/null", "--wrap=exec sleep 100")
    other = cluster.command("sbatch", *another).strip()
    first.run.batch_id(mine.name).write_text(other)
    for start in first.run.starts.iterdir():
        start.unlink()
    second = make(cluster)
    second.engine.adopt([attempt])
    second.engine.carry_out(StopAttempt(attempt, "interrupted", Quoted("a test")))
    assert isinstance(second.expect(Ended).outcome, Interrupted)
    state = cluster.command("squeue", "-h", "-j", other, "-o", "%T").strip()
    assert state in ("PENDING", "RUNNING")


@pytest.mark.slow
def test_what_slurm_kills_for_its_memory_has_failed_so(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    if release() == (25, 11):
        pytest.skip("Slurm 25.11.2 kills nothing by OverMemoryKill")
    monkeypatch.setattr(engine, "NFS_VISIBILITY_TIMEOUT", 1.0)
    settings = {
        "SelectTypeParameters": "CR_CPU_Memory",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "1",
        "JobAcctGatherParams": "OverMemoryKill",
    }
    bench = make(own_cluster(nodes=1, settings=settings))
    hungry = f"exec {sys.executable} -c 'import time; some = bytearray(500 << 20); time.sleep(100)'"
    bench.launch(sh(hungry, engine={"slurm": {"extra": ("--mem=200M",)}}))
    ended = bench.expect(Ended)
    assert ended.failure is not None
    assert (ended.outcome, ended.failure.kind) == (Signaled(9), "host_oom")


@pytest.mark.skipif(bool(unlimited()), reason=unlimited())
def test_what_the_kernel_kills_for_its_memory_has_failed_so(
    make: Make, own_cluster: MakeCluster
) -> None:
    bench = make(own_cluster(nodes=1, memory=True))
    hungry = f"exec {sys.executable} -c 'import time; some = bytearray(500 << 20); time.sleep(100)'"
    bench.launch(sh(hungry, engine={"slurm": {"extra": ("--mem=200M",)}}))
    ended = bench.expect(Ended)
    assert ended.failure is not None
    assert (ended.outcome, ended.failure.kind) == (Signaled(9), "host_oom")


@pytest.mark.skipif(bool(unlimited()), reason=unlimited())
def test_a_kill_for_memory_that_its_own_status_hides_is_said(
    make: Make, own_cluster: MakeCluster
) -> None:
    bench = make(own_cluster(nodes=1, memory=True))
    hungry = f"{sys.executable} -c 'import time; some = bytearray(500 << 20); time.sleep(100)'"
    bench.launch(sh(f"{hungry} || true", engine={"slurm": {"extra": ("--mem=200M",)}}))
    assert bench.expect(Ended).outcome == Exited(0)
    (said,) = [said for said in bench.warned if "was killed for its memory" in said]
    assert "oom_kill 1" in said or "Slurm:" in said
