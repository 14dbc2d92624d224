"""`clean` killed before each of its changes, and where it may not remove: every run stays readable.

A child of the test process has the command, with a hook that ends it by SIGKILL.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpulaunch.cli import main
from gpulaunch.cli.status import report, status
from gpulaunch.journal.removal import REMOVED
from tests.cli.launcher import Launcher

CHANGES = frozenset({"os.rename", "os.remove", "os.rmdir", "os.symlink", "os.chmod", "os.truncate"})
"""What Python tells its audit hooks of before it asks the kernel."""
JOBS = """
jobs:
  - name: a
    retries: 1
    run: 'echo x > {{out}}/x; mkdir {{out}}/d; echo y > {{out}}/d/y; test {{attempt}} = 2'
"""
NOBODY = 65534


def called(cwd: Path, *argv: str, kill_at: int | None = None, uid: int | None = None) -> int:
    """The wait status of the command in a child, which dies before its `kill_at`th change."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            os.chdir(cwd)
            out = os.open(cwd / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            if uid is not None:
                os.seteuid(uid)
            if kill_at is not None:
                sys.addaudithook(_killing(kill_at))
            status = main(argv)
            sys.stdout.flush()
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1]


def _killing(at: int) -> Callable[[str, Sequence[Any]], None]:
    left = iter(range(at, -1, -1))

    def hear(event: str, arguments: Sequence[Any]) -> None:
        if event in CHANGES and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hear


def said(cwd: Path) -> str:
    return (cwd / "said").read_text()


@pytest.fixture
def runs(launcher: Launcher) -> Path:
    """Two runs, each with superseded attempts. What is under `saved` is how they were."""
    launcher.file("jobs.yaml", JOBS)
    for _ in range(2):
        done = launcher("run", "jobs.yaml", "--simulate", "2", "-q", "--new")
        assert done.status == 0, done.err
    place = launcher.path / "gpulaunch-runs"
    shutil.copytree(place, launcher.path / "saved", symlinks=True)
    return place


def again(runs: Path) -> None:
    """Put the runs back as they were."""
    shutil.rmtree(runs)
    shutil.copytree(runs.parent / "saved", runs, symlinks=True)


def found(place: Path) -> list[Path]:
    return [one for one in place.iterdir() if not (one.is_symlink() or one.name.startswith("."))]


def reads_well(place: Path) -> None:
    """Every run reads as ever, and nothing that is half there is taken for one."""
    for run in found(place):
        told = CliRunner().invoke(status, [str(run), "--json"])
        assert told.exit_code == 0, (run, told.output)
        assert '"state": "succeeded"' in told.output
        assert CliRunner().invoke(report, [str(run)]).exit_code == 0
        assert (run / "results" / "a" / "x").read_text() == "x\n"
    if found(place):
        # By the command line, which finds runs: a half one among them would be the newest.
        assert called(place.parent, "resume", "--dry-run", "--simulate", "2") == 0, said(
            place.parent
        )


def nothing_hidden(place: Path) -> None:
    assert list(place.rglob(f"{REMOVED}*")) == []


@pytest.mark.parametrize("argv", [(), ("--runs", "--keep", "1"), ("--runs",)], ids=str)
def test_killed_before_any_change_no_run_is_unreadable_and_the_next_finishes(
    runs: Path, argv: tuple[str, ...]
) -> None:
    for kill_at in count():
        again(runs)
        status = called(runs.parent, "clean", *argv, kill_at=kill_at)
        if os.WIFEXITED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        reads_well(runs)
        assert called(runs.parent, "clean", *argv) == 0, said(runs.parent)
        nothing_hidden(runs)
        latest = runs / "latest"
        assert not latest.is_symlink() or latest.exists(), f"latest dangles after {kill_at}"
        assert latest.exists() == bool(found(runs))
    assert status == 0
    assert kill_at > 8, "the hook heard of too little"


# ── Where it may not remove ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def of_nobody(runs: Path) -> Iterator[Path]:
    """The runs as another user's, where that user may reach them."""
    if os.geteuid() != 0:
        pytest.skip("root alone may make files of others")
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        os.chmod(top, 0o755)
        place = Path(top) / "proj" / "gpulaunch-runs"
        shutil.copytree(runs, place, symlinks=True)
        for path in (place.parent, place, *place.rglob("*")):
            os.lchown(path, NOBODY, NOBODY)
        yield place


def roots_file_in(directory: Path) -> Path:
    """What a container left that ran as root."""
    (directory / "cache").mkdir()
    (directory / "cache" / "f").write_text("x")
    os.chmod(directory / "cache", 0o755)
    return directory / "cache"


def test_files_of_root_are_told_in_a_line_and_the_rest_goes(of_nobody: Path) -> None:
    one, other = sorted(found(of_nobody))
    theirs = roots_file_in(one / "out" / "a.1")
    status = called(of_nobody.parent, "clean", uid=NOBODY)
    text = said(of_nobody.parent)
    assert os.waitstatus_to_exitcode(status) == 1, text
    assert text.count(f"{theirs} holds files and belongs to root") == 1, text
    assert {path.name for path in (one / "out").iterdir()} == {"a.1", "a.2"}
    assert {path.name for path in (other / "out").iterdir()} == {"a.2"}
    assert (one / "out" / "a.1" / "x").exists(), "nothing of it is half removed"
    status = called(of_nobody.parent, "clean", "--runs", uid=NOBODY)
    assert os.waitstatus_to_exitcode(status) == 1
    assert found(of_nobody) == [one]


def test_what_is_protected_from_its_own_user_goes(of_nobody: Path) -> None:
    one, other = sorted(found(of_nobody))
    os.chmod(one / "out" / "a.1" / "d", 0o500)
    os.chmod(other / "out" / "a.1" / "d", 0)
    assert called(of_nobody.parent, "clean", uid=NOBODY) == 0, said(of_nobody.parent)
    for run in (one, other):
        assert {path.name for path in (run / "out").iterdir()} == {"a.2"}


def test_runs_in_a_directory_that_may_not_be_written_are_left(of_nobody: Path) -> None:
    os.lchown(of_nobody, 0, 0)
    os.chmod(of_nobody, 0o755)
    status = called(of_nobody.parent, "clean", "--runs", uid=NOBODY)
    text = said(of_nobody.parent)
    assert os.waitstatus_to_exitcode(status) == 1
    assert text.count("cannot be removed: Permission denied") == 2
    assert len(found(of_nobody)) == 2
    assert called(of_nobody.parent, "clean", uid=NOBODY) == 0, "what lies deeper goes"
