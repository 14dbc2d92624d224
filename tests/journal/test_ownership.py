"""Nothing is executed from a run that another user owns, or may change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import others_may_write
from gpulaunch.journal import manifest
from gpulaunch.journal.ownership import require_own
from gpulaunch.journal.rundir import RunDir
from gpulaunch.run.options import NOBODY as NO_OBSERVER
from gpulaunch.run.resumption import cancel_left
from tests.journal.made import made

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def refusal(run: RunDir) -> str:
    """What the door says."""
    with pytest.raises(UsageError) as refused:
        require_own(run)
    return str(refused.value)


def test_a_run_as_gpulaunch_makes_it_may_be_executed(tmp_path: Path) -> None:
    umask = os.umask(0)  # whatever the user's is
    try:
        run = made(tmp_path)
    finally:
        os.umask(umask)
    require_own(run)


@as_root
@pytest.mark.parametrize("entry", [".", "events.jsonl", "jobs.yaml", "logs"])
def test_a_run_of_which_another_user_owns_a_part_is_refused(tmp_path: Path, entry: str) -> None:
    run = made(tmp_path)
    run.jobs_file().write_text("jobs: []")
    run.logs.mkdir(exist_ok=True)
    os.chown(run.path / entry, NOBODY, NOBODY)
    said = refusal(run)
    assert said.startswith(f"{run.path / entry} belongs to nobody, and you are root: ")
    assert "Only nobody can go on with it." in said


@as_root
def test_a_link_that_another_user_has_put_into_a_run_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run.path / "manifest.json").unlink(missing_ok=True)
    (run.path / "manifest.json").symlink_to("/dev/null")
    os.chown(run.path / "manifest.json", NOBODY, NOBODY, follow_symlinks=False)
    assert "manifest.json belongs to nobody" in refusal(run)


def test_what_such_a_run_left_in_a_queue_is_not_cancelled(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.path.chmod(0o777)
    with pytest.raises(UsageError, match="other users may change"):
        cancel_left(run, NO_OBSERVER)


def test_a_run_that_everybody_may_change_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.path.chmod(0o777)
    said = refusal(run)
    assert f"other users may change {run.path} (mode 0777)" in said
    assert f"chmod -R go-w {run.path}" in said


def test_a_file_that_others_may_change_counts_only_where_they_can_reach_it(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.events.chmod(0o666)
    run.path.chmod(0o744)
    require_own(run)
    run.path.chmod(0o755)
    assert f"other users may change {run.events} (mode 0666)" in refusal(run)


@as_root
def test_the_private_group_of_a_user_is_nobody_else(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.path.chmod(0o775)
    os.chown(run.path, 0, 0)  # root's group of the same name, without other members
    require_own(run)
    os.chown(run.path, 0, NOBODY)
    assert "(mode 0775)" in refusal(run)


def test_an_access_list_makes_a_private_group_one_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"")
    (tmp_path / "file").touch(0o600)
    (tmp_path / "file").chmod(0o660)
    assert others_may_write(tmp_path / "file", os.lstat(tmp_path / "file"))


def test_there_is_no_other_door() -> None:
    """Whoever starts something from a run's directory asks here."""
    package = Path(manifest.__file__).parents[1]
    users = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "require_own(" in path.read_text() or "own_directory(" in path.read_text()
    }
    assert users >= {
        "run/edit.py",
        "run/lookup.py",
        "run/resumption.py",
        "run/user_queue.py",
        "mcp/changing.py",
    }
