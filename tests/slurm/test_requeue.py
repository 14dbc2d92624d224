"""What Slurm does to jobs by itself, and people do to them in Slurm: preempts, requeues, forgets.

Whatever it is, each job is run to its end, no attempt is begun twice, and no retry is spent.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from subprocess import Popen

import pytest

from gpulaunch.base.wording import cause
from gpulaunch.core.events import Asked, Ended, Stop
from gpulaunch.core.model import Lost
from gpulaunch.engines.slurm import standstill
from gpulaunch.engines.slurm.rundir import SlurmDir
from tests.cli.launcher import Launcher
from tests.engines.bench import SlurmBench, fresh_pool, run_directory, sh
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster
from tests.slurm.conftest import MakeCluster, launcher_on, nothing_waits
from tests.slurm.test_kills import IMPATIENT, why_ended
from tests.slurm.test_runs import SLURM, left, lines

pytestmark = pytest.mark.slow

# Writes down what it is told, and goes on when it may.
BODY = """
        grace: 30
        run: |
          trap 'echo told; exit {code}' TERM
          echo "{{{{job}}}}.{{{{attempt}}}} begins" >> ran
          until [ -e go ]; do sleep 0.1 || true; done
          echo "{{{{job}}}}.{{{{attempt}}}} ends" >> ran
"""
THEN = """
      - {{name: then, gpus: 0, needs: [{needs}], run: 'echo "then.{{{{attempt}}}} begins" >> ran'}}
"""


def job(name: str, code: int = 5, **fields: object) -> str:
    given = "".join(f"\n        {key}: {json.dumps(value)}" for key, value in fields.items())
    return f"\n      - name: {name}{given}{BODY.format(code=code)}"


def listed(*jobs: str, needs: str) -> str:
    """And one that needs some of them."""
    return "\n    jobs:" + "".join(jobs) + THEN.format(needs=needs)


def ends_of(launcher: Launcher, kind: str = "") -> dict[str, str]:
    """Why the attempts of the jobs with cards ended, so far; without the node's name."""
    return {
        f"{event['job']}.{event['attempt']}": why_ended(event).partition(" (")[0]
        for event in launcher.events("attempt_ended")
        if event["job"] != "then" and kind in ("", event["end"]["outcome"]["kind"])
    }


def await_ends(launcher: Launcher, count: int) -> None:
    wait_until(lambda: len(ends_of(launcher)) >= count, PATIENCE, f"{count} attempts have ended")


def check_each_was_run(launcher: Launcher, interrupted: Mapping[str, str]) -> None:
    """Those named were interrupted once, for that reason, and begun again; nobody else was."""
    jobs = launcher.jobs()
    assert {job["state"] for job in jobs.values()} == {"succeeded"}, jobs
    found = ends_of(launcher, "interrupted")
    assert found == {f"{name}.1": why for name, why in interrupted.items()}
    tries = {name: len(job["attempts"]) for name, job in jobs.items() if name != "then"}
    assert tries == {name: 1 + (name in interrupted) for name in tries}
    # What needs one of them is not handed over again and again while nobody knows how it ended.
    assert len(jobs["then"]["attempts"]) <= 1 + len(interrupted)
    check_begun_once(launcher, set(tries))
    assert not left(launcher)


def check_begun_once(launcher: Launcher, names: set[str]) -> None:
    ran = Counter(lines(launcher.path / "ran"))
    assert set(ran.values()) == {1}, ran
    assert {line.partition(".")[0] for line in ran if line.endswith("ends")} == names
    assert not [e for e in launcher.events("attempt_ended") if e.get("charged")]


def running(launcher: Launcher) -> list[str]:
    return sorted(name for name, state in launcher.states().items() if state == "running")


def id_of(launcher: Launcher, name: str) -> str:
    return str(launcher.jobs()[name]["attempts"][-1]["queue_id"].removeprefix("Slurm job "))


# ── Preemption ──────────────────────────────────────────────────────────────────────────────────

PREEMPTING = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
LOW = {"kindly": "requeue", "roughly": "requeue", "for-ever": "cancel", "slowly": "requeue"}
"""Partitions whose jobs are put off, and what Slurm does with them."""


@pytest.fixture
def preempting(own_cluster: MakeCluster) -> Cluster:
    """Jobs of its partition `high` put off those of four others."""
    cluster = own_cluster(nodes=1, gpus=4, settings=PREEMPTING)
    create = ("scontrol", "create", "nodes=ALL")
    cluster.command(*create, "partitionname=high", "prioritytier=10")
    for name, mode in LOW.items():
        grace = 3 if name == "slowly" else 0
        mode = f"preemptmode={mode}"
        cluster.command(*create, f"partitionname={name}", mode, f"gracetime={grace}")
    return cluster


def test_a_preempted_job_is_told_and_runs_again_when_the_cards_are_free(
    preempting: Cluster, tmp_path: Path
) -> None:
    """Whatever it exits with, also where it does so at once."""
    launcher = launcher_on(preempting, tmp_path, IMPATIENT)
    codes = {"kindly": 5, "roughly": 0, "for-ever": 0, "slowly": 5}
    jobs = [job(name, codes[name], engine={"slurm": {"partition": name}}) for name in LOW]
    launcher.file("jobs.yaml", listed(*jobs, needs="kindly, for-ever"))
    free = launcher.path / "free"
    more = f"--wrap=until [ -e '{free}' ]; do sleep 0.1; done"
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        wait_until(lambda: len(lines(launcher.path / "ran")) == 4)
        high = ("--partition=high", "--gpus=4", "--output=/dev/null")
        preempting.command("sbatch", *high, more)
        await_ends(launcher, 4)
        logs = {name: (launcher.run / f"logs/{name}.1.log").read_text() for name in LOW}
        assert all("told" in text for text in logs.values()), logs
        free.touch()
        launcher.file("go", "")
        assert process.wait(120) == 0, preempting.log()
    check_each_was_run(launcher, dict.fromkeys(LOW, "preempted by Slurm"))
    for name, text in logs.items():
        assert (launcher.run / f"logs/{name}.1.log").read_text() == text
        assert not (launcher.run / f"logs/{name}.2.log").exists()  # it wrote nothing


# ── People ──────────────────────────────────────────────────────────────────────────────────────


def test_what_people_do_to_jobs_in_slurm_is_told_and_what_they_requeue_runs_again_at_once(
    cluster: Cluster, on_slurm: Launcher
) -> None:
    """Slurm itself would begin it again in two minutes, or never. What they cancel is no success,
    where it heeds that with 0 either."""
    names = ("again", "held", "ends", "waits")
    jobs = [job(name, 0 if name == "ends" else 5, priority=9) for name in names]
    late = [job(name, 5) for name in ("late", "later")]
    on_slurm.file("jobs.yaml", listed(*jobs, *late, needs="again"))
    with on_slurm.begun("run", "jobs.yaml", *SLURM) as process:
        wait_until(lambda: len(lines(on_slurm.path / "ran")) == 4)
        cluster.command("scancel", id_of(on_slurm, "later"))
        cluster.command("scancel", id_of(on_slurm, "ends"))
        cluster.command("scontrol", "requeue", id_of(on_slurm, "again"))
        cluster.command("scontrol", "requeuehold", id_of(on_slurm, "held"))
        await_ends(on_slurm, 4)
        on_slurm.file("go", "")
        assert process.wait(120) == 1, cluster.log()
    states = on_slurm.states()
    cancelled = {name: job["reason"] for name, job in on_slurm.jobs().items()}
    by_hand = "cancelled in Slurm (scancel), not by gpulaunch"
    assert {name for name, why in cancelled.items() if why == by_hand} == {"ends", "later"}
    assert {name for name, state in states.items() if state == "cancelled"} == {"ends", "later"}
    assert {states[name] for name in ("again", "held", "waits", "late", "then")} == {"succeeded"}
    assert ends_of(on_slurm, "interrupted") == dict.fromkeys(
        ("again.1", "held.1"), "requeued by Slurm"
    )
    assert "told" in on_slurm.log("again", 1)
    check_begun_once(on_slurm, {"again", "held", "waits", "late"})
    # Nothing of them is left in the queue, to be begun in vain.
    nothing_waits(cluster)


# ── The controller's memory ─────────────────────────────────────────────────────────────────────


def test_a_controller_that_forgot_what_it_started_costs_no_job_and_no_retry(
    own_cluster: MakeCluster, tmp_path: Path
) -> None:
    """It was killed before it had written that; the nodes then kill what it knows nothing of."""
    cluster = own_cluster(nodes=2, gpus=1)
    launcher = launcher_on(cluster, tmp_path, IMPATIENT)
    names = ("j-1", "j-2", "j-3")
    launcher.file("jobs.yaml", listed(*map(job, names), needs=", ".join(names)))
    main = ("scontrol", "update", "partitionname=main")
    cluster.command(*main, "state=down")
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        wait_until(lambda: len(list(launcher.run.glob("slurm/batches/*.id"))) == 2)
        known = cluster.all_written()
        cluster.command(*main, "state=up")
        wait_until(lambda: len(lines(launcher.path / "ran")) == 2)
        launcher.wait_for("attempt_started", 2)
        forgotten = running(launcher)
        cluster.forget_since(known)
        await_ends(launcher, 2)
        launcher.file("go", "")
        assert end_of(process, cluster) == 0, cluster.log()
    check_each_was_run(launcher, dict.fromkeys(forgotten, "requeued by Slurm"))


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


# ── What cannot be begun ────────────────────────────────────────────────────────────────────────


def test_what_a_node_cannot_begin_is_lost_with_slurms_reason_and_a_probe_stops_the_run(
    own_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm holds it, and would for ever; and it drains the node."""
    monkeypatch.setattr(standstill, "PROBE_FILE_TIMEOUT", 1.0)
    broken = own_cluster(nodes=1, settings={"Prolog": "/bin/false"})
    with closing(SlurmBench(broken, run_directory(tmp_path / "first"), fresh_pool())) as bench:
        bench.launch(sh("true"), bench.gpus[0])
        assert isinstance(bench.expect(Asked).request, Stop), "the probe is not held"
    broken.command("scontrol", "update", "nodename=n1", "state=resume")
    run = SlurmDir(run_directory(tmp_path / "second").path)
    run.slurm.mkdir()
    run.seen.touch()  # there is no probe
    with closing(SlurmBench(broken, run, fresh_pool())) as bench:
        bench.launch(sh("true"), bench.gpus[0])
        outcome = bench.expect(Ended).end.outcome
        assert isinstance(outcome, Lost)
        assert "could not begin it, and holds it: launch" in cause(outcome.why)
        wait_until(lambda: not broken.command("squeue", "-h"), PATIENCE)
