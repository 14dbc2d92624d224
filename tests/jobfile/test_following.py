"""A job file read for a run that follows its sources: what does not count yet is left out."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from gpulaunch.base.errors import JobFileError
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.source import Following, ForeachSource, NothingYet
from tests.helpers import cannot_be_listed

FOLD = "jobs: [{name: 'fold-{{stem}}', run: 'x {{path}}', foreach: in/*.fa}"


class AllBut:
    """Everything counts but these files."""

    def __init__(self, *left: Path) -> None:
        self.left = set(map(str, left))

    def counts(self, path: str) -> bool:
        return path not in self.left

    def whole(self, path: str, size: int) -> bool:
        return path not in self.left


def followed(text: str, base: Path, *left: str, more: bool = True) -> Plan:
    following = Following(AllBut(*(base / name for name in left)), more)
    data = textwrap.dedent(text).encode()
    environ = {"HOME": "/nonexistent", "PATH": os.defpath}
    return load_text(data, Surroundings(environ, following=following), name="jobs.yaml", base=base)


def names(plan: Plan) -> list[str]:
    return [job.name for job in plan.jobs]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / f"in/{name}.fa").write_text("x")
    return tmp_path


def test_files_that_do_not_count_are_left_out(base: Path) -> None:
    assert names(followed(FOLD + "]", base)) == ["fold-a", "fold-b", "fold-c"]
    assert names(followed(FOLD + "]", base, "in/b.fa")) == ["fold-a", "fold-c"]


def test_a_pattern_that_matches_nothing_is_no_mistake(tmp_path: Path) -> None:
    plan = followed(FOLD + ", {name: other, run: y}]", tmp_path)
    assert names(plan) == ["other"]
    for kind in ("lines", "csv", "fasta"):
        text = f"jobs: [{{name: 'a-{{{{id}}}}', run: x, foreach: {{{kind}: later.txt}}}}]"
        if kind == "lines":
            text = text.replace("{{id}}", "{{item}}")
        assert names(followed(text, tmp_path)) == []
        (tmp_path / "later.txt").write_text("")
        assert names(followed(text, tmp_path)) == []
        (tmp_path / "later.txt").unlink()


def test_other_mistakes_are_still_told(base: Path) -> None:
    with pytest.raises(JobFileError, match="unknown placeholder"):
        followed("jobs: [{run: 'x {{steem}}', foreach: in/*.none}]", base)
    with pytest.raises(JobFileError, match="there is no job flod"):
        followed(FOLD + ", {name: other, run: y, needs: flod}]", base)


def test_the_plan_tells_what_it_rests_on(base: Path) -> None:
    text = """
        jobs:
          - {name: a, run: x, foreach: [in/*.fa, ~/x/*.fa]}
          - {name: b, run: x, foreach: {lines: ../ids.txt}}
          - {name: c, run: x, foreach: {values: [1, 2]}}
          - {name: d, run: x, foreach: in/*.fa}
    """
    below = str(base)
    assert followed(text, base).sources == (
        ForeachSource("in/*.fa", below),
        ForeachSource("/nonexistent/x/*.fa", below),
        ForeachSource(f"{base.parent}/ids.txt", below, True),
    )


def test_a_first_look_learns_the_sources_alone(base: Path) -> None:
    following = Following(NothingYet())
    plan = load_text(
        (FOLD + "]").encode(),
        Surroundings({"HOME": "/x"}, following=following),
        name="j",
        base=base,
    )
    assert plan.sources
    assert not plan.jobs


@pytest.mark.parametrize(
    ("kind", "text", "growing", "whole"),
    [
        ("lines", "one\ntwo", ["one"], ["one", "two"]),
        ("lines", "one\ntwo\n", ["one", "two"], ["one", "two"]),
        ("lines", "on", [], ["on"]),
        ("csv", "id,n\none,1\ntwo,2", ["one"], ["one", "two"]),
        ("csv", 'id,n\none,1\ntwo,"2\n', ["one"], None),
        ("csv", 'id,n\none,"1\n1"\ntwo,"2\n3', ["one"], None),
        ("csv", "id,n\none,1\ntwo\n", None, None),
        ("csv", "id,n", [], []),
        ("csv", "id,n\n", [], []),
        ("fasta", ">one\nACGT\n>two\nAC\n", ["one"], ["one", "two"]),
        ("fasta", ">one\nACGT\n>one", ["one"], None),
        ("fasta", ">one\nACGT\n>", ["one"], None),
        ("fasta", "\n", [], []),
        ("fasta", ">one\n", [], None),
    ],
)
def test_the_last_line_or_record_counts_once_the_file_is_still(
    tmp_path: Path, kind: str, text: str, growing: list[str] | None, whole: list[str] | None
) -> None:
    """None: a mistake."""
    (tmp_path / "list").write_text(text)
    name = "item" if kind == "lines" else "id"
    jobs = f"jobs: [{{name: '{{{{{name}}}}}', run: x, foreach: {{{kind}: list}}}}]"
    for left, expected in ((["list"], growing), ([], whole)):
        if expected is None:
            with pytest.raises(JobFileError):
                followed(jobs, tmp_path, *left)
        else:
            assert names(followed(jobs, tmp_path, *left)) == expected


def test_records_stay_where_they_are_while_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    jobs = "jobs: [{name: '{{id}}', run: x, foreach: {fasta: x.fasta}}]"
    path.write_text(">one\nACGT\n>two\nA")
    before = followed(jobs, tmp_path, "x.fasta").jobs
    with path.open("a") as file:
        file.write("C\n>three\nA\n")
    after = followed(jobs, tmp_path, "x.fasta").jobs
    assert [job.name for job in after] == ["one", "two"]
    assert after[0] == before[0]


def test_who_waits_for_all_of_a_kind_is_held_until_no_more_comes(base: Path) -> None:
    text = """
        jobs:
          - {name: 'fold-{{stem}}', run: x, foreach: in/*.fa}
          - {name: 'score-{{stem}}', run: x, foreach: in/*.fa, needs: 'fold-{{stem}}'}
          - {name: summary, run: x, after: 'fold-*'}
          - {name: mail, run: x, needs: summary}
          - {name: setup, run: x}
          - {name: later, run: x, needs: set*}
    """
    plan = followed(text, base, "in/b.fa")
    assert names(plan) == ["fold-a", "fold-c", "score-a", "score-c", "setup", "later"]
    assert plan.held == ("summary", "mail")
    plan = followed(text, base, more=False)
    assert {"summary", "mail", "fold-b"} <= set(names(plan))
    assert plan.held == ()
    (summary,) = (job for job in plan.jobs if job.name == "summary")
    assert summary.after == ("fold-a", "fold-b", "fold-c")


def test_an_item_whose_need_is_not_there_yet_is_held(base: Path) -> None:
    text = """
        jobs:
          - {name: 'fold-{{stem}}', run: x, foreach: in/*.fa}
          - {name: 'score-{{stem}}', run: x, foreach: in/?.fa, needs: 'fold-{{stem}}-*'}
          - {name: 'check-{{item}}', run: x, foreach: {values: [a, z]}, needs: 'fold-{{item}}'}
    """
    plan = followed(text, base)
    assert names(plan) == ["fold-a", "fold-b", "fold-c", "check-a"]
    assert plan.held == ("score-a", "score-b", "score-c", "check-z")


def test_an_items_own_glob_is_no_barrier(base: Path) -> None:
    text = """
        jobs:
          - {name: 'f-{{stem}}-{{s}}', run: x, foreach: in/*.fa, matrix: {s: [0, 1]}}
          - {name: 'best-{{stem}}', run: x, foreach: in/*.fa, needs: 'f-{{stem}}-*'}
    """
    plan = followed(text, base)
    assert plan.held == ()
    assert {job.name: job.needs for job in plan.jobs}["best-a"] == ("f-a-0", "f-a-1")


def test_what_would_change_with_each_file_is_refused(base: Path) -> None:
    with pytest.raises(JobFileError, match="batches would change with each file that comes"):
        followed("jobs: [{run: x, foreach: in/*.fa, batch: 2}]", base)
    with pytest.raises(JobFileError, match=r"\{\{index}} would change with each file that comes"):
        followed("jobs: [{run: 'x {{index}}', foreach: in/*.fa}]", base)
    plan = followed("jobs: [{run: 'x {{index}}', foreach: {values: [a]}}]", base)
    assert len(plan.jobs) == 1


def test_a_directory_that_cannot_be_read_for_now_is_a_mistake(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_be_listed(monkeypatch, "/in/")
    with pytest.raises(JobFileError, match="in/: Stale file handle"):
        followed(FOLD + "]", base)
