"""What a person sees of a run on a cluster, from another terminal."""

from __future__ import annotations

import re
import signal

from tests.cli.launcher import Launcher
from tests.slurm.cluster import Cluster

LIST = """
    jobs:
      - {name: long, run: "until [ -e go ]; do sleep 0.1; done"}
      - {name: cpu, gpus: 0, run: "until [ -e go ]; do sleep 0.1; done"}
      - {name: later, gpus: 0, needs: [long], run: "true"}
"""


def test_a_run_without_its_supervisor_says_what_goes_on_and_how_to_take_it_up(
    launcher: Launcher, cluster: Cluster
) -> None:
    launcher.environ.update(cluster.environ)
    launcher.file("jobs.yaml", LIST)
    with launcher.begun("run", "jobs.yaml", "--engine", "slurm") as process:
        launcher.wait_for("attempt_started", 2)
        drained = launcher("drain", "-r", launcher.run)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (drained.status, "has every card back already" in drained.err) == (2, True)
    said = launcher("status").out
    assert "goes on, `gpulaunch resume` takes it up" in said
    assert "later" in said
    cancelled = launcher("cancel", "-r", launcher.run, "--all")
    assert (cancelled.status, "`gpulaunch resume` takes it up" in cancelled.err) == (2, True)
    (launcher.path / "go").touch()
    again = launcher("resume")
    assert again.status == 0, again.err
    assert "3 jobs: 3 succeeded" in again.err
    assert "on 1 node, " in again.err
    assert re.search(r"n[12], no card", (launcher.run / "report.html").read_text())
