"""`gpulaunch --version` names the commit: of a checkout, of an archive, of nothing else's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from runpy import run_path

import pytest

from gpulaunch import __version__
from gpulaunch.base.commit import with_commit
from tests.cli.launcher import Launcher
from tests.packaging.support import ROOT, git, repository

FILES = ("gpulaunch/base/commit.py", ".gitattributes")


def known(at: Path) -> str:
    """The commit, as that copy of the module finds it."""
    found = run_path(str(at / FILES[0]))["commit"]()
    assert isinstance(found, str)
    return found


def unrecorded(at: Path) -> Path:
    """The module there, as it is in a repository: these sources may be of an sdist."""
    text = (ROOT / FILES[0]).read_text()
    (at / FILES[0]).parent.mkdir(parents=True)
    recorded = re.compile('^RECORDED = ".*"$', re.MULTILINE)
    (at / FILES[0]).write_text(recorded.sub('RECORDED = "$Format:%H$"', text))
    return at


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    unrecorded(tmp_path / "checkout")
    return repository(tmp_path / "checkout", FILES[1])


def head(at: Path) -> str:
    return git(at, "rev-parse", "HEAD")


def test_a_checkout_s_commit_is_read_from_its_branch(checkout: Path) -> None:
    first = head(checkout)
    assert known(checkout) == f"{first}, a checkout"
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "another")
    assert head(checkout) != first
    assert known(checkout) == f"{head(checkout)}, a checkout"


def test_a_packed_branch_and_a_commit_of_no_branch_are_found(checkout: Path) -> None:
    git(checkout, "branch", "main-2")
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "another")
    git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git/refs/heads/main").exists()
    assert known(checkout) == f"{head(checkout)}, a checkout"
    git(checkout, "checkout", "--quiet", "--detach", "main-2")
    assert known(checkout) == f"{head(checkout)}, a checkout"


def test_a_worktree_s_commit_is_its_own(checkout: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(checkout, "worktree", "add", "--quiet", "-b", "side", str(tree))
    git(tree, "commit", "--quiet", "--allow-empty", "-m", "another")
    assert head(tree) != head(checkout)
    assert known(tree) == f"{head(tree)}, a checkout"
    git(tree, "pack-refs", "--all")
    assert known(tree) == f"{head(tree)}, a checkout"


def test_an_archive_knows_its_commit(checkout: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    git(checkout, "archive", "--prefix=archive/", "-o", str(tmp_path / "archive.tar"), "HEAD")
    shutil.unpack_archive(tmp_path / "archive.tar", tmp_path)
    assert known(archive) == head(checkout)


def test_another_project_s_commit_is_never_shown(checkout: Path) -> None:
    assert known(unrecorded(checkout / ".venv/lib/python3/site-packages")) == ""


@pytest.mark.parametrize(
    "spoil",
    ["rm .git/refs/heads/main", "rm .git/HEAD", "echo x > .git/HEAD", "rm -r .git; touch .git"],
)
def test_what_cannot_be_read_is_not_known(checkout: Path, spoil: str) -> None:
    subprocess.run(spoil, shell=True, cwd=checkout, check=True)
    assert known(checkout) == ""


def test_the_version_names_what_is_known_in_one_line() -> None:
    digits = "1a2b3c4d" * 5
    assert with_commit("0.1.0", digits) == "0.1.0 (1a2b3c4)"
    assert with_commit("0.1.0", f"{digits}, with changes") == "0.1.0 (1a2b3c4, with changes)"
    assert with_commit("0.1.0", "") == "0.1.0"


def test_the_command_tells_it(tmp_path: Path) -> None:
    done = Launcher(tmp_path)("--version")
    assert done.status == 0, done.err
    assert done.out == f"gpulaunch {with_commit(__version__, known(ROOT))}\n"
