from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpulaunch.agent.proc import is_stopped
from gpulaunch.base.documents import MachineCard
from gpulaunch.gpus import doctor
from gpulaunch.gpus.discover import ProbeClient, find, simulated
from gpulaunch.gpus.doctor import DoctorFinding, examine
from gpulaunch.gpus.inventory import inventory
from gpulaunch.gpus.lease import take
from gpulaunch.gpus.machine import Machine
from gpulaunch.gpus.mask import pool
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import wait_until


def table(driver: FakeDriver) -> list[MachineCard]:
    with ProbeClient(driver.environ) as client:
        return inventory(find(driver.environ, client=client), client)


def found(findings: list[DoctorFinding], level: str, words: str) -> DoctorFinding:
    matches = [f for f in findings if f.level == level and words in f.what]
    assert len(matches) == 1, findings
    return matches[0]


# ── gpulaunch gpus ──────────────────────────────────────────────────────────────────────────────


def test_a_row_says_who_uses_the_card_and_who_leases_it(fake_driver: FakeDriver) -> None:
    fake_driver.card(0)
    fake_driver.card(1, bus="0000ffff:EE:1F.0", used=3 * GIB)
    fake_driver.process(1, os.getpid(), memory=3 * GIB)
    with take("ffff:ee:1f.0"):
        free, used = table(fake_driver)
    assert (free["index"], free["health"], free["users"], free["lease"]) == (0, "ok", [], None)
    assert (used["memory"], used["used"]) == (80 * GIB, 3 * GIB)
    assert [one["pid"] for one in used["users"]] == [os.getpid()]
    assert used["lease"] is not None
    assert f"(pid {os.getpid()})" in used["lease"]


def test_a_lost_card_has_a_row_too(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, error_open=15)
    fake_driver.card(1, recovery=1)
    sick, lost = table(fake_driver)
    assert sick["index"] == 1
    assert "it needs a reset" in sick["health"]
    assert (lost["index"], lost["name"]) == (0, "card 0")
    assert lost["health"].startswith("GPU is lost; ")


def test_a_card_that_the_inherited_mask_leaves_out_is_marked(fake_driver: FakeDriver) -> None:
    for n in range(3):
        fake_driver.card(n)
    environ = {**fake_driver.environ, "CUDA_VISIBLE_DEVICES": "1"}
    with ProbeClient(environ) as client:
        machine = find(environ, client=client)
        marked = inventory(machine, client, pool=pool(machine, environ))
        plain = inventory(machine, client)
    assert [row["outside"] for row in marked] == [
        "CUDA_VISIBLE_DEVICES=1",
        "",
        "CUDA_VISIBLE_DEVICES=1",
    ]
    assert [row["outside"] for row in plain] == ["", "", ""]


def test_pretend_cards_are_rows_that_say_so(fake_driver: FakeDriver) -> None:
    gpus = simulated(2, "run")
    with ProbeClient(fake_driver.environ) as client, take(gpus[1].key):
        first, second = inventory(Machine(gpus), client)
        assert client.pid is None
    seen = first["simulated"], first["name"], first["health"], first["lease"]
    assert seen == (True, "simulated", "ok", None)
    assert second["lease"] is not None


# ── gpulaunch doctor ────────────────────────────────────────────────────────────────────────────


def test_a_machine_that_is_well(fake_driver: FakeDriver) -> None:
    fake_driver.card(0)
    findings = examine(fake_driver.environ)
    found(findings, "ok", "driver 550.54.15, CUDA 12.4, 1 usable card(s)")
    assert not [f for f in findings if f.level == "error" and "/dev/" not in f.what]


def test_what_the_driver_says_of_each_card(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, recovery=1)
    fake_driver.card(1, persistence=0, ecc=2)
    fake_driver.card(2, compute_mode=3)
    fake_driver.card(3, error_open=15)
    fake_driver.card(4)
    fake_driver.process(4, 4_194_303, memory=GIB)
    findings = examine(fake_driver.environ)
    found(findings, "error", "GPU 0 (NVIDIA A100-SXM4-80GB): the driver says that it needs a reset")
    assert "-pm 1" in found(findings, "warning", "persistence mode is off").advice
    found(findings, "warning", "2 uncorrected memory errors")
    found(findings, "note", "compute mode exclusive process: one process at a time")
    found(findings, "warning", "card 3: GPU is lost")
    found(findings, "note", "GPU 4 (NVIDIA A100-SXM4-80GB) is in use: somebody")
    found(findings, "note", "jobs get their cards by UUID: card 3 cannot be opened")


def test_whether_the_driver_reports_xids_is_said(fake_driver: FakeDriver) -> None:
    fake_driver.card(0)
    fake_driver.card(1)
    findings = examine(fake_driver.environ)
    found(findings, "ok", "reports Xids and other health events of every card")
    fake_driver.card(2, events=0)
    fake_driver.card(3, events=0)
    findings = examine(fake_driver.environ)
    found(findings, "ok", "health events of GPUs 0 and 1")
    assert "jobs run all the same" in found(findings, "note", "(Xids) of GPUs 2 and 3: Not ").advice


def test_a_card_that_hangs_when_its_events_are_asked_for_is_named(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, hang="register")
    findings = examine(fake_driver.environ, timeout=1.0)
    found(findings, "note", "(Xids) of GPU 0: the driver does not answer")


def test_no_driver_is_an_error_with_advice(fake_driver: FakeDriver) -> None:
    fake_driver.driver(error_init=9)
    assert "modprobe" in found(examine(fake_driver.environ), "error", "Driver Not Loaded").advice


def test_device_files_that_are_missing_or_shut(
    fake_driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver.card(0, minor=3)
    machine = find(fake_driver.environ)
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia3").touch()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, how: real(path, how) and "ctl" not in path)
    shut, missing = sorted(doctor.device_files(machine, str(tmp_path)), key=lambda f: f.level)
    assert (shut.level, shut.what) == (
        "error",
        f"{tmp_path}/nvidiactl may not be opened by this user",
    )
    assert missing.what == f"{tmp_path}/nvidia-uvm does not exist"
    assert "nvidia-modprobe" in missing.advice


def test_under_wsl_one_device_file_is_for_all_cards(
    fake_driver: FakeDriver, tmp_path: Path
) -> None:
    fake_driver.wsl(0, used=0)
    (tmp_path / "dxg").touch()
    assert list(doctor.device_files(find(fake_driver.environ), str(tmp_path))) == []


def test_the_order_of_cards(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, name="NVIDIA L40S")
    fake_driver.card(1)
    findings = examine(fake_driver.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_IDS"})
    found(findings, "warning", "CUDA_DEVICE_ORDER=PCI_BUS_IDS is no order that CUDA knows")
    found(findings, "note", "cards of different models (NVIDIA A100-SXM4-80GB, NVIDIA L40S)")


def test_oddities_of_an_inherited_mask(fake_driver: FakeDriver) -> None:
    fake_driver.card(0)
    fake_driver.card(1)
    findings = examine(fake_driver.environ | {"CUDA_VISIBLE_DEVICES": "0，1"})
    found(findings, "warning", "only an ASCII comma")
    found(findings, "note", "CUDA_VISIBLE_DEVICES=0，1: 1 of 2 cards may be used")
    findings = examine(fake_driver.environ | {"CUDA_VISIBLE_DEVICES": ""})
    found(findings, "error", "CUDA_VISIBLE_DEVICES is set and empty: 0 of 2")
    fake_driver.card(1, name="NVIDIA L40S")
    findings = examine(fake_driver.environ | {"CUDA_VISIBLE_DEVICES": "1"})
    found(findings, "error", "different models")


def test_who_holds_a_lease_and_who_holds_it_while_stopped(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, bus="0000ffff:EE:1E.0")
    key = "ffff:ee:1e.0"
    code = f"from gpulaunch.gpus.lease import take; lease = take({key!r}); print(1, flush=True); "
    holder = subprocess.Popen(
        [sys.executable, "-c", code + "input()"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder, ExitStack() as ending:
        ending.callback(holder.kill)
        assert holder.stdout is not None
        assert holder.stdout.readline()
        findings = examine(fake_driver.environ)
        found(findings, "note", f"GPU 0 is leased by {user()} (pid {holder.pid}")
        holder.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(holder.pid))
        # Other tests' leases are this machine's as well.
        findings = examine(fake_driver.environ)
        stopped = found(findings, "warning", "GPU 0 is leased by a stopped process")
        assert stopped.advice == f"fg in its terminal or kill -CONT {holder.pid} continues it"
        (row,) = table(fake_driver)
        assert f"(pid {holder.pid}, stopped: {stopped.advice})" in str(row["lease"])


def user() -> str:
    from gpulaunch.base.files import user_name

    return user_name(os.getuid())


def test_the_lease_directory(fake_driver: FakeDriver, tmp_path: Path) -> None:
    there = fake_driver.environ | {"GPULAUNCH_LEASE_DIR": str(tmp_path)}
    found(examine(there), "ok" if not os.getuid() else "warning", str(tmp_path))
    gone = fake_driver.environ | {"GPULAUNCH_LEASE_DIR": "/nonexistent"}
    found(examine(gone), "error", "GPULAUNCH_LEASE_DIR=/nonexistent is not a directory")


def test_a_container_without_a_lease_directory_is_warned_of(tmp_path: Path) -> None:
    assert list(doctor.containers({}, str(tmp_path))) == []
    (tmp_path / ".dockerenv").touch()
    (finding,) = doctor.containers({}, str(tmp_path))
    assert "GPULAUNCH_LEASE_DIR" in finding.advice
    assert list(doctor.containers({"GPULAUNCH_LEASE_DIR": "/x"}, str(tmp_path))) == []
