"""Interpreters, environments and files of variables: found, made absolute, or clearly missing."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.paths import find_conda, read_env_file
from tests.jobfile.helpers import job_of, mistakes_of


def conda_at(prefix: Path) -> Path:
    (prefix / "conda-meta").mkdir(parents=True)
    return prefix


def test_a_conda_environment_is_found_where_conda_keeps_them(tmp_path: Path) -> None:
    root = conda_at(tmp_path / "root")
    env = conda_at(root / "envs" / "fold")
    active = {"CONDA_PREFIX": str(conda_at(root / "envs" / "other"))}
    for environ in (
        {"CONDA_ROOT": str(root)},
        {"MAMBA_ROOT_PREFIX": str(root)},
        {"CONDA_EXE": str(root / "bin" / "conda")},
        {"CONDA_PREFIX": str(root)},
        {"CONDA_ENVS_PATH": f"/nowhere:{root}/envs"},
        active,
    ):
        assert find_conda("fold", tmp_path, {"HOME": "/nonexistent", **environ}) == env
    assert find_conda("base", tmp_path, {"CONDA_ROOT": str(root)}) == root


def test_a_conda_environment_is_found_below_home(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    env = conda_at(tmp_path / "miniforge3" / "envs" / "fold")
    assert find_conda("fold", Path("/"), environ) == env
    listed = conda_at(tmp_path / "elsewhere" / "chai")
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"\n/gone/chai\n{listed}\n")
    assert find_conda("chai", Path("/"), environ) == listed


def test_a_conda_environment_by_prefix(tmp_path: Path) -> None:
    env = conda_at(tmp_path / "env")
    assert find_conda("./env", tmp_path, {}) == env
    assert find_conda("~/env", Path("/"), {"HOME": str(tmp_path)}) == env
    with pytest.raises(FieldError, match="is not a conda environment"):
        find_conda("./other", tmp_path, {})
    with pytest.raises(FieldError, match="no conda environment called other"):
        find_conda("other", tmp_path, {"HOME": str(tmp_path)})


def test_jobs_hold_absolute_paths(tmp_path: Path) -> None:
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    python = venv / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    assert job_of("run: x, venv: venv", tmp_path).venv == str(tmp_path / "venv")
    assert job_of("run: x, python: venv/bin/python", tmp_path).python == str(python)
    environ = {"PATH": str(venv), "HOME": "/"}
    assert job_of("run: x, python: python", tmp_path, environ).python == str(python)
    conda_at(tmp_path / "env")
    assert job_of("run: x, conda: ./env", tmp_path).conda == str(tmp_path / "env")


def test_each_place_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    isdir = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda p: asked.append(str(p)) or isdir(p))
    from tests.jobfile.helpers import jobs_of

    jobs_of("{defaults: {cwd: .}, jobs: [{run: x, matrix: {a: [1, 2, 3]}}]}", tmp_path)
    assert asked.count(str(tmp_path)) == 1


def test_a_path_too_long_for_the_system_is_a_mistake() -> None:
    for field in ("cwd", "venv", "env_file", "python", "conda", "foreach"):
        with pytest.raises(JobFileError):
            job_of(f"run: x, {field}: ./{'a' * 5000}")


def test_env_files(tmp_path: Path) -> None:
    path = tmp_path / "vars.env"
    path.write_bytes(
        b"\xef\xbb\xbf# comment\r\n\nA=1\r\nexport B = two words \nC='$x # y' # z\n"
        b'D="a\\nb\\"c\\\\d\\$e"\nE=\nF=a#b # c\nG=x=y\nA=2\n'
    )
    assert read_env_file(path) == {
        "A": "2",
        "B": "two words",
        "C": "$x # y",
        "D": 'a\nb"c\\d$e',
        "E": "",
        "F": "a#b",
        "G": "x=y",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A", "vars.env:1: expected KEY=VALUE"),
        ("A=1\n=2", "vars.env:2: expected KEY=VALUE"),
        ("A='x", "vars.env:1: the ' is not closed"),
        ("A='x' y", "vars.env:1: text after the closing '"),
        ("CUDA_VISIBLE_DEVICES=1", "vars.env:1: CUDA_VISIBLE_DEVICES cannot be set here"),
        ("A B=1", "vars.env:1: expected KEY=VALUE"),
    ],
)
def test_broken_env_files(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "vars.env"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_env_file(path)
    assert said in str(caught.value)


def test_env_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"A=\xe9")
    for name in ("latin", "none", "."):
        with pytest.raises(UsageError):
            read_env_file(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be somebody else for a while")
@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ("cwd", "shut/sub"),
        ("venv", "shut"),
        ("python", "shut/bin/python"),
        ("conda", "./shut"),
        ("env_file", "shut/x.env"),
        ("foreach", "shut/*.txt"),
    ],
)
def test_what_this_user_may_not_enter_is_not_said_to_be_missing(field: str, typed: str) -> None:
    with TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        shut = Path(made) / "shut"
        (shut / "conda-meta").mkdir(parents=True)
        shut.chmod(0o700)
        os.seteuid(65534)
        try:
            (told,) = mistakes_of(f"jobs: [{{run: x, {field}: {typed}}}]", Path(made))
        finally:
            os.seteuid(0)
    assert re.search(rf"may not (enter|read) {shut}|permission denied", told)
