"""The file that takes an attempt's end: laid out, torn, written."""

from __future__ import annotations

import binascii
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import (
    Cancelled,
    End,
    Exited,
    Instant,
    Interrupted,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    Stopped,
    TimedOut,
)
from gpulaunch.journal.ends import EndRecord, read_end

RECORD: dict[str, Any] = {
    "attempt": "fold-ä.3",
    "pid": 4711,
    "status": 0,
    "cause": None,
    "by": "",
    "seconds": None,
    "missing": [],
    "error": None,
    "leftovers": 2,
    "started": [1.5, 100.5],
    "ended": [2.5, 101.5],
}


def written(path: Path, **changes: Any) -> Path:
    return written_as(path, json.dumps(RECORD | changes).encode())


def written_as(path: Path, line: bytes) -> Path:
    text = b"%08x %s\n" % (binascii.crc32(line), line)
    path.write_bytes(text.ljust(8192, b"\0"))
    return path


def test_a_written_end_is_read_with_its_times(tmp_path: Path) -> None:
    record = EndRecord(
        "fold-ä.3", End(Exited(0), None, 2, Instant(1.5, 100.5), Instant(2.5, 101.5)), 4711
    )
    assert read_end(written(tmp_path / "end")) == record


def test_kills_for_want_of_memory_are_read_where_they_were_counted(tmp_path: Path) -> None:
    record = read_end(written(tmp_path / "end", oom_kills=3))
    assert record is not None
    assert record.oom_kills == 3


def test_a_full_disk_is_told_by_the_errors_kind_and_older_records_have_none(tmp_path: Path) -> None:
    english = {"status": None, "error": "cannot lay out e: No space left on device"}
    for kind, full in (({"kind": "no_space"}, True), ({"kind": None}, False), ({}, False)):
        record = read_end(written(tmp_path / "end", **english, **kind))
        assert record is not None
        assert record.end.outcome == NotStarted("cannot lay out e: No space left on device")
        assert record.no_space is full


def test_a_laid_out_or_empty_file_is_no_end(tmp_path: Path) -> None:
    (tmp_path / "laid-out").write_bytes(bytes(8192))
    (tmp_path / "empty").write_bytes(b"")
    assert read_end(tmp_path / "laid-out") is None
    assert read_end(tmp_path / "empty") is None


def test_an_end_torn_at_any_byte_is_no_end(tmp_path: Path) -> None:
    whole = written(tmp_path / "end").read_bytes()
    length = whole.index(b"\n")
    for cut in range(length):
        (tmp_path / "end").write_bytes(whole[:cut].ljust(8192, b"\0"))
        assert read_end(tmp_path / "end") is None
    for spot in range(length):
        flipped = bytearray(whole)
        flipped[spot] ^= 1
        (tmp_path / "end").write_bytes(flipped)
        assert read_end(tmp_path / "end") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "0"},
        {"status": 1e999},
        {"status": 1 << 40},
        {"status": 100},
        {"status": -1},
        {"leftovers": "many"},
        {"leftovers": 1 << 70},
        {"pid": [1]},
        {"oom_kills": None},
        {"attempt": 3},
        {"ended": None},
        {"ended": ["a", "b"]},
        {"ended": [1.0, float("nan")]},
        {"ended": [1.0, 1e300]},
        {"started": [1.0]},
        {"started": {"mono": 1}},
        {"cause": "timeout", "seconds": "\x1b[2J"},
        {"cause": "interrupted", "by": {}},
        {"error": ["no"]},
        {"missing": [1]},
    ],
)
def test_what_no_keeper_writes_is_no_end(tmp_path: Path, changes: Any) -> None:
    assert read_end(written(tmp_path / "end", **changes)) is None


@pytest.mark.parametrize("line", [b"null", b"[]", b"{}", b"7", b"[" * 100_000, b'{"a": 1' * 9999])
def test_what_is_no_record_is_no_end(tmp_path: Path, line: bytes) -> None:
    assert read_end(written_as(tmp_path / "end", line)) is None


def test_of_a_file_without_an_end_only_the_beginning_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "end", "wb") as file:
        file.truncate(1 << 40)
    assert read_end(tmp_path / "end") is None


def test_an_absent_end_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_end(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"status": 3 << 8}, Exited(3)),
        ({"status": 11}, Signaled(signal.SIGSEGV)),
        ({"status": 128 + 6}, Signaled(signal.SIGABRT)),  # with a core dump
        ({"status": 15, "cause": "cancelled"}, Cancelled(Signaled(15))),
        ({"status": None, "cause": "cancelled"}, Cancelled(None)),
        ({"status": 0, "cause": "stopped"}, Stopped(Exited(0))),
        (
            {"status": 9, "cause": "interrupted", "by": "you"},
            Interrupted(Quoted("you"), Signaled(9)),
        ),
        ({"status": 9, "cause": "timeout", "seconds": 2.5}, TimedOut("timeout", 2.5, Signaled(9))),
        ({"status": 127 << 8, "error": "there is no program"}, NotStarted("there is no program")),
        ({"missing": ["a", "b"]}, MissingOutput(("a", "b"), Exited(0))),
    ],
)
def test_every_outcome_is_read(tmp_path: Path, changes: Any, outcome: Outcome) -> None:
    record = read_end(written(tmp_path / "end", **changes))
    assert record is not None
    assert record.end.outcome == outcome
