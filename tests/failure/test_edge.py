"""What is read at the edge: the log's end, the kernel's counters, the room on disks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulaunch.core.causes import MemoryUse
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.diagnose.failure.edge import Counters, counters, rooms, tail
from gpulaunch.diagnose.failure.evidence import numbers_of

GIB = 1 << 30


def test_the_tail_is_the_last_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {n}\n" for n in range(20_000)))
    text = tail(log)
    assert len(text) <= 64 * 1024
    assert text.endswith("line 19999\n")
    assert text.startswith("line ")
    assert tail(log, 100).count("\n") == 9


def test_a_short_log_is_read_whole(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"\xff first\nlast")
    assert tail(log) == "� first\nlast"


def test_a_line_of_100_mb_costs_no_more_than_its_end(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with open(log, "wb") as file:
        file.truncate(100 << 20)  # Sparse: reads as NULs.
        file.seek(0, os.SEEK_END)
        file.write(b"end of it")
    assert tail(log) == "end of it"


def test_what_is_no_readable_file_has_no_tail(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == ""
    assert tail(tmp_path) == ""
    assert tail("a\0b") == ""
    (tmp_path / "empty").touch()
    assert tail(tmp_path / "empty") == ""


def test_a_fifo_stops_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert tail(tmp_path / "fifo") == ""


# ── The kernel ──────────────────────────────────────────────────────────────────────────────────


def _proc(path: Path, cgroup: str, oom: str = "oom_kill 7\n") -> Path:
    (path / "self").mkdir(parents=True)
    (path / "vmstat").write_text(f"nr_free_pages 9\n{oom}")
    (path / "self/cgroup").write_text(cgroup)
    return path


def _file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/user.slice/a\n", "user.slice/a/memory.events", "oom 4\noom_kill 3\n"),
        ("0::/../b\n", "memory.events", "oom_kill 3\n"),
        ("0::/host/only\n", "memory.events", "oom_kill 3\n"),
        (
            "9:cpu:/x\n4:memory:/docker/1\n0::/x\n",
            "memory/docker/1/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        ),
        ("4:memory:/docker/1\n", "memory/memory.oom_control", "oom_kill 3\n"),
    ],
)
def test_the_cgroups_counter_is_found(tmp_path: Path, cgroup: str, file: str, text: str) -> None:
    _file(tmp_path / "sys" / file, text)
    assert counters(_proc(tmp_path / "proc", cgroup), tmp_path / "sys") == Counters(7, 3)


def test_what_the_kernel_does_not_tell_is_unknown(tmp_path: Path) -> None:
    assert counters(tmp_path / "proc", tmp_path / "sys") == Counters(None, None)
    proc = _proc(tmp_path / "other", "\0\xff::\n", oom="")
    assert counters(proc, tmp_path / "sys") == Counters(None, None)


def test_this_machine_is_read() -> None:
    now = counters()
    assert now.host is None or now.host >= 0
    assert not (now - now).rose


def test_only_a_known_rise_is_a_rise() -> None:
    assert Counters(5, 2) - Counters(4, 2) == Counters(1, 0)
    assert (Counters(5, 2) - Counters(4, 2)).rose
    assert Counters(5, None) - Counters(None, 1) == Counters(None, None)
    assert not (Counters(5, None) - Counters(None, 1)).rose
    assert Counters(1, 1) - Counters(4, 4) == Counters(0, 0)


def test_room_is_told_once_a_file_system(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    found = rooms([str(tmp_path), str(tmp_path / "in"), "/does/not/exist", "a\0b"])
    assert [room.path for room in found] == [str(tmp_path)]
    assert found[0].free > 0


# ── Numbers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        ("", MemoryUse()),
        ("Tried to allocate 512.00 MiB", MemoryUse(GIB // 2)),
        ("Out of memory while trying to allocate 1073741824 bytes.", MemoryUse(GIB)),
        ("allocating 1024.00 MiB on device 0: cudaMalloc failed", MemoryUse(GIB)),
        (
            "Tried to allocate 1.00 GiB. GPU 0 has a total capacty of 4.00 GiB of which 0 bytes is "
            "free. Including non-PyTorch memory, this process has 3.00 GiB memory in use.",
            MemoryUse(GIB, 4 * GIB, 3 * GIB),
        ),
        (
            "GPU 0 has a total capacity of 4.00 GiB of which 0 bytes is free. Process 5 has "
            "3.00 GiB memory in use. Process 6 has 1.00 GiB memory in use.",
            MemoryUse(None, 4 * GIB, 3 * GIB, GIB, (6,)),
        ),
        (
            "(GPU 0; 8.00 GiB total capacity; 1.00 GiB already allocated; 0 bytes free; 1.50 GiB "
            "reserved in total by PyTorch)",
            MemoryUse(None, 8 * GIB, None, 5 * GIB),
        ),
        (
            "(GPU 0; 8.00 GiB total capacity; 6.00 GiB already allocated; 0 bytes free; 1.00 GiB "
            "cached)",
            MemoryUse(None, 8 * GIB, None, 0),
        ),
        (
            "Free memory on device cuda:0 (2.0/8.0 GiB) on startup is less than desired GPU memory",
            MemoryUse(None, 8 * GIB, None, 6 * GIB),
        ),
    ],
)
def test_a_messages_numbers(message: str, numbers: MemoryUse) -> None:
    assert numbers_of(message) == numbers


def test_numbers_in_words() -> None:
    assert advice((MemoryUse(),)) == ""
    assert advice((MemoryUse(total=GIB),)) == "The card has 1 GiB."
