"""A log as it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.observe.top import screens as logs
from gpulaunch.observe.top.screens import LogTail


def test_a_log_that_is_not_there_yet_is_read_once_it_is(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "a.1.log")
    assert not tail.look()
    assert tail.absent
    (tmp_path / "a.1.log").write_bytes("näme\n".encode()[:2])
    assert tail.look()
    with (tmp_path / "a.1.log").open("ab") as file:
        file.write("näme\n".encode()[2:] + b"half")
    assert tail.look()
    assert (list(tail.lines), tail.rest, tail.absent) == (["näme"], "half", False)
    assert not tail.look()
    tail.close()


def test_of_a_long_log_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BEGIN", 100)
    path = tmp_path / "a.1.log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(1000)))
    tail = LogTail(path)
    tail.look()
    assert tail.cut
    assert tail.lines[-1] == "line 999"
    assert len(tail.lines) < 20
    path.unlink()
    assert not tail.look()
    tail.close()
