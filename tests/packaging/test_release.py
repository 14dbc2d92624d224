"""The release script refuses what is no release, and cuts the notes out of the changelog.

What it builds and tries is tried by its own dry run, which `.ci/run` makes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gpulaunch import __version__
from tests.packaging.support import BY, ROOT, git, repository

FILES = (
    ".ci/release", ".ci/distributions.py", ".ci/tried.py", ".gitignore", "CHANGELOG.md",
    "gpulaunch/__init__.py", "pyproject.toml",
)  # fmt: skip
CHANGELOG = f"""# Changelog

## 9.0.0 (unreleased)

- Later.

## {__version__} (2026-11-26)

Words of it.

- Its `## ` is no heading.

### Mended

- This too.

## 0.0.9 (2026-01-01)

- Before.
"""
NOTES = f"""# gpulaunch {__version__}

Words of it.

- Its `## ` is no heading.

### Mended

- This too.
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A commit that is a release, but for the tag."""
    at = repository(tmp_path / "gpulaunch", *FILES)
    (at / "CHANGELOG.md").write_text(CHANGELOG)
    git(at, "commit", "--quiet", "--all", "-m", "the release")
    return at


def refused(at: Path, *options: str, path: str = "", **environ: str) -> list[str]:
    """What the script says; it must build nothing and end with 1."""
    clean = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, str(at / ".ci/release"), *options],
        env={**clean, **BY, **environ, "PATH": path or os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert not (at / "dist").exists()
    lines = (done.stdout + done.stderr).splitlines()
    assert all(line.startswith("refused: ") for line in lines), lines
    # What this machine may lack, beside.
    return [line for line in lines if " is here: " not in line]


def test_a_commit_without_its_tag_is_refused(checkout: Path) -> None:
    expected = [f"refused: this commit has no tag v{__version__}: git tag v{__version__}"]
    assert refused(checkout) == expected


def test_a_tag_that_another_commit_has_is_named_with_it(checkout: Path) -> None:
    git(checkout, "tag", "-a", "-m", "", f"v{__version__}", "HEAD~1")
    at = git(checkout, "rev-parse", "--short", "HEAD~1")
    assert refused(checkout) == [
        f"refused: the tag v{__version__} is at {at}:"
        " check that out, or give these sources a new version"
    ]


def test_what_is_not_committed_is_refused(checkout: Path) -> None:
    git(checkout, "tag", f"v{__version__}")
    for name in ("a", "b", "c", "d"):
        (checkout / name).touch()
    assert refused(checkout) == ["refused: not committed: a, b, c and 1 more"]


def test_a_version_without_its_day_is_refused(checkout: Path) -> None:
    text = CHANGELOG.replace(f"{__version__} (2026-11-26)", f"{__version__} (unreleased)")
    (checkout / "CHANGELOG.md").write_text(text)
    git(checkout, "commit", "--quiet", "--all", "-m", "not yet")
    git(checkout, "tag", f"v{__version__}")
    assert refused(checkout) == [
        f"refused: CHANGELOG.md has {__version__} as unreleased: write the day there"
    ]


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_version_that_the_changelog_does_not_have_is_always_refused(
    checkout: Path, options: tuple[str, ...]
) -> None:
    (checkout / "CHANGELOG.md").write_text(CHANGELOG.replace(f"## {__version__} (", "## 8.0 ("))
    assert refused(checkout, *options) == [
        f"refused: CHANGELOG.md has no line `## {__version__} (DAY)`, nor one (unreleased)"
    ]


def test_sources_that_are_no_checkout_are_refused_also_within_another_s(
    checkout: Path, tmp_path: Path
) -> None:
    (checkout / ".git").rename(tmp_path / ".git")
    expected = f"refused: {checkout} is no checkout of a repository that git is here to read"
    assert refused(checkout) == [expected]
    assert refused(checkout, "--dry-run") == [expected]


UPLOADS = """
import runpy, sys
from pathlib import Path
sys.path.insert(0, ".ci")
script = runpy.run_path(".ci/release")
script["upload"](script["distributions"].Work(Path(sys.argv[1])))
"""


def test_an_upload_has_the_caller_s_home_and_asks_nobody(checkout: Path, tmp_path: Path) -> None:
    """Twine asks at the terminal, unless it is told not to."""
    twine = tmp_path / "place/tools/bin/twine"
    twine.parent.mkdir(parents=True)
    twine.write_text(f'#!/bin/sh\necho $TWINE_NON_INTERACTIVE $HOME "$@" > {tmp_path}/said\n')
    twine.chmod(0o755)
    for name in ("a.whl", "a.tar.gz", "RELEASE-NOTES.md"):
        (tmp_path / "place/dist" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "place/dist" / name).touch()
    command = [sys.executable, "-c", UPLOADS, str(tmp_path / "place")]
    environ = {**os.environ, **BY, "HOME": str(tmp_path)}
    subprocess.run(command, cwd=checkout, env=environ, check=True)
    dist = tmp_path / "place/dist"
    words = (tmp_path / "said").read_text().split()
    assert words == ["1", str(tmp_path), "upload", f"{dist}/a.tar.gz", f"{dist}/a.whl"]


def test_nothing_is_published_from_ci_nor_by_a_dry_run(checkout: Path) -> None:
    git(checkout, "tag", f"v{__version__}")
    expected = ["refused: --publish goes with no --dry-run, and with no CI"]
    assert refused(checkout, "--publish", CI="true") == expected
    assert refused(checkout, "--publish", "--dry-run") == expected


def test_the_notes_are_the_changelog_s_words_on_that_version_alone(checkout: Path) -> None:
    code = (
        "import runpy, sys; sys.path.insert(0, '.ci'); script = runpy.run_path('.ci/release');"
        f"print(*script['release_notes']({__version__!r}), sep='|', end='')"
    )
    said = subprocess.check_output([sys.executable, "-c", code], cwd=checkout, text=True)
    assert said == f"2026-11-26|{NOTES}"


def test_the_changelog_of_these_sources_has_their_version() -> None:
    headings = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert [line for line in headings if line.startswith(f"## {__version__} (")]


def test_what_plugins_have_goes_with_the_release_it_is_uploaded_with() -> None:
    """A version that an index has is never taken again."""
    found = sorted(ROOT.glob("plugins/*/pyproject.toml"))
    assert found
    for project in found:
        text = project.read_text()
        (path,) = re.findall(r'^path = "(.+)"$', text, re.MULTILINE)
        assert f'__version__ = "{__version__}"' in (project.parent / path).read_text()
        (requirement,) = map(Requirement, re.findall(r'"(gpulaunch[^"]*)"', text))
        assert __version__ in requirement.specifier
