"""What a job put in the place of a file that gpulaunch reads or writes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import is_regular, may, out_of_reach, read_bytes, regular, replace
from gpulaunch.diagnose.failure.edge import tail
from gpulaunch.engines.slurm.node_files import last_beat, read_start
from gpulaunch.journal import manifest
from gpulaunch.journal.append import Journal
from gpulaunch.journal.ends import read_end
from gpulaunch.journal.joblog import JobLog
from gpulaunch.journal.liveness import state_of
from gpulaunch.journal.read import replay
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.metrics.read import open_metrics
from gpulaunch.observe.metrics.store import Store
from gpulaunch.observe.present.tail import read_tail
from gpulaunch.observe.top.screens import LogTail


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


MADE: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "directory": os.mkdir,
    "socket": a_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to a fifo": lambda path: (os.mkfifo(f"{path}.fifo"), path.symlink_to(f"{path}.fifo"))[1],
    "link to itself": lambda path: path.symlink_to(path),
}


@pytest.fixture(params=MADE)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path where something stands that is no regular file."""
    path = tmp_path / "x"
    MADE[request.param](path)
    return path


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREAT])
def test_only_regular_files_are_opened_and_nothing_is_waited_for(odd: Path, flags: int) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=r".") as error:
        regular(odd, flags)
    assert error.value.strerror
    assert error.value.filename == odd or str(odd) in str(error.value.filename)
    assert os.listdir("/proc/self/fd") == before
    assert not is_regular(odd)


def test_a_regular_file_is_opened_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "x"
    fd = regular(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"abc")
    os.close(fd)
    assert read_bytes(path) == b"abc"
    assert is_regular(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_is_replaced_whatever_stood_there(odd: Path) -> None:
    if odd.is_dir():
        with pytest.raises(IsADirectoryError):
            replace(odd, b"abc")
    else:
        replace(odd, b"abc")
        assert read_bytes(odd) == b"abc"
    assert not list(odd.parent.glob(".new-*"))


def test_drafts_of_two_processes_are_never_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system may be shared: on two machines they may even have the same pid."""
    drafts: list[object] = []
    monkeypatch.setattr(os, "replace", lambda draft, path: drafts.append(draft))
    for _ in range(2):
        replace(tmp_path / "x", b"abc", durable=True)
    assert len(set(drafts)) == 2


def test_readers_of_logs_find_nothing_there(odd: Path) -> None:
    assert read_tail(odd) == ()
    assert tail(odd) == ""
    log = LogTail(odd)
    assert not log.look()
    assert log.absent


def test_what_keepers_and_nodes_left_is_not_waited_for(odd: Path) -> None:
    for read in (read_end, read_start):
        with pytest.raises(OSError, match=r"."):
            read(odd)
    assert last_beat(odd) is None


def test_a_file_without_a_bound_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "x", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than 256 MiB"):
        read_bytes(tmp_path / "x")


def test_a_manifest_that_is_no_file_is_one_line(odd: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        manifest.read(odd)


def test_metrics_that_are_no_file_are_none(odd: Path) -> None:
    assert open_metrics(odd) is None
    told: list[str] = []
    store = Store(odd, told.append)
    assert not store.write([[("nothing", {})]], 0.0)
    store.close()
    assert len(told) == 1


def test_a_joblog_that_is_no_file_costs_its_rows_at_most(odd: Path) -> None:
    JobLog(odd, lambda name: "").close()
    assert is_regular(odd) or odd.is_dir()


@pytest.mark.parametrize("made", MADE)
def test_a_journal_that_is_no_file_is_one_line(made: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    MADE[made](run.events)
    for look in (lambda: replay(run.events), lambda: state_of(run), lambda: Journal.reopen(run)):
        with pytest.raises(UsageError, match=r"cannot be (read|written)"):
            look()


# ── What a user may reach ───────────────────────────────────────────────────────────────────────

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may be somebody else for a while")


@contextmanager
def another_user(real: int = -1, effective: int = -1) -> Iterator[None]:
    os.setreuid(real, effective)
    try:
        yield
    finally:
        os.setreuid(0, 0)


@as_root
def test_the_directory_that_may_not_be_entered_is_named() -> None:
    with TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        shut = Path(made) / "shut"
        (shut / "sub").mkdir(parents=True)
        (Path(made) / "link").symlink_to(shut / "sub")
        shut.chmod(0o700)
        for path in (shut / "sub", Path(made) / "link" / "file"):
            assert not out_of_reach(path)
            with another_user(effective=65534):
                assert not out_of_reach(shut)
                assert out_of_reach(path) == f"this user may not enter {shut}"


@as_root
def test_rights_count_that_the_user_s_name_does_not_give(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with another_user(real=65534):
        assert may(tmp_path, os.X_OK)
        assert not os.access(tmp_path, os.X_OK)
    with another_user(effective=65534):
        assert not may(tmp_path, os.X_OK)
