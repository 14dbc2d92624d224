"""Pretend clusters and throw-away ones for the tests in here.

Without Slurm's programs the tests are skipped; they fail where GPULAUNCH_REQUIRE_SLURM=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.launcher import COMMAND, Launcher
from tests.helpers import wait_until
from tests.slurm.cluster import INSTALL, PATIENCE, Cluster, missing
from tests.slurm.histories import History

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A run on a pretend cluster."""
    made = History(tmp_path / "run")
    yield made
    made.engine.close()


@pytest.fixture(scope="session")
def slurm_here() -> None:
    if not (why := missing()):
        return
    if os.environ.get("GPULAUNCH_REQUIRE_SLURM") == "1":
        pytest.fail(f"GPULAUNCH_REQUIRE_SLURM=1, and {why}")
    pytest.skip(f"{why}: {INSTALL}")


@pytest.fixture(scope="session")
def _shared(slurm_here: None) -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture
def cluster(_shared: Cluster) -> Iterator[Cluster]:
    """Two nodes with two cards each, shared by tests that do it no harm; without a job."""
    yield _shared
    _shared.command("scancel", f"--user={os.getuid()}")
    wait_until(lambda: not _shared.command("squeue", "-h"), PATIENCE, "no job is left")


@pytest.fixture
def own_cluster(slurm_here: None) -> Iterator[MakeCluster]:
    """Makes a cluster for this test alone: `own_cluster(nodes=1, settings={"MinJobAge": "2"})`."""
    with ExitStack() as stack:

        def make(
            nodes: int = 2,
            gpus: int = 2,
            settings: Mapping[str, str] | None = None,
            memory: bool = False,
        ) -> Cluster:
            return stack.enter_context(Cluster(nodes, gpus, settings, memory))

        yield make


def launcher_on(cluster: Cluster, at: Path, command: Sequence[str] = COMMAND) -> Launcher:
    """gpulaunch in the directory `at`, beside that cluster, at which it looks often."""
    told = {name: cluster.environ[name] for name in ("SLURM_CONF", "PATH")}
    return Launcher(at, told | {"GPULAUNCH_SLURM_CYCLE": "0.3"}, command)


def nothing_waits(cluster: Cluster) -> None:
    """Check that nothing is in the queue to be begun, and wait until what is over has left it: how
    a job ended is known before Slurm has done with it."""
    assert not cluster.command("squeue", "-h", "--states=PENDING")
    wait_until(lambda: not cluster.command("squeue", "-h"), PATIENCE, "what is over is gone")


@pytest.fixture
def on_slurm(cluster: Cluster, tmp_path: Path) -> Launcher:
    """gpulaunch in an empty directory, beside the cluster that tests share."""
    return launcher_on(cluster, tmp_path)
