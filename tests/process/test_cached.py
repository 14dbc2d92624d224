"""What starts the node's programs: compiled once, and nothing but their own text is run."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpulaunch.process import cached
from gpulaunch.process.nodeside import CACHED
from tests.process.test_pythons import VERSIONS, python

PROGRAM = "import sys; print(ascii((__name__, __file__, sys.argv, sys.flags.isolated)))\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """One that tells how it was called, in a directory with its starter."""
    at = tmp_path / "a dir's ü\udcff"
    at.mkdir()
    shutil.copy(CACHED, at)
    (at / "program.py").write_text(PROGRAM)
    return at / "program.py"


def argv(program: Path, version: str = sys.executable) -> list[str]:
    return [version, "-I", "-S", str(program.parent / "cached.py"), program.name, "a b", "-c"]


def started(program: Path, version: str = sys.executable, limit: int | None = None) -> str:
    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        argv(program, version), check=True, stdout=subprocess.PIPE, preexec_fn=limited
    )
    return os.fsdecode(done.stdout)


def kept(program: Path) -> list[Path]:
    return sorted((program.parent / "compiled").iterdir())


def expected(program: Path) -> str:
    return ascii(("__main__", str(program), [str(program), "a b", "-c"], 1)) + "\n"


def value(path: Path) -> object:
    """What the program's code leaves in `x`."""
    found: dict[str, object] = {}
    exec(cached.code_of(str(path)), found)
    return found["x"]


def test_a_program_is_started_as_python_itself_would(program: Path) -> None:
    program.write_text("import sys; sys.stdout.buffer.write(repr((__name__, sys.argv)).encode())")
    alone = subprocess.run(
        [sys.executable, "-I", "-S", program, "a b", "-c"], check=True, stdout=subprocess.PIPE
    )
    assert os.fsencode(started(program)) == alone.stdout
    assert os.fsencode(started(program)) == alone.stdout


def test_what_is_no_program_fails_as_it_would(program: Path) -> None:
    program.write_text("def")
    for text in ("SyntaxError", "No such file"):
        done = subprocess.run(argv(program), check=False, capture_output=True)
        assert done.returncode == 1
        assert text in done.stderr.decode()
        program.unlink(missing_ok=True)


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.py"
    path.write_text("x = 1")
    assert value(path) == 1

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(cached, "compile", never, raising=False)
    assert value(path) == 1


def test_another_text_is_another_program(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text("x = 1")
    assert value(path) == 1
    at = path.stat()
    path.write_text("x = 2")
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert value(path) == 2


def test_code_that_was_made_elsewhere_is_not_run(tmp_path: Path) -> None:
    """Tracebacks would name another place."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.py").write_text("x = 1")
    value(tmp_path / "a/p.py")
    shutil.copytree(tmp_path / "a/compiled", tmp_path / "b/compiled")
    assert cached.code_of(str(tmp_path / "b/p.py")).co_filename == str(tmp_path / "b/p.py")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-10]),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "zeros": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "zeros behind": lambda path: path.write_bytes(path.read_bytes()[:-30] + b"\0" * 30),
    "a bit": lambda path: path.write_bytes(
        path.read_bytes()[:-12] + b"\x55" + path.read_bytes()[-11:]
    ),
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("/no/such")),
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_damaged_is_made_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "p.py"
    path.write_text("x = 'as it is'")
    value(path)
    (code,) = kept(path)
    DAMAGES[damage](code)
    assert value(path) == value(path) == "as it is"
    (code,) = kept(path)
    assert code.is_dir() or cached.read(str(code), path.read_bytes()) is not None


def test_what_another_user_has_put_there_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.py"
    path.write_text("x = 1")
    value(path)
    (code,) = kept(path)
    monkeypatch.setattr(cached.os, "geteuid", lambda: 12345)
    assert cached.read(str(code), path.read_bytes()) is None


@pytest.mark.parametrize("limit", [0, 50, 200])
def test_a_full_disk_keeps_nothing_from_being_run(program: Path, limit: int) -> None:
    program.write_text("import os; os.write(1, b'ran')" + "\nx = 1" * 100)
    assert started(program, limit=limit) == "ran"
    assert kept(program) == []


def test_where_nothing_can_be_kept_it_is_run_all_the_same(program: Path) -> None:
    (program.parent / "compiled").write_text("in the way")
    assert started(program) == started(program) == expected(program)


def test_of_many_that_begin_together_all_run_and_one_file_is_left(program: Path) -> None:
    starts = [subprocess.Popen(argv(program), stdout=subprocess.PIPE) for _ in range(8)]
    said = [os.fsdecode(start.communicate()[0]) for start in starts]
    assert said == [expected(program)] * 8
    assert len(kept(program)) == 1


def test_versions_of_python_keep_theirs_side_by_side(program: Path) -> None:
    here: set[str] = set()
    for version in VERSIONS:
        with suppress(pytest.skip.Exception):
            here.add(os.path.realpath(python(version)))
    for interpreter in [*here, *here]:
        assert started(program, interpreter) == expected(program)
    assert len(kept(program)) == len(here)
