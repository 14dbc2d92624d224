"""Jobs that are killed for their memory, by Slurm or by the kernel, on throw-away clusters."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from gpulaunch.core.events import Ended
from gpulaunch.core.model import Exited, Job, Signaled
from gpulaunch.engines.slurm import outcome
from tests.engines.bench import SlurmBench, fresh_pool, run_directory, sh
from tests.slurm.cluster import Cluster, release, unlimited
from tests.slurm.conftest import MakeCluster

HUNGRY = f"{sys.executable} -c 'import time; some = bytearray(500 << 20); time.sleep(100)'"


def bench_on(cluster: Cluster, at: Path) -> SlurmBench:
    return SlurmBench(cluster, run_directory(at / "run"), fresh_pool())


def with_little(script: str, name: str = "a") -> Job:
    return sh(script, name, engine={"slurm": {"extra": ("--mem=200M",)}})


def check_was_killed(ended: Ended) -> None:
    assert ended.end.failure is not None
    assert (ended.end.outcome, ended.end.failure.kind) == (Signaled(9), "host_oom")


@pytest.mark.slow
def test_what_slurm_kills_for_its_memory_has_failed_so(
    own_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if release() == (25, 11):
        pytest.skip("Slurm 25.11.2 kills nothing by OverMemoryKill")
    monkeypatch.setattr(outcome, "NFS_VISIBILITY_TIMEOUT", 1.0)
    settings = {
        "SelectTypeParameters": "CR_CPU_Memory",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "1",
        "JobAcctGatherParams": "OverMemoryKill",
    }
    with closing(bench_on(own_cluster(nodes=1, settings=settings), tmp_path)) as bench:
        bench.launch(with_little(f"exec {HUNGRY}"))
        check_was_killed(bench.expect(Ended))


@pytest.mark.skipif(bool(unlimited()), reason=unlimited())
def test_what_the_kernel_kills_for_its_memory_has_failed_so_and_a_status_that_hides_it_is_said(
    own_cluster: MakeCluster, tmp_path: Path
) -> None:
    with closing(bench_on(own_cluster(nodes=1, memory=True), tmp_path)) as bench:
        bench.launch(with_little(f"exec {HUNGRY}"))
        check_was_killed(bench.expect(Ended))
        bench.launch(with_little(f"{HUNGRY} || true", "hides"))
        assert bench.expect(Ended).end.outcome == Exited(0)
        (said,) = [said for said in bench.warned if "was killed for its memory" in said]
        assert "oom_kill 1" in said or "Slurm:" in said
