"""The engine on a throw-away cluster: what is handed over, taken up again, ended, and lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpulaunch.core.events import Asked, Ended, Launch, Queued, Started, Stop, StopAttempt
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
from gpulaunch.engines.slurm import batches, engine, outbox, probe
from gpulaunch.process.ends import read_end
from tests.engines.bench import SlurmBench, fresh_pool, run_directory, sh
from tests.helpers import wait_until
from tests.slurm.cluster import Cluster, release, unlimited
from tests.slurm.conftest import MakeCluster

pytestmark = pytest.mark.xdist_group("slurm")

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
        return bench.engine.why(waiting).endswith(tuple(f": {reason}" for reason in NO_ROOM))

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
    monkeypatch.setattr(outbox, "FULL_AGAIN", 0.5)
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
    bench.engine.carry_out(StopAttempt(waiting[0], "cancelled", "a test"))
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
    bench.engine.carry_out(StopAttempt(patient, "cancelled", "a test"))
    assert bench.expect(Ended).outcome == Cancelled(Exited(5))
    never = "trap '' TERM; echo trapped; while :; do sleep 0.1; done"
    stubborn = begun(bench, sh(never, "b", grace=600))
    wait_until(lambda: words_of(bench.run.log(stubborn)))
    bench.engine.carry_out(StopAttempt(stubborn, "interrupted", "a test"))
    bench.engine.carry_out(StopAttempt(stubborn, "interrupted", "a test", now=True))
    assert bench.expect(Ended).outcome == Interrupted("a test", Signaled(9))


def test_one_that_is_stopped_while_it_is_handed_over_never_runs_on(bench: SlurmBench) -> None:
    for turns in range(12):
        attempt = bench.launch(sh("exec sleep 100", f"a{turns}"))
        for _ in range(turns):
            bench.loop.turn()
        bench.engine.carry_out(StopAttempt(attempt, "interrupted", "a test"))
        ended = bench.expect(Ended)
        assert ended.attempt == attempt
        assert isinstance(ended.outcome, Interrupted)


def test_a_person_may_cancel_it_in_slurm(bench: SlurmBench, cluster: Cluster) -> None:
    begun(bench, sh("exec sleep 100"))
    cluster.command("scancel", f"--user={os.getuid()}")
    assert isinstance(bench.expect(Ended).outcome, Cancelled)


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
    second.engine.carry_out(StopAttempt(attempt, "cancelled", "a test"))
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
    monkeypatch.setattr(engine, "PATIENCE", 1.0)
    cluster = own_cluster(nodes=1)
    bench = make(cluster)
    begun(bench, sh("exec sleep 100"))
    cluster.kill_node(1)
    assert bench.expect(Ended, 120).outcome == Lost("its node failed (n1)")


@pytest.mark.slow
def test_what_slurm_has_forgotten_is_known_by_its_record_or_lost(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "PATIENCE", 1.0)
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


# ── What the nodes see ──────────────────────────────────────────────────────────────────────────


def test_a_run_directory_that_the_nodes_do_not_see_stops_the_run_with_a_line(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PATIENCE", 1.0)
    bench = make(own_cluster(nodes=1))
    # As on a node without that file system: Slurm cannot even open its own output there.
    hidden = bench.run.slurm / "said"
    hidden.rmdir()
    hidden.write_text("no directory")
    attempt = bench.launch(sh("true"))
    asked = bench.expect(Asked).request
    assert isinstance(asked, Stop)
    assert f"{bench.run.path} is not to be seen on " in asked.why
    bench.engine.carry_out(StopAttempt(attempt, "interrupted", asked.why))
    assert isinstance(bench.expect(Ended).outcome, Interrupted)
    assert not bench.run.log(attempt).exists()


def test_a_node_that_cannot_run_jobs_stops_the_run_with_its_own_words(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PATIENCE", 1e9)
    bench = make(own_cluster(nodes=1))
    bench.run.batch_script.write_text("#!/bin/sh\necho no such thing >&2\nexit 78\n")
    bench.launch(sh("true"))
    asked = bench.expect(Asked).request
    assert isinstance(asked, Stop)
    assert asked.why == "node n1 cannot run jobs of this run: no such thing"


def test_where_the_nodes_seem_to_see_nothing_no_more_is_handed_over(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer versions make a missing directory on the node, and what is said there is not seen."""
    monkeypatch.setattr(probe, "PATIENCE", 1e9)
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
    assert sum(job == f"gl:{bench.run_id}:probe" for job in jobs) == 1


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
    monkeypatch.setattr(engine, "PATIENCE", 0.0)
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
    second.engine.carry_out(StopAttempt(attempt, "interrupted", "a test"))
    assert isinstance(second.expect(Ended).outcome, Interrupted)
    state = cluster.command("squeue", "-h", "-j", other, "-o", "%T").strip()
    assert state in ("PENDING", "RUNNING")


@pytest.mark.slow
def test_what_slurm_kills_for_its_memory_has_failed_so(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    if release() == (25, 11):
        pytest.skip("Slurm 25.11.2 kills nothing by OverMemoryKill")
    monkeypatch.setattr(engine, "PATIENCE", 1.0)
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
