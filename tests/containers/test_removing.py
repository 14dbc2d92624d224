"""Whether a container is somebody's, as its record's lock says."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import IO

import pytest

from gpulaunch.containers.removing import RECORD, is_held


def as_on_nfs(file: IO[bytes], operation: int) -> None:
    """The kernel's own rule for flock there: an exclusive lock is that of who may write."""
    if operation & fcntl.LOCK_EX and not file.writable():
        raise OSError(errno.EBADF, "Bad file descriptor")
    real(file, operation)


real = fcntl.flock


@pytest.mark.parametrize("nfs", [False, True])
def test_a_record_is_held_while_its_carrier_lives(
    tmp_path: Path, nfs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / RECORD).write_text("{}")
    if nfs:
        monkeypatch.setattr(fcntl, "flock", as_on_nfs)
    assert not is_held(str(tmp_path))
    with open(tmp_path / RECORD, "rb") as carrier:
        fcntl.flock(carrier, fcntl.LOCK_SH)
        assert is_held(str(tmp_path))
    assert not is_held(str(tmp_path))


def test_a_record_that_is_not_there_is_nobodys(tmp_path: Path) -> None:
    assert not is_held(str(tmp_path))
