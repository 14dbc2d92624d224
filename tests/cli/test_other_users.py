"""Runs of other users, in a directory that several share: looked at, never executed."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.cli.launcher import UNTIL_GO, Launcher

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a run away")
FAILS = "jobs:\n  - {name: a, run: 'echo x >> ran; false'}\n"


@pytest.fixture
def shared(launcher: Launcher) -> Launcher:
    """A directory with a run that belongs to another user, in which one job failed."""
    launcher.file("jobs.yaml", FAILS)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    os.chown(launcher.run, NOBODY, NOBODY)
    (launcher.path / "ran").unlink()
    return launcher


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("command", [["resume"], ["retry"], ["retry", "--dry-run"]])
def test_nothing_is_executed_from_the_run_of_another_user(
    shared: Launcher, command: list[str], named: bool
) -> None:
    done = shared(*command, *(["-r", str(shared.run)] if named else ()))
    assert done.status == 2
    assert f"{shared.run} belongs to nobody, and you are root" in done.err
    assert not (shared.path / "ran").exists()


@pytest.mark.parametrize("options", [[], ["--continue"]])
def test_a_file_that_another_user_has_run_is_begun_anew(
    shared: Launcher, options: list[str]
) -> None:
    theirs = shared.run
    done = shared("run", "jobs.yaml", "--simulate", "1", *options)
    assert done.status == 1
    assert shared.run != theirs
    assert (shared.path / "ran").read_text() == "x\n"


def test_a_run_of_another_user_can_still_be_looked_at(shared: Launcher) -> None:
    assert "1 failed" in shared("status").out
    assert shared("logs", "a").status == 0


def test_the_id_of_a_live_run_in_another_user_s_directory_is_not_believed(
    launcher: Launcher,
) -> None:
    launcher.file("jobs.yaml", f"jobs:\n  - {{name: a, run: '{UNTIL_GO}'}}\n")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        false = launcher.path / "false" / "gpulaunch-runs" / "x"
        shutil.copytree(launcher.run, false, symlinks=True)
        manifest = (false / "manifest.json").read_text()
        (false / "manifest.json").write_text(manifest.replace(str(launcher.run), str(false)))
        os.chown(false, NOBODY, NOBODY)
        done = launcher("cancel", "-r", false, "--all")
        assert done.status == 2
        assert f"{false} is not alive: it has the id of the run in {launcher.run}" in done.err
        (launcher.path / "go").touch()
        assert process.wait(60) == 0


def test_no_run_is_begun_in_a_directory_that_another_user_may_change(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", FAILS)
    theirs, open_to_all, empty = (launcher.path / name for name in ("theirs", "open", "empty"))
    for directory in (theirs, open_to_all, empty):
        directory.mkdir()
        directory.chmod(0o777)
    os.chown(theirs, NOBODY, NOBODY)
    (open_to_all / "file").touch()
    run = ["run", "jobs.yaml", "--new", "--simulate", "1", "--run-dir"]
    assert f"{theirs} belongs to nobody" in launcher(*run, theirs).err
    assert f"other users may change {open_to_all}" in launcher(*run, open_to_all).err
    assert not (launcher.path / "ran").exists()
    assert launcher(*run, empty).status == 1
    assert empty.stat().st_mode & 0o777 == 0o700
