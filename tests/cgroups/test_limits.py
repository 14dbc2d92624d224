"""Where cgroups may be made, what is written there, and what is removed; then the real kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.base import cgroups as limits
from gpulaunch.base.cgroups import RunCgroups, Unlimited, find, left_in, place_of
from gpulaunch.engines.local.memory_limits import opened_for
from tests.cgroups.fake import FakeKernel

USER = "user.slice/user-1000.slice"
MANAGER = f"{USER}/user@1000.service"
EATS = "x = bytearray(1 << 30); print(len(x))"


@pytest.fixture
def writable(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """The cgroups that are this user's to write, whoever runs the tests; below them, all are."""
    allowed: set[Path] = set()

    def access(path: object, mode: int) -> bool:
        asked = Path(str(path))
        return any(asked == one or one in asked.parents for one in allowed)

    monkeypatch.setattr(limits.os, "access", access)
    return allowed


def place(kernel: FakeKernel) -> Path | Unlimited:
    return place_of(find(kernel.proc))


def test_in_the_first_version_the_place_is_the_own_cgroup(
    tmp_path: Path, writable: set[Path]
) -> None:
    kernel = FakeKernel(tmp_path, 1, "/one")
    own = kernel.group("one")
    assert isinstance(place(kernel), Unlimited)
    writable.add(own)
    assert place(kernel) == own


def test_in_the_second_it_is_above_as_only_leaves_have_processes(
    tmp_path: Path, writable: set[Path]
) -> None:
    kernel = FakeKernel(tmp_path, 2, f"/{MANAGER}/app.slice/run-7.scope")
    manager = kernel.group(MANAGER, handed_on=["memory"])
    above = kernel.group(f"{MANAGER}/app.slice", handed_on=["memory", "pids"])
    kernel.group(f"{MANAGER}/app.slice/run-7.scope")
    writable.add(manager)
    assert place(kernel) == above


def test_a_place_that_may_hand_on_memory_is_told_to(tmp_path: Path, writable: set[Path]) -> None:
    kernel = FakeKernel(tmp_path, 2, f"/{MANAGER}/app.slice/run-7.scope")
    writable.add(kernel.group(MANAGER, handed_on=["memory"]))
    above = kernel.group(f"{MANAGER}/app.slice")
    kernel.group(f"{MANAGER}/app.slice/run-7.scope")
    assert place(kernel) == above
    assert (above / "cgroup.subtree_control").read_text() == "+memory"


def test_who_may_not_move_processes_there_has_no_place(tmp_path: Path, writable: set[Path]) -> None:
    """A session's scope is beside the manager's cgroups: only systemd moves processes across."""
    kernel = FakeKernel(tmp_path, 2, f"/{USER}/session-3.scope")
    kernel.group(USER, handed_on=["memory"])
    kernel.group(f"{USER}/session-3.scope")
    writable.add(kernel.group(MANAGER, handed_on=["memory"]))
    found = place(kernel)
    assert isinstance(found, Unlimited)
    assert "systemd-run --user --scope gpulaunch run" in found.advice


def test_no_job_is_put_outside_of_a_limit_that_gpulaunch_is_under(
    tmp_path: Path, writable: set[Path]
) -> None:
    """As a launcher inside a job of another launcher is."""
    kernel = FakeKernel(tmp_path, 2, "/gpulaunch-outer/job-a.1")
    kernel.group("gpulaunch-outer", handed_on=["memory"])
    kernel.group("gpulaunch-outer/job-a.1", "2000000")
    writable.add(kernel.mount)
    found = place(kernel)
    assert isinstance(found, Unlimited)
    assert "job-a.1 limits gpulaunch itself" in found.why


def test_a_container_with_a_cgroup_of_its_own_alone_has_no_place(
    tmp_path: Path, writable: set[Path]
) -> None:
    kernel = FakeKernel(tmp_path, 2, "/")
    writable.add(kernel.mount)
    found = place(kernel)
    assert isinstance(found, Unlimited)
    assert "systemd-run" not in found.advice


def test_the_second_versions_files_get_the_limit(tmp_path: Path) -> None:
    cgroups = RunCgroups(tmp_path, "run", 2)
    directory = tmp_path / "gpulaunch-run" / "job-a.1"
    directory.mkdir(parents=True)
    for name in ("memory.max", "memory.swap.max", "memory.oom.group"):
        (directory / name).touch()
    cgroups.make("a.1", 1000)
    written = {path.name: path.read_text() for path in directory.iterdir()}
    assert written == {"memory.max": "1000", "memory.swap.max": "0", "memory.oom.group": "1"}
    (directory / "memory.peak").write_text("990\n")
    (directory / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert cgroups.used("a.1") == limits.UsedMemory(1000, 990, 2)


def test_a_kernel_without_a_count_of_the_peak_tells_none(tmp_path: Path) -> None:
    cgroups = RunCgroups(tmp_path, "run", 2)
    directory = tmp_path / "gpulaunch-run" / "job-a.1"
    directory.mkdir(parents=True)
    (directory / "memory.max").touch()
    cgroups.make("a.1", 1000)
    assert cgroups.used("a.1") == limits.UsedMemory(1000, None, 0)
    assert cgroups.used("b.1") is None


def test_what_killed_runs_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("gpulaunch-gone/job-a.1", "gpulaunch-alive/job-a.1", "other/job-a.1"):
        (tmp_path / name).mkdir(parents=True)
    busy = tmp_path / "gpulaunch-busy" / "job-a.1"
    busy.mkdir(parents=True)
    (busy / "a process").touch()  # rmdir fails, as it does in a cgroup with a process
    assert {path.name for path in left_in(tmp_path, ["alive"])} == {
        "gpulaunch-gone",
        "gpulaunch-busy",
    }
    limits.remove_left(tmp_path, ["alive"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "gpulaunch-alive",
        "gpulaunch-busy",
        "other",
    }
    assert (tmp_path / "gpulaunch-alive" / "job-a.1").exists()


# ── The real kernel, where this user may have cgroups ───────────────────────────────────────────


@pytest.fixture
def real() -> Iterator[RunCgroups]:
    opened = opened_for(f"exec-{os.getpid()}")  # as of a process that lives: nobody removes it
    if isinstance(opened, Unlimited):
        pytest.skip(opened.why)
    yield opened
    opened.close()
    assert not opened.directory.exists()


def entering(cgroups: RunCgroups, name: str, program: str) -> subprocess.CompletedProcess[str]:
    line = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', cgroups.procs(name)]
    return subprocess.run(
        [*line, sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def test_who_takes_more_is_killed_and_the_count_says_so(real: RunCgroups) -> None:
    real.make("wide.1", 200_000_000)
    real.make("fine.1", 200_000_000)
    assert entering(real, "wide.1", EATS).returncode == -9
    assert entering(real, "fine.1", "print('fine')").stdout == "fine\n"
    wide, fine = real.used("wide.1"), real.used("fine.1")
    assert wide is not None
    assert fine is not None
    assert wide.kills == 1
    assert fine.kills == 0
    assert wide.peak is None or wide.peak > 150_000_000
    real.remove("wide.1")
    assert real.used("wide.1") is None


def test_a_cgroup_with_a_process_stays_until_that_is_gone(real: RunCgroups) -> None:
    real.make("a.1", 200_000_000)
    line = ["sh", "-c", 'echo 0 > "$0" && echo in && exec cat', real.procs("a.1")]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        real.close()
        assert real.directory.exists()
