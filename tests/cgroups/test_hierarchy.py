"""How much memory this process may use, and where it is: pretend kernels of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.base.cgroups import find, memory_available, memory_of_machine
from tests.cgroups.fake import FakeKernel

ALL = 1_000_000 * 1024
UNLIMITED = "9223372036854771712"


@pytest.mark.parametrize("version", [1, 2])
def test_the_smallest_limit_above_counts(tmp_path: Path, version: int) -> None:
    kernel = FakeKernel(tmp_path, version, "/slice/session")
    kernel.group("slice", "500000000")
    kernel.group("slice/session", "700000000")
    assert memory_of_machine(kernel.proc) == 500_000_000


@pytest.mark.parametrize(("version", "none"), [(1, UNLIMITED), (2, "max")])
def test_without_a_limit_it_is_all_that_the_machine_has(
    tmp_path: Path, version: int, none: str
) -> None:
    kernel = FakeKernel(tmp_path, version, "/slice")
    kernel.group("slice", none)
    assert memory_of_machine(kernel.proc) == ALL


@pytest.mark.parametrize(
    ("version", "current", "cache"),
    [(1, "memory.usage_in_bytes", "total_inactive_file"), (2, "memory.current", "inactive_file")],
)
def test_what_a_cgroup_leaves_is_what_is_available(
    tmp_path: Path, version: int, current: str, cache: str
) -> None:
    kernel = FakeKernel(tmp_path, version, "/slice")
    (kernel.proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 700 kB\n")
    own = kernel.group("slice", "max")
    assert memory_available(kernel.proc) == 700 * 1024
    kernel.group("slice", "500000")
    (own / current).write_text("450000\n")
    (own / "memory.stat").write_text(f"anon 1\n{cache} 100000\n")
    assert memory_available(kernel.proc) == 150_000


def test_a_cgroup_that_is_not_to_be_seen_is_the_mounts_own(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2, "/docker/abc", root="/docker/abc/inner")
    kernel.group(".", "300000000")
    assert memory_of_machine(kernel.proc) == 300_000_000


def test_a_part_of_the_hierarchy_may_be_mounted(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 1, "/docker/abc/job", root="/docker/abc")
    own = kernel.group("job", "200000000")
    found = find(kernel.proc)
    assert found is not None
    assert (found.version, found.own) == (1, own)
    assert memory_of_machine(kernel.proc) == 200_000_000


def test_a_mount_whose_name_has_a_space_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    kernel = FakeKernel(path, 2, "/one")
    own = kernel.group("one", "100000000")
    found = find(kernel.proc)
    assert found is not None
    assert found.own == own


def test_a_second_version_without_memory_limits_none(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2, "/one")
    kernel.group("one", "100", controllers=["pids"])
    assert find(kernel.proc) is None
    assert memory_of_machine(kernel.proc) == ALL


def test_a_kernel_that_tells_nothing_limits_nothing(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    assert memory_of_machine(tmp_path) is None


def test_this_machine_tells_its_memory() -> None:
    found = memory_of_machine()
    assert found is not None
    assert found > 64 << 20
