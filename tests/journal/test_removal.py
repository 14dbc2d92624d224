"""Directories are measured, vanish in one step, and are removed with all that they hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.journal.removal import REMOVED, delete, leftovers, vanish, weigh

NOBODY = 65534
IMPORTS = "from pathlib import Path; from gpulaunch.journal.removal import delete"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    (top / "deep" / "er").mkdir(parents=True)
    (top / "big").write_bytes(b"x" * 1_000_000)
    (top / "deep" / "er" / "small").write_text("y")
    return top


def test_a_directory_weighs_what_it_takes_of_the_disk(tree: Path) -> None:
    before = weigh(str(tree))
    assert before.bytes >= 1_000_000
    assert before.whole
    assert not before.obstacle
    os.link(tree / "big", tree / "again")
    with (tree / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (tree / "link").symlink_to("/usr")
    assert weigh(str(tree)).bytes < before.bytes + 100_000, "holes, names and links are no bytes"
    assert weigh(str(tree / "none")).bytes == 0
    assert weigh(str(tree / "link")).bytes < 100_000


def test_what_has_a_name_elsewhere_is_not_free_once_this_one_goes(
    tree: Path, tmp_path: Path
) -> None:
    os.link(tree / "big", tree / "again")
    assert weigh(str(tree)).bytes >= 1_000_000
    os.link(tree / "big", tmp_path / "kept")
    assert weigh(str(tree)).bytes < 100_000


def test_a_measure_stops_where_it_is_told_to(tree: Path) -> None:
    for number in range(50):
        (tree / "deep" / str(number)).mkdir()
    assert not weigh(str(tree), entries=10).whole
    assert not weigh(str(tree), seconds=-1).whole
    assert weigh(str(tree), entries=1000, seconds=60).whole


def test_what_vanishes_is_gone_at_once_and_found_as_a_leftover(tree: Path) -> None:
    steps: list[str] = []
    hidden = vanish(tree, steps.append)
    assert not tree.exists()
    assert hidden.name.startswith(REMOVED)
    assert leftovers(tree.parent) == [hidden]
    assert steps == ["renamed"]
    assert delete(hidden) == ""
    assert leftovers(tree.parent) == []
    assert delete(hidden) == "", "somebody else was quicker"


def test_no_link_leads_out_and_none_is_a_leftover(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("x")
    (tree / "deep" / "out").symlink_to(outside)
    (tree / "file").symlink_to(outside / "mine")
    (tmp_path / f"{REMOVED}link").symlink_to(outside)
    assert delete(tree) == ""
    assert (outside / "mine").read_text() == "x"
    assert leftovers(tmp_path) == []


def test_what_a_program_has_protected_of_its_own_goes_all_the_same(tree: Path) -> None:
    os.chmod(tree / "deep" / "er", 0)
    os.chmod(tree / "deep", 0o500)
    assert not weigh(str(tree)).obstacle
    assert delete(tree) == ""
    assert not tree.exists()


def test_a_path_that_is_too_long_is_cut_and_the_reason_is_told(tree: Path) -> None:
    here = os.open(tree, os.O_RDONLY)
    try:
        for _ in range(20):
            os.mkdir("d" * 250, dir_fd=here)
            below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)
    obstacle = weigh(str(tree)).obstacle
    assert obstacle.endswith("d… cannot be read: File name too long")
    assert len(obstacle) < 400
    assert delete(tree) == "", "by descriptors there is no such limit"


@pytest.fixture(params=["another file system", "a directory from elsewhere"])
def mounted(request: pytest.FixtureRequest, tree: Path, tmp_path: Path) -> Iterator[Path]:
    """Where something is mounted that is not the run's. Its name has what the kernel's table
    writes in another way.
    """
    place, outside = tree / "deep" / "a b\\c", tmp_path / "outside"
    place.mkdir()
    outside.mkdir()
    what = ["-t", "tmpfs", "tmpfs"] if request.param == "another file system" else ["--bind"]
    command = ["mount", *what, *([] if what[0] == "-t" else [outside]), place]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"nothing can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_what_is_mounted_there_is_an_obstacle(tree: Path, mounted: Path) -> None:
    assert weigh(str(tree)).obstacle == f"something is mounted at {mounted}"
    assert not weigh(str(tree.parent / "outside")).obstacle
    assert not weigh(str(mounted.parent / "a")).obstacle, "its name is only the beginning of that"


def test_nothing_is_removed_where_something_was_mounted_since(tree: Path, mounted: Path) -> None:
    (mounted / "theirs").write_text("x")
    with pytest.raises(OSError, match="something is mounted at"):
        vanish(tree)
    assert delete(tree) == f"something is mounted at {mounted}"
    assert (mounted / "theirs").read_text() == "x"
    assert (tree / "big").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may make files of others")
def test_what_cannot_be_removed_is_told_and_the_rest_goes(tree: Path) -> None:
    for path in (tree.parent, tree, tree / "big", tree / "deep"):
        os.chown(path, NOBODY, NOBODY)
    # Relative, as nobody may not reach it by its whole path.
    program = f"import os; os.seteuid({NOBODY}); print(delete(Path('top')))"
    done = subprocess.run(
        [sys.executable, "-c", f"{IMPORTS}; {program}"],
        cwd=tree.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    left = done.stdout.strip()
    assert left == "top/deep/er/small cannot be removed: Permission denied"
    assert not (tree / "big").exists()
    assert (tree / "deep" / "er" / "small").exists()
