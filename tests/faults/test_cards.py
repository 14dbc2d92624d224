"""Whole runs on the pretend driver: the real NVML path, busy cards, lost ones, slow memory."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import wait_until

JOB = "jobs: [{name: a, run: echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $GPULAUNCH_GPU_UUID}]"


@pytest.fixture
def launcher(on_cards: Launcher) -> Launcher:
    return on_cards


def test_a_job_gets_an_nvml_index_and_pci_order(launcher: Launcher, driver: FakeDriver) -> None:
    uuid = driver.card(0)
    launcher.file("jobs.yaml", JOB)
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert launcher.log("a") == f"0 PCI_BUS_ID {uuid}\n"
    assert launcher.status()["run"]["simulated"] is False


def test_indices_are_not_trusted_where_a_card_does_not_open(
    launcher: Launcher, driver: FakeDriver
) -> None:
    driver.card(0, error_open=15)
    uuid = driver.card(1)
    launcher.file("jobs.yaml", JOB)
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert launcher.log("a").split()[0] == uuid


def test_a_mig_instance_is_named_by_uuid(launcher: Launcher, driver: FakeDriver) -> None:
    uuid = driver.mig(0, 0)
    launcher.file("jobs.yaml", JOB)
    assert launcher("run", "jobs.yaml").status == 0
    assert launcher.log("a").split()[0] == uuid


def test_a_busy_card_is_named_and_taken_when_it_comes_free(
    launcher: Launcher, driver: FakeDriver
) -> None:
    launcher.environ.pop("GPULAUNCH_LEASED")  # inside a job, others on the card are its own
    launcher.environ["GPULAUNCH_LEASE_DIR"] = str(launcher.path)
    driver.card(0, used=30 * GIB, bus=_own_bus())
    driver.process(0, pid=os.getpid(), memory=30 * GIB)
    launcher.file("jobs.yaml", JOB)
    with launcher.begun("run", "jobs.yaml") as process:
        # Before its first start a run is not `latest`; while it lives it is found all the same.
        run = wait_until(lambda: next((launcher.path / "gpulaunch-runs").glob("jobs-*"), None))
        wait_until(lambda: launcher.events(run=run))
        wait_until(lambda: launcher.jobs(run))
        wait_until(lambda: "30" in launcher.jobs(run)["a"]["reason"])
        assert f"pid {os.getpid()}" in launcher.jobs(run)["a"]["reason"]
        assert "waiting" in launcher("status").out
        driver.no_processes()
        driver.card(0, used=0)
        assert process.wait(60) == 0


def test_exec_leaves_no_child_and_no_descriptor_but_the_lease(
    launcher: Launcher, driver: FakeDriver
) -> None:
    driver.card(0)
    script = """
import os
print(open(f"/proc/self/task/{os.getpid()}/children").read().split())
print([fd for fd in map(int, os.listdir("/proc/self/fd")) if 3 < fd < 100])
print(os.environ["CUDA_VISIBLE_DEVICES"])
"""
    result = launcher("exec", "--", sys.executable, "-c", script)
    assert result.out == "[]\n[]\n0\n", result.err


def test_wait_runs_out_on_a_busy_card(launcher: Launcher, driver: FakeDriver) -> None:
    launcher.environ.pop("GPULAUNCH_LEASED")
    driver.card(0, used=30 * GIB, bus=_own_bus())
    driver.process(0, pid=os.getpid(), memory=30 * GIB)
    launcher.file("jobs.yaml", JOB)
    assert launcher("run", "jobs.yaml", "--wait", "1s").status == 3
    result = launcher("exec", "--no-wait", "--", "true")
    assert result.status == 124
    assert str(os.getpid()) in result.err
    assert launcher("run", "jobs.yaml", "--new", "--share-busy").status == 0


def test_a_card_serves_the_next_job_only_when_its_memory_is_back(
    launcher: Launcher, driver: FakeDriver
) -> None:
    driver.card(0)
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: first, priority: 1, run: 'touch started; while [ ! -e go ]; do sleep 0.05; done'}
          - {name: second, run: touch second}
        """,
    )
    with launcher.begun("run", "jobs.yaml") as process:
        wait_until((launcher.path / "started").exists)
        driver.card(0, used=20 * GIB)
        launcher.file("go", "")
        launcher.wait_for("attempt_ended")
        wait_until(lambda: [e for e in launcher.events("gpu_changed") if e["state"] == "draining"])
        assert not (launcher.path / "second").exists()
        driver.card(0, used=0)
        assert process.wait(60) == 0


def test_one_lost_card_leaves_the_others_in_use(launcher: Launcher, driver: FakeDriver) -> None:
    for index in range(4):
        driver.card(index)
    driver.card(2, error_memory=15, error_processes=15, error_uuid=15)
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: 'j-{{n}}', matrix: {n: [1, 2, 3, 4, 5, 6]}, run: echo $GPULAUNCH_GPU_INDEX}
        """,
    )
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    used = {launcher.log(f"j-{n}").strip() for n in range(1, 7)}
    assert used <= {"0", "1", "3"}


def test_a_card_whose_call_hangs_is_set_aside(launcher: Launcher, driver: FakeDriver) -> None:
    driver.card(0)
    driver.card(1)
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: 'j-{{n}}', matrix: {n: [1, 2, 3]}, run: "until [ -e go ]; do sleep 0.02; done"}
        """,
    )
    with launcher.begun("run", "jobs.yaml") as process:
        launcher.wait_for("attempt_started", 2)
        driver.card(1, hang="memory")
        launcher.file("go", "")
        assert process.wait(60) == 0
    asides = [e for e in launcher.events("gpu_changed") if e["state"] == "aside"]
    assert len(asides) == 1


def test_an_inherited_mask_is_the_pool(launcher: Launcher, driver: FakeDriver) -> None:
    uuids = [driver.card(index) for index in range(4)]
    launcher.environ |= {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    launcher.file(
        "jobs.yaml",
        "jobs: [{name: 'j-{{n}}', matrix: {n: [1, 2, 3, 4]}, run: echo $GPULAUNCH_GPU_UUID}]",
    )
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert {launcher.log(f"j-{n}").strip() for n in range(1, 5)} == set(uuids[2:])


def test_gpu_memory_is_a_condition_of_admission(launcher: Launcher, driver: FakeDriver) -> None:
    driver.card(0, total=40 * GIB, name="NVIDIA L40S")
    uuid = driver.card(1)
    launcher.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    launcher.file(
        "jobs.yaml", "jobs: [{name: a, gpu_memory: 60GiB, run: echo $GPULAUNCH_GPU_UUID}]"
    )
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert launcher.log("a").strip() == uuid
    launcher.file("jobs.yaml", "jobs: [{name: a, gpu_memory: 90GiB, run: 'true'}]")
    assert launcher("run", "jobs.yaml").status == 2


def test_gpus_shows_who_uses_and_who_leases(launcher: Launcher, driver: FakeDriver) -> None:
    driver.card(0)
    driver.card(1, used=3 * GIB)
    driver.process(1, pid=os.getpid(), memory=3 * GIB)
    launcher.file("jobs.yaml", "jobs: [{name: a, run: exec sleep 1000, grace: 0}]")
    with launcher.begun("run", "jobs.yaml", "--gpus", "[0]"):
        launcher.wait_for("attempt_started")
        rows = json.loads(launcher("gpus", "--json").out)["gpus"]
        assert rows[0]["lease"]
        assert rows[1]["users"][0]["pid"] == os.getpid()
        assert "NVIDIA" in launcher("gpus").out


def _own_bus() -> str:
    """A PCI id that no other test process uses at the same time."""
    return f"0000{os.getpid() % 0xFFFF:04x}:01:00.0"
