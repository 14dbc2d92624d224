"""Globs find what Python's own find, but never walk in circles and never without end."""

from __future__ import annotations

import glob
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulaunch.jobfile.globs import matches_of, natural
from gpulaunch.jobfile.mistakes import FieldError
from tests.jobfile.helpers import jobs_of, mistakes_of

FILES = ["a.fa", "b/a.fa", "b/c/d.fa", "b/c/a", "b/.h/x.fa", ".k/a.fa", "c.d/e/a.fa", "[x]/a.fa"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("x")
    return base


component = st.sampled_from(["**", "*", "*.fa", "a.fa", "b", "c", "?", "[bc]*", ".*", ".", "[[]x]"])


@settings(max_examples=300)
@given(
    st.lists(component, min_size=1, max_size=4), st.sampled_from(["", "/"]), st.sampled_from([0, 1])
)
def test_without_links_they_find_what_glob_finds(
    tree: Path, parts: list[str], end: str, absolute: int
) -> None:
    pattern = "/".join([str(tree)] * absolute + parts) + end
    # Python's glob gives `**/**` both b and b/, which are one file, and some versions a.fa/.
    matches = glob.glob(pattern, root_dir=tree, recursive=True)
    expected = {m.rstrip("/") for m in matches if m and os.path.lexists(os.path.join(tree, m))}
    try:
        found = matches_of(pattern, str(tree))
    except FieldError:
        found = []
    assert len(set(found)) == len(found)
    assert {match.rstrip("/") for match in found} == expected


def test_links_to_their_own_directory_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "q.fa").write_text(">x\n")
    for name in ("l1", "l2", "a/l3"):
        (tmp_path / name).symlink_to(tmp_path)
    assert [
        job.params["item"] for job in jobs_of("jobs: [{run: x, foreach: '**/*.fa'}]", tmp_path)
    ] == ["a/q.fa"]
    # A linked directory that the pattern names is gone into.
    assert matches_of("l1/**/*.fa", str(tmp_path)) == ["l1/a/q.fa"]
    assert sorted(matches_of("*/a/*.fa", str(tmp_path))) == ["l1/a/q.fa", "l2/a/q.fa"]
    assert sorted(matches_of("**", str(tmp_path))) == ["a", "a/l3", "a/q.fa", "l1", "l2"]


def test_the_outputs_of_earlier_runs_are_no_inputs(tmp_path: Path) -> None:
    for name in ("in/a.fa", "gpulaunch-runs/r/out/j.1/b.fa", "in/gpulaunch-runs/r/c.fa"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x")
    assert matches_of("**/*.fa", str(tmp_path)) == ["in/a.fa"]
    named = matches_of("gpulaunch-runs/**/*.fa", str(tmp_path))
    assert named == ["gpulaunch-runs/r/out/j.1/b.fa"]


def test_what_only_linked_directories_hold_is_said(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere" / "a.fa").write_text("x")
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere")
    (line,) = mistakes_of("jobs: [{run: x, foreach: '**/*.fa'}]", tmp_path / "here")
    assert line.endswith("; ** does not go into linked directories")


def test_a_search_has_an_end(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "f").write_text("x")
    assert len(matches_of("**/f", str(tmp_path), limit=100)) == 30
    with pytest.raises(FieldError, match=r"\*\*/f looks at more than 59 files"):
        matches_of("**/f", str(tmp_path), limit=59)
    with pytest.raises(FieldError, match="more than 50 files"):
        matches_of("*/*", str(tmp_path), limit=50)


def test_a_name_that_looks_like_a_pattern_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "in[1].fa").write_text("x")
    assert matches_of("in[1].fa", str(tmp_path)) == ["in[1].fa"]
    (tmp_path / "in1.fa").write_text("x")
    assert matches_of("in[1].fa", str(tmp_path)) == ["in1.fa"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0)
    (tmp_path / "a.fa").write_text("x")
    assert matches_of("**/*.fa", str(tmp_path)) == ["a.fa"]


def test_paths_are_sorted_as_people_count() -> None:
    wanted = ["a2/b.pdb", "a2/b (1).pdb", "a2/b (10).pdb", "a10.pdb", "a10/b.pdb", "b", "b1", "b٣"]
    shuffled = list(wanted)
    random.Random(7).shuffle(shuffled)
    assert sorted(shuffled, key=natural) == wanted
