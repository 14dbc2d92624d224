"""`gpulaunch mcp` drives a run on a cluster: its tools tell of nodes, the queue and their logs."""

from __future__ import annotations

from tests.cli.launcher import UNTIL_GO, Launcher
from tests.mcp.client import Talk, talk
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import nothing_waits


def test_a_client_follows_explains_and_stops_jobs_of_a_cluster(
    on_slurm: Launcher, cluster: Cluster
) -> None:
    launcher = on_slurm
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: bad, run: "echo out of luck; exit 3"}}
          - {{name: good, run: "echo fine on $SLURMD_NODENAME"}}
          - {{name: wide, gpus: 2, run: '{UNTIL_GO}'}}
          - {{name: late, needs: [wide], run: "true"}}
        """,
    )

    async def conversation(to: Talk) -> None:
        plan = await to.tell("check", job_file="jobs.yaml", engine="slurm")
        assert (plan["engine"], plan["total_jobs"]) == ("slurm", 4)
        run = (await to.tell("run", job_file="jobs.yaml", engine="slurm"))["run"]
        launcher.wait_for("job_settled", 2)
        launcher.wait_for("attempt_started", 3)

        told = await to.tell("status")
        assert told["total"] == 4
        states = {job["name"]: job["state"] for job in told["jobs"]}
        assert states == {
            "bad": "failed",
            "good": "succeeded",
            "wide": "running",
            "late": "waiting",
        }
        why = await to.tell("why", job="bad")
        assert (why["job"]["exit_code"], why["log_end"]) == (3, ["out of luck"])
        (attempt,) = why["job"]["attempts"]
        assert attempt["node"]
        assert attempt["queue_id"]
        assert "wide" in (await to.tell("why", job="late"))["job"]["reason"]
        logs = {log["job"]: log["text"] for log in (await to.tell("logs"))["logs"]}
        assert logs["good"].startswith("fine on ")
        assert (await to.tell("results", jobs=["good"]))["rows"][0]["state"] == "succeeded"

        added = await to.tell("add", command="echo added", name="more")
        assert added["names"] == ["more"]
        assert (await to.tell("retry", jobs=["bad"]))["was_alive"] is True
        assert (await to.tell("cancel", jobs=["wide"]))["names"] == ["wide"]
        told = await to.over(run)
        assert told["run"]["counts"] == {
            "waiting": 0,
            "running": 0,
            "succeeded": 2,
            "failed": 1,
            "cancelled": 1,
            "skipped": 1,
        }
        assert (await to.tell("why", job="bad"))["total_attempts"] == 2

        launcher.file("go", "")
        assert (await to.tell("retry", jobs=["wide", "late"]))["was_alive"] is False
        told = await to.over(run)
        assert told["run"]["counts"]["succeeded"] == 4

    talk(launcher, conversation)
    nothing_waits(cluster)
