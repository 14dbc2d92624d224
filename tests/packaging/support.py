"""Repositories of git in a test's own directory, and what is built from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
BY = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(at: Path, *arguments: str) -> str:
    done = subprocess.run(
        # The sources may be another user's than the one who runs the tests.
        ["git", "-C", str(at), "-c", "safe.directory=*", *arguments],
        env={**os.environ, **BY},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def repository(at: Path, *names: str) -> Path:
    """A repository with one commit: these files of the sources as they are now."""
    for name in names:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, at / name)
    git(at, "init", "--quiet", "--initial-branch=main")
    git(at, "add", "--force", ".")
    git(at, "commit", "--quiet", "-m", "all of it")
    return at


def sources() -> list[str]:
    """What git knows of these sources, and what it would take; skips where they are no checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("these sources are no checkout of a repository")
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard")
    return sorted(name for name in set(listed.splitlines()) if (ROOT / name).is_file())


def build(
    at: Path, into: Path, target: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Build the sdist or wheel of the sources there, by the backend alone."""
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)],
        cwd=at,
        env={**os.environ, **BY, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def built(at: Path, into: Path, target: str, environ: Mapping[str, str] | None = None) -> Path:
    done = build(at, into, target, environ)
    assert done.returncode == 0, done.stderr
    (made,) = into.iterdir()
    return made


def names_in(made: Path) -> set[str]:
    """What a wheel or an sdist holds; an sdist's names without its own folder."""
    if made.suffix == ".whl":
        return set(ZipFile(made).namelist())
    with tarfile.open(made) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def version_of(unpacked: Path) -> str:
    """What `gpulaunch --version` says where these files come first."""
    done = subprocess.run(
        [sys.executable, "-m", "gpulaunch", "--version"],
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
