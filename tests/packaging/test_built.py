"""What a wheel and an sdist hold, what they say of themselves, and which commit they are of."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from email import message_from_bytes
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

from gpulaunch import __version__
from gpulaunch.engines import programs
from tests.packaging.extras import BEGIN, DEVELOPMENT, DOCUMENT, END
from tests.packaging.support import build, built, git, names_in, repository, sources, version_of

LEFT_LYING = (
    "dist/old.whl",
    "build/x",
    "gpulaunch/__pycache__/x.pyc",
    "notes.txt",
    "examples/embeddings/.env/x",
)
"""What may lie about in a checkout and belongs to nobody's installation."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """These sources in a repository of their own, with things lying about that it does not have."""
    at = repository(tmp_path_factory.mktemp("sources") / "gpulaunch", *sources())
    for name in LEFT_LYING:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).touch()
    return at


@pytest.fixture(scope="module")
def commit(checkout: Path) -> str:
    return git(checkout, "rev-parse", "HEAD")[:7]


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(checkout, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist's files, in a folder of another project's repository."""
    other = tmp_path_factory.mktemp("other")
    (other / "theirs").touch()
    git(other, "init", "--quiet")
    git(other, "add", "theirs")
    git(other, "commit", "--quiet", "-m", "theirs")
    shutil.unpack_archive(sdist, other)
    return other / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for this machine, from the sdist."""
    return built(unpacked, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return message_from_bytes(ZipFile(wheel).read(f"gpulaunch-{__version__}.dist-info/METADATA"))


def description(metadata: Message) -> str:
    payload = metadata.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode()


def opened(wheel: Path, into: Path) -> Path:
    ZipFile(wheel).extractall(into)
    return into


def test_an_sdist_has_what_the_repository_has_and_nothing_else(sdist: Path) -> None:
    assert names_in(sdist) == {*sources(), "PKG-INFO"}


def test_a_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    of_package = {name for name in sources() if name.startswith("gpulaunch/")}
    own = f"gpulaunch-{__version__}.dist-info/"
    about = {name.removeprefix(own) for name in names_in(wheel) if name.startswith(own)}
    data, man = f"gpulaunch-{__version__}.data/data/share/", "docs/man/"
    pages = {data + name.removeprefix("docs/") for name in sources() if name.startswith(man)}
    assert len(pages) > 20
    program = f"gpulaunch/agent/native/{programs.PROGRAM.name}"
    assert names_in(wheel) - {own + name for name in about} == of_package | pages | {program}
    licenses = {"licenses/LICENSE", "licenses/gpulaunch/observe/report/assets/uplot/LICENSE"}
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", *licenses}
    assert "gpulaunch/py.typed" in of_package


def test_the_same_sources_make_the_same_bytes(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    shutil.copytree(unpacked, tmp_path / "elsewhere", copy_function=shutil.copy)
    again = built(tmp_path / "elsewhere", tmp_path / "out", "wheel")
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("compiler", ["/no/such/cc", "false", "sh -c 'echo bad >&2; exit 1'"])
def test_a_compiler_that_fails_is_named_and_makes_no_wheel(
    unpacked: Path, tmp_path: Path, compiler: str
) -> None:
    done = build(unpacked, tmp_path / "out", "wheel", {"GPULAUNCH_CC": compiler})
    assert done.returncode
    assert "did not compile gpulaunch/agent/native: name a C compiler in" in done.stderr
    assert not list((tmp_path / "out").glob("*.whl"))


def test_a_wheel_names_its_platform(unpacked: Path, tmp_path: Path) -> None:
    tag = "manylinux_2_17_x86_64.musllinux_1_1_x86_64"
    made = built(unpacked, tmp_path / "out", "wheel", {"GPULAUNCH_TAG": tag})
    assert made.name == f"gpulaunch-{__version__}-py3-none-{tag}.whl"


@pytest.mark.parametrize(
    ("environ", "brought"),
    [
        ({"GPULAUNCH_CC": "cc"}, []),
        ({"GPULAUNCH_CC": "zig"}, ["ziglang"]),
        ({"GPULAUNCH_CC": "", "PATH": "/no"}, ["ziglang"]),
    ],
)
def test_the_build_brings_a_compiler_where_there_is_none(
    unpacked: Path, environ: dict[str, str], brought: list[str]
) -> None:
    """As an installer asks the backend, and installs it (PEP 517); .ci/release builds with it."""
    code = "import hatchling.build as b; print(b.get_requires_for_build_wheel())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=unpacked,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [one for one in ast.literal_eval(done.stdout) if one == "ziglang"] == brought


def test_the_commit_goes_from_the_checkout_through_the_sdist_into_the_wheel(
    unpacked: Path, wheel: Path, commit: str, tmp_path: Path
) -> None:
    expected = f"gpulaunch {__version__} ({commit})\n"
    assert version_of(unpacked) == expected
    assert version_of(opened(wheel, tmp_path)) == expected


def test_a_wheel_of_changed_sources_says_so(tmp_path: Path) -> None:
    changed = repository(tmp_path / "changed", *sources())
    made = built(changed, tmp_path / "before", "wheel")
    commit = git(changed, "rev-parse", "HEAD")[:7]
    assert version_of(opened(made, tmp_path / "1")) == f"gpulaunch {__version__} ({commit})\n"
    (changed / "gpulaunch/new.py").touch()
    made = built(changed, tmp_path / "after", "wheel")
    said = version_of(opened(made, tmp_path / "2"))
    assert said == f"gpulaunch {__version__} ({commit}, with changes)\n"


def test_the_metadata_say_who_what_and_under_which_licences(metadata: Message) -> None:
    assert metadata["Name"] == "gpulaunch"
    assert metadata["Author"] == "the gpulaunch contributors"
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"
    assert metadata["Requires-Python"] == ">=3.10"
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    for minor in (10, 11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers


def test_the_long_description_leads_nowhere_that_an_index_does_not_have(
    metadata: Message,
) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = description(metadata)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not re.match(r"https?://|#", link)] == []
    assert "![" not in text


def test_the_long_description_keeps_every_word_of_the_readme(
    metadata: Message, unpacked: Path
) -> None:
    readme = (unpacked / "README.md").read_text()
    links = re.compile(r"!\[[^]]*\]\([^)]*\)\n*|(?<!!)\[([^]]*)\]\([^)]*\)")
    plain = links.sub(lambda found: found[1] or "", readme)
    assert description(metadata).split() == plain.split()


def test_the_document_tells_what_each_extra_brings() -> None:
    """By `python -m tests.packaging.extras`, which measures it."""
    document = DOCUMENT.read_text()
    measured = document.partition(BEGIN)[2].partition(END)[0]
    extras = set(distribution("gpulaunch").metadata.get_all("Provides-Extra") or ())
    assert set(re.findall(r"^\| `gpulaunch\[(.+?)\]", measured, re.MULTILINE)) == (
        extras - DEVELOPMENT
    )
    told = re.findall(r"^\| `(\w+)` \|", document, re.MULTILINE)
    assert set(told) == extras - DEVELOPMENT - {"all"} | {"torch"}
