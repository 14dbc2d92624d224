"""The waiting that the suites share: processes that end while a condition looks at them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.helpers import wait_until


def ended() -> int:
    """The number of a process that has ended and was waited for."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def by_psutil(pid: int) -> object:
    return psutil.Process(pid).children()


def by_number(pid: int) -> object:
    return os.getsid(pid)


def by_file(pid: int) -> object:
    return Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.parametrize("look", [by_psutil, by_number, by_file])
def test_a_look_at_a_process_that_has_just_ended_is_repeated(look: Callable[[int], object]) -> None:
    pids = iter([ended(), os.getpid()])
    assert wait_until(lambda: (look(next(pids)), "there"))[1] == "there"


def test_a_process_that_stays_away_is_the_cause_that_is_shown() -> None:
    pid = ended()
    with pytest.raises(AssertionError, match="its end") as caught:
        wait_until(lambda: by_file(pid), 0.01, "its end")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_missing_file_is_no_process(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        wait_until((tmp_path / "file").read_text)
