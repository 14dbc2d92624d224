"""What Slurm does to jobs by itself: preempts, requeues, holds and forgets them.

Whatever it is, each job is run to its end, no attempt is begun twice, and no retry is spent.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from subprocess import Popen

import pytest

from gpulaunch.core.events import Asked, Ended, Started, Stop
from gpulaunch.core.model import Interrupted, Lost, Signaled
from gpulaunch.engines.slurm import probe
from gpulaunch.engines.slurm.judge import REQUEUED
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.process.ends import cause_of, text_of
from gpulaunch.process.nodeside import write_stop
from gpulaunch.wording import cause
from tests.cli.launcher import Launcher
from tests.engines.bench import SlurmBench, fresh_pool, run_directory, sh
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster
from tests.slurm.conftest import MakeCluster, launcher_on, nothing_waits
from tests.slurm.test_kills import IMPATIENT
from tests.slurm.test_runs import SLURM, left, lines, places

pytestmark = pytest.mark.slow

PREEMPTING = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
# Writes down what it is told, and goes on when it may; a card each, of which there are two.
JOBS = """
    jobs:
      - name: j-{{n}}
        matrix: {n: [1, 2, 3]}
        grace: 30
        run: |
          trap 'echo told; exit 5' TERM
          echo "{{job}}.{{attempt}} begins" >> ran
          until [ -e go ]; do sleep 0.1 || true; done
          echo "{{job}}.{{attempt}} ends" >> ran
      - {name: then, gpus: 0, needs: [j-1, j-2, j-3], run: 'echo "then.{{attempt}} begins" >> ran'}
"""


@pytest.fixture(scope="module")
def _made(slurm_here: None) -> Iterator[Cluster]:
    with Cluster(nodes=2, gpus=1, settings=PREEMPTING) as made:
        made.command("scontrol", "create", "partitionname=high", "nodes=ALL", "prioritytier=10")
        yield made


@pytest.fixture
def busy(_made: Cluster) -> Iterator[Cluster]:
    """Two nodes with a card each; jobs of its partition `high` put others off."""
    yield _made
    _made.command("scancel", f"--user={os.getuid()}")
    wait_until(lambda: not _made.command("squeue", "-h"), PATIENCE, "no job is left")


@pytest.fixture
def launcher(busy: Cluster, tmp_path: Path) -> Launcher:
    made = launcher_on(busy, tmp_path, IMPATIENT)
    made.file("jobs.yaml", JOBS)
    return made


def ends_of(launcher: Launcher, kind: str = "") -> dict[str, str]:
    """Why the attempts of the jobs with cards ended, so far; without the node's name."""
    found = {}
    for event in launcher.events("attempt_ended"):
        outcome = event["end"]["outcome"]
        if event["job"].startswith("j-") and kind in ("", outcome["kind"]):
            told = outcome.get("by") or outcome.get("why")
            why = cause(cause_of(json.dumps(told))) if told else outcome["kind"]
            found[f"{event['job']}.{event['attempt']}"] = why.partition(" (")[0]
    return found


def await_ends(launcher: Launcher, count: int) -> None:
    wait_until(lambda: len(ends_of(launcher)) >= count, PATIENCE, f"{count} attempts have ended")


def check_each_was_run(launcher: Launcher, interrupted: Sequence[str], why: str) -> None:
    """Those named were interrupted once, for that reason, and begun again; nobody else was."""
    jobs = launcher.jobs()
    assert {job["state"] for job in jobs.values()} == {"succeeded"}, jobs
    assert ends_of(launcher, "interrupted") == {f"{name}.1": why for name in interrupted}
    check_begun_once(launcher)
    tries = {name: len(job["attempts"]) for name, job in jobs.items() if name != "then"}
    assert tries == {name: 1 + (name in interrupted) for name in tries}
    # What needs one of them is not handed over again and again while nobody knows how it ended.
    assert len(jobs["then"]["attempts"]) <= 3
    assert not left(launcher)


def check_begun_once(launcher: Launcher) -> None:
    ran = Counter(lines(launcher.path / "ran"))
    assert set(ran.values()) == {1}, ran
    whole = {line.partition(".")[0] for line in ran if line.endswith("ends")}
    assert whole == {"j-1", "j-2", "j-3"}
    assert not [e for e in launcher.events("attempt_ended") if e["charged"]]


def running(launcher: Launcher) -> list[str]:
    return sorted(name for name, state in launcher.states().items() if state == "running")


def ids_of(launcher: Launcher, names: Sequence[str]) -> list[str]:
    jobs = launcher.jobs()
    return [jobs[n]["attempts"][-1]["queue_id"].removeprefix("Slurm job ") for n in names]


# ── Preemption ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mode", "grace", "code"),
    [("requeue", 0, 5), ("requeue", 0, 0), ("cancel", 0, 0), ("requeue", 3, 5)],
)
def test_a_preempted_job_is_told_and_runs_again_when_the_cards_are_free(
    busy: Cluster, launcher: Launcher, mode: str, grace: int, code: int
) -> None:
    """Whatever it exits with, also where it does so at once."""
    launcher.file("jobs.yaml", JOBS.replace("exit 5", f"exit {code}"))
    partition = ("scontrol", "update", "partitionname=main")
    busy.command(*partition, f"preemptmode={mode}", f"gracetime={grace}")
    free = launcher.path / "free"
    more = f"--wrap=until [ -e '{free}' ]; do sleep 0.1; done"
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_started", 2)
        put_off = running(launcher)
        wait_until(lambda: len(lines(launcher.path / "ran")) == 2)
        busy.command("sbatch", "--partition=high", "--gpus=2", "--output=/dev/null", more)
        await_ends(launcher, 2)
        logs = {name: (launcher.run / f"logs/{name}.1.log").read_text() for name in put_off}
        assert all("told" in text for text in logs.values())
        free.touch()
        launcher.file("go", "")
        assert process.wait(120) == 0, busy.log()
    check_each_was_run(launcher, put_off, "preempted by Slurm")
    for name, text in logs.items():
        assert (launcher.run / f"logs/{name}.1.log").read_text() == text
        assert launcher.log(name, 2) == ""


# ── Requeued ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", [("requeue",), ("requeuehold",)])
def test_what_a_person_requeues_runs_again_at_once(
    busy: Cluster, launcher: Launcher, how: tuple[str, ...]
) -> None:
    """Slurm itself would wait two minutes, or for ever."""
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_started", 2)
        again = running(launcher)
        wait_until(lambda: len(lines(launcher.path / "ran")) == 2)
        busy.command("scontrol", *how, *ids_of(launcher, again))
        await_ends(launcher, 2)
        launcher.file("go", "")
        assert process.wait(120) == 0, busy.log()
    check_each_was_run(launcher, again, "requeued by Slurm")
    # Nothing of them is left in the queue, to be begun in vain.
    nothing_waits(busy)


def test_what_is_begun_anew_while_no_launcher_lives_finds_its_claim_taken(
    busy: Cluster, launcher: Launcher
) -> None:
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_started", 2)
        again = running(launcher)
        wait_until(lambda: len(lines(launcher.path / "ran")) == 2)
        process.kill()
        process.wait()
    ids = ids_of(launcher, again)
    busy.command("scontrol", "requeue", *ids)
    wait_until(lambda: "RUNNING" not in states(busy, ids), PATIENCE)
    for id in ids:  # at once, instead of in two minutes
        wait_until(lambda id=id: "PENDING" in states(busy, [id]), PATIENCE)  # type: ignore[misc]
        busy.command("scontrol", "update", f"jobid={id}", "starttime=now")
    wait_until(lambda: states(busy, ids) == ["FAILED"] * 2, PATIENCE)
    (launcher.run / f"ends/{again[0]}.1").unlink()  # as if it had been killed at once
    launcher.file("go", "")
    result = launcher("resume", "--quiet")
    assert result.status == 0, result.err
    check_each_was_run(launcher, again, "requeued by Slurm")


def states(cluster: Cluster, ids: Sequence[str]) -> list[str]:
    said = cluster.command("squeue", "-h", "-t", "all", f"--jobs={','.join(ids)}", "-o", "%T")
    return said.split()


def test_what_a_launcher_took_out_of_the_queue_before_it_was_killed_runs_again(
    busy: Cluster, tmp_path: Path
) -> None:
    """A controller that forgot the start says no more than that somebody cancelled it."""
    bench = SlurmBench(busy, run_directory(tmp_path / "run"), fresh_pool())
    attempt = bench.launch(sh("exec sleep 1000"), bench.gpus[0])
    bench.expect(Started)
    bench.close()
    write_stop(bench.run.stop(attempt), "interrupted", text_of(REQUEUED))
    busy.command("scancel", f"--user={os.getuid()}")
    second = SlurmBench(busy, bench.run, fresh_pool(), 2)
    try:
        second.engine.adopt([attempt])
        assert second.expect(Ended).end.outcome == Interrupted(REQUEUED, Signaled(15))
    finally:
        second.close()


# ── The controller's memory ─────────────────────────────────────────────────────────────────────


def test_a_controller_that_forgot_what_it_started_costs_no_job_and_no_retry(
    busy: Cluster, launcher: Launcher
) -> None:
    """It was killed before it had written that; the nodes then kill what it knows nothing of."""
    main = ("scontrol", "update", "partitionname=main")
    busy.command(*main, "state=down")
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        wait_until(lambda: len(list(launcher.run.glob("slurm/batches/*.id"))) == 2)
        known = busy.all_written()
        busy.command(*main, "state=up")
        launcher.wait_for("attempt_started", 2)
        forgotten = running(launcher)
        wait_until(lambda: len(lines(launcher.path / "ran")) == 2)
        busy.forget_since(known)
        await_ends(launcher, 2)
        launcher.file("go", "")
        assert end_of(process, busy) == 0, busy.log()
    check_each_was_run(launcher, forgotten, "requeued by Slurm")


def test_a_list_that_the_controller_forgot_before_it_began_is_handed_over_again(
    busy: Cluster, launcher: Launcher
) -> None:
    """It is no failure of so many jobs in a row."""
    busy.command("sbatch", "--output=/dev/null", "--wrap=true")
    wait_until(busy.known, PATIENCE)
    known = busy.known()
    main = ("scontrol", "update", "partitionname=main")
    busy.command(*main, "state=down")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: j-{{n}}
            matrix: {n: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}
            run: 'echo "{{job}}.{{attempt}} begins" >> ran'
        """,
    )
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_queued", 12)
        busy.forget_since(known)
        await_ends(launcher, 12)
        busy.command(*main, "state=up")
        assert end_of(process, busy) == 0, busy.log()
    assert set(ends_of(launcher, "interrupted").values()) == {"Slurm forgot it before it began"}
    assert not ends_of(launcher, "lost")
    assert sorted(lines(launcher.path / "ran")) == sorted(f"j-{n}.2 begins" for n in range(1, 13))


def end_of(process: Popen[str], cluster: Cluster) -> int | None:
    """Its exit status. Nodes are given back that Slurm drained: as its numbers are given anew, one
    may be told to begin a job under a number that it runs already."""

    def over() -> bool:
        for node in cluster.nodes:
            if "DRAIN" in cluster.command("scontrol", "show", "node", node):
                cluster.command("scontrol", "update", f"nodename={node}", "state=resume")
        return process.poll() is not None

    wait_until(over, 120)
    return process.poll()


# ── Nodes ───────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_lives_on_where_slurm_takes_it_for_dead_is_ended_before_it_runs_again(
    busy: Cluster, launcher: Launcher
) -> None:
    """Its node's daemon is gone, and the node declared dead: only the shared disk reaches it."""
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_started", 2)
        wait_until(lambda: len(lines(launcher.path / "ran")) == 2)
        jobs = launcher.jobs()
        (there,) = (name for name in running(launcher) if places(jobs[name])[0][0] == "n2")
        busy.kill_slurmd(2)
        busy.command("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        await_ends(launcher, 1)
        assert "told" in launcher.log(there)
        launcher.file("go", "")
        assert process.wait(120) == 0, busy.log()
    check_each_was_run(launcher, [there], "requeued by Slurm")
    busy.command("scontrol", "update", "nodename=n2", "state=resume")
    busy.start_node(2)


# ── Held ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def broken(own_cluster: MakeCluster) -> Cluster:
    """Its one node can begin no job; Slurm drains it then."""
    return own_cluster(nodes=1, settings={"Prolog": "/bin/false"})


def test_what_a_node_cannot_begin_is_lost_with_slurms_reason(
    broken: Cluster, tmp_path: Path
) -> None:
    """Slurm holds it, and would for ever."""
    run = SlurmDir(run_directory(tmp_path / "run").path)
    run.slurm.mkdir()
    run.seen.touch()  # the probe is not what this is about
    with closing(SlurmBench(broken, run, fresh_pool())) as bench:
        bench.launch(sh("true"), bench.gpus[0])
        outcome = bench.expect(Ended).end.outcome
        assert isinstance(outcome, Lost)
        assert "could not begin it, and holds it: launch" in cause(outcome.why)
        wait_until(lambda: not broken.command("squeue", "-h"), PATIENCE)


def test_a_probe_that_cannot_begin_is_not_held_for_ever(
    broken: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PROBE_FILE_TIMEOUT", 1.0)
    with closing(SlurmBench(broken, run_directory(tmp_path / "run"), fresh_pool())) as bench:
        bench.launch(sh("true"), bench.gpus[0])
        assert isinstance(bench.expect(Asked).request, Stop)
