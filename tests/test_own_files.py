"""What a process finds of its own package while another version is installed, or none is."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulaunch.own_files import OwnFiles
from tests.helpers import wait_until

NAME = "gpulaunch_of_a_test"


def installed(site: Path, version: str) -> Path:
    """The package in this version, written where another one may be, as pip does it."""
    package = site / NAME
    shutil.rmtree(package, ignore_errors=True)
    (package / "part").mkdir(parents=True)
    for name in ("__init__.py", "part/__init__.py", f"part/only_{version}.py", "part/later.py"):
        (package / name).write_text(f"VERSION = {version!r}\n")
    (package / "program").write_text(version)
    (package / "program").chmod(0o755)
    return package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The first version's, imported, less what is imported later."""
    made = installed(tmp_path / "site", "old")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.import_module(f"{NAME}.part")
    before = list(sys.meta_path)
    yield made
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


@pytest.fixture
def kept(package: Path, tmp_path: Path) -> Iterator[OwnFiles]:
    files = OwnFiles(str(package))
    before = list(sys.meta_path)
    files.keep(str(tmp_path))
    wait_until(lambda: list(sys.meta_path) != before, 30)
    wait_until(lambda: all(one.name != "own files" for one in threading.enumerate()), 30)
    yield files
    files.close()


def remove(package: Path) -> None:
    shutil.rmtree(package)


def replace(package: Path) -> None:
    installed(package.parent, "new")


LOST = pytest.mark.parametrize("lose", [remove, replace])


def test_while_it_is_installed_everything_is_where_it_was(kept: OwnFiles, package: Path) -> None:
    assert kept.here(str(package / "program")) == str(package / "program")
    assert kept.search_path() == sys.path
    assert importlib.import_module(f"{NAME}.part.later").__file__ == str(package / "part/later.py")
    assert kept.copy == ""


@LOST
def test_what_is_started_later_is_what_was_there(
    kept: OwnFiles, package: Path, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    lose(package)
    program = Path(kept.here(str(package / "program")))
    assert program.read_text() == "old"
    assert os.access(program, os.X_OK)
    above = Path(kept.copy).parent
    assert above.parent == tmp_path
    assert kept.search_path() == [str(above), *sys.path]
    assert kept.here("/elsewhere/program") == "/elsewhere/program"
    assert kept.here(f"{package}-other") == f"{package}-other"


@LOST
def test_what_is_imported_later_is_of_the_version_that_began(
    kept: OwnFiles, package: Path, lose: Callable[[Path], None]
) -> None:
    lose(package)
    assert importlib.import_module(f"{NAME}.part.later").VERSION == "old"
    assert importlib.import_module(f"{NAME}.part.only_old").VERSION == "old"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{NAME}.part.only_new")


def test_once_replaced_the_copy_stays_in_use(kept: OwnFiles, package: Path) -> None:
    aside = package.with_name("aside")
    package.rename(aside)
    first = kept.here(str(package))
    aside.rename(package)  # pip could not install the next one
    assert kept.here(str(package)) == first


def test_a_copy_that_was_removed_is_written_anew(kept: OwnFiles, package: Path) -> None:
    remove(package)
    first = kept.here(str(package))
    shutil.rmtree(Path(first).parent)
    assert Path(kept.here(str(package / "program"))).read_text() == "old"


def test_where_the_place_is_gone_the_copy_is_among_temporary_files(
    kept: OwnFiles, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept.keep(str(tmp_path / "gone"))
    remove(package)
    assert Path(kept.here(str(package / "program"))).read_text() == "old"
    assert Path(kept.copy).parent.parent == tmp_path


def test_where_no_copy_can_be_written_that_is_told_and_what_is_installed_is_used(
    kept: OwnFiles, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    heard: list[str] = []
    kept.keep(str(tmp_path / "gone"), lambda: heard.append(kept.trouble))
    replace(package)
    assert kept.here(str(package / "program")) == str(package / "program")
    assert heard == [f"{heard[0].partition(':')[0]}: No such file or directory"]


def test_files_that_change_while_they_are_read_are_not_kept(package: Path) -> None:
    files = OwnFiles(str(package))
    replace(package)
    heard: list[str] = []
    files.keep(told=lambda: heard.append(files.trouble))
    wait_until(lambda: bool(heard), 30)
    assert heard == ["another one was installed in its place at that moment"]
    assert files.here(str(package / "program")) == str(package / "program")


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    files = OwnFiles(str(tmp_path / "none"))
    heard: list[str] = []
    files.keep(told=lambda: heard.append(files.trouble))
    wait_until(lambda: bool(heard), 30)
    assert heard == [f"{tmp_path / 'none'}: No such file or directory"]


def test_a_process_leaves_no_copy(kept: OwnFiles, package: Path) -> None:
    remove(package)
    above = Path(kept.here(str(package))).parent
    if not (pid := os.fork()):
        kept.close()
        os._exit(0)
    os.waitpid(pid, 0)
    kept.close()
    assert not above.exists()
