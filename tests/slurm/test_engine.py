"""The engine on a throw-away cluster: what is handed over, taken up again, ended, and lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import (
    Asked,
    Ended,
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
from gpulaunch.diagnose.failure.advice import advice
from gpulaunch.engines.slurm import batches, following, probe
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
    assert {name: e.end.outcome for name, e in found.items()} == {
        f"a{number}.1": Exited(number) for number in range(10)
    }
    logs = [bench.run.log(AttemptId(f"a{number}", 1)).read_text() for number in range(10)]
    assert logs == [f"{number}\n" for number in range(10)]
    assert submissions(bench) == 1


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
    assert {e.end.outcome for e in ends(bench, 2).values()} == {Exited(0)}


def test_what_slurm_refuses_was_not_started_and_says_why(bench: SlurmBench) -> None:
    bench.launch(sh("true"), *bench.gpus * 4)
    ended = bench.expect(Ended)
    assert isinstance(ended.end.outcome, NotStarted)
    assert ended.end.outcome.error.startswith("sbatch: ")
    assert ended.end.outcome.error.count("sbatch") == 1
    assert ended.end.failure is not None
    assert (ended.end.failure.kind, "--slurm" in advice(ended.end.failure.advice)) == (
        "not_started",
        True,
    )


def test_a_hostile_name_is_no_trouble(bench: SlurmBench) -> None:
    name = " --wrap=x 'ü' $(touch owned) `a`|b"
    bench.launch(sh("echo $GPULAUNCH_JOB", name))
    assert bench.expect(Ended).end.outcome == Exited(0)
    assert bench.run.log(AttemptId(name, 1)).read_text() == f"{name.strip()}\n"


# ── Ending ──────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_gives_the_jobs_own_grace_and_now_gives_none(bench: SlurmBench) -> None:
    slowly = "trap 'sleep 3; exit 5' TERM; echo trapped; while :; do sleep 0.1; done"
    patient = begun(bench, sh(slowly, grace=60))
    wait_until(lambda: words_of(bench.run.log(patient)))
    bench.engine.carry_out(StopAttempt(patient, "cancelled", Quoted("a test")))
    assert bench.expect(Ended).end.outcome == Cancelled(Exited(5))
    never = "trap '' TERM; echo trapped; while :; do sleep 0.1; done"
    stubborn = begun(bench, sh(never, "b", grace=600))
    wait_until(lambda: words_of(bench.run.log(stubborn)))
    bench.engine.carry_out(StopAttempt(stubborn, "interrupted", Quoted("a test")))
    bench.engine.carry_out(StopAttempt(stubborn, "interrupted", Quoted("a test"), now=True))
    assert bench.expect(Ended).end.outcome == Interrupted(Quoted("a test"), Signaled(9))


@pytest.mark.parametrize("script", ["exec sleep 100", "trap 'exit 0' TERM; sleep 100 & wait"])
def test_a_person_may_cancel_it_in_slurm(bench: SlurmBench, cluster: Cluster, script: str) -> None:
    """That is no success of a job which heeds it with 0."""
    attempt = begun(bench, sh(f"echo up; {script}"))
    log = bench.run.log(attempt)
    wait_until(lambda: log.exists() and "up" in log.read_text())
    cluster.command("scancel", f"--user={os.getuid()}")
    assert isinstance(bench.expect(Ended).end.outcome, Cancelled)


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
    assert {e.end.outcome for e in ends(bench, 4).values()} == {Exited(0)}
    passes_by(cluster)
    assert (held(cluster), submissions(bench)) == (3, submitted)
    assert bench.engine.why(late) == "not yet handed to Slurm"
    bench.engine.carry_out(HoldQueue(False))
    assert set(ends(bench, 4)) == {"one.1", "two.1", "late.1", str(lone)}
    assert not bench.run.held.exists()


# ── Taken up by a later launcher ────────────────────────────────────────────────────────────────


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
    assert (ended.attempt, ended.end.outcome) == (attempt, Exited(3))
    assert words_of(ran) == ["once"]


# ── Slurm in trouble ────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_what_ran_on_a_node_that_is_gone_is_lost(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "NFS_VISIBILITY_TIMEOUT", 1.0)
    cluster = own_cluster(nodes=1)
    bench = make(cluster)
    attempt = begun(bench, sh("exec sleep 100"))
    cluster.kill_node(1)
    # Power that fails leaves its keepers no time to write.
    bench.run.end(attempt).unlink(missing_ok=True)
    outcome = bench.expect(Ended, 120).end.outcome
    assert isinstance(outcome, Lost)
    assert cause(outcome.why).startswith("requeued by Slurm (n1), as when a node fails")


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
    assert {e.end.outcome for e in ends(second, 3).values()} == {Exited(0)}


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
    return {name: ended.end.outcome for name, ended in ends(bench, count).items()}


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
    assert isinstance(bench.expect(Ended).end.outcome, Interrupted)
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
    assert isinstance(bench.expect(Ended).end.outcome, Interrupted)
    bench.launch(job, number=2)
    several_looks: list[bool] = []
    bench.loop.call_after("several looks", 2.0, lambda: several_looks.append(True))
    while not several_looks:
        bench.loop.turn()
    assert submissions(bench) == 1
    # It was late, that is all.
    bench.run.batch_script.write_text(script)
    bench.run.seen.touch()
    assert bench.expect(Ended).end.outcome == Exited(0)
    assert submissions(bench) == 2


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
    assert (ended.attempt, ended.end.outcome) == (attempt, Exited(0))
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


# ── A token that Slurm keeps count of ───────────────────────────────────────────────────────────


def test_no_more_run_at_once_than_their_token_allows(bench: SlurmBench) -> None:
    at_work = bench.run.path / "at-work"
    at_work.mkdir()
    mine = f"'{at_work}'/$GPULAUNCH_JOB"
    script = f"mkdir {mine}; ls '{at_work}' | wc -l; sleep 0.5; rmdir {mine}"
    attempts = [AttemptId(f"a{number}", 1) for number in range(6)]
    for attempt in attempts:
        job = replace(sh(script, attempt.job), demand=Demand(gpus=0))
        bench.engine.carry_out(Launch(attempt, job, (), share=("msa", 2)))
    assert {e.end.outcome for e in ends(bench, 6).values()} == {Exited(0)}
    together = [int(bench.run.log(attempt).read_text()) for attempt in attempts]
    assert max(together) == 2
    assert submissions(bench) == 1


@pytest.mark.slow
def test_what_slurm_kills_for_its_memory_has_failed_so(
    make: Make, own_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    if release() == (25, 11):
        pytest.skip("Slurm 25.11.2 kills nothing by OverMemoryKill")
    monkeypatch.setattr(following, "NFS_VISIBILITY_TIMEOUT", 1.0)
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
    assert ended.end.failure is not None
    assert (ended.end.outcome, ended.end.failure.kind) == (Signaled(9), "host_oom")


@pytest.mark.skipif(bool(unlimited()), reason=unlimited())
def test_what_the_kernel_kills_for_its_memory_has_failed_so(
    make: Make, own_cluster: MakeCluster
) -> None:
    bench = make(own_cluster(nodes=1, memory=True))
    hungry = f"exec {sys.executable} -c 'import time; some = bytearray(500 << 20); time.sleep(100)'"
    bench.launch(sh(hungry, engine={"slurm": {"extra": ("--mem=200M",)}}))
    ended = bench.expect(Ended)
    assert ended.end.failure is not None
    assert (ended.end.outcome, ended.end.failure.kind) == (Signaled(9), "host_oom")


@pytest.mark.skipif(bool(unlimited()), reason=unlimited())
def test_a_kill_for_memory_that_its_own_status_hides_is_said(
    make: Make, own_cluster: MakeCluster
) -> None:
    bench = make(own_cluster(nodes=1, memory=True))
    hungry = f"{sys.executable} -c 'import time; some = bytearray(500 << 20); time.sleep(100)'"
    bench.launch(sh(f"{hungry} || true", engine={"slurm": {"extra": ("--mem=200M",)}}))
    assert bench.expect(Ended).end.outcome == Exited(0)
    (said,) = [said for said in bench.warned if "was killed for its memory" in said]
    assert "oom_kill 1" in said or "Slurm:" in said
