from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.core.causes import Quoted
from gpulaunch.core.facts import RunClosed
from gpulaunch.journal import codec
from gpulaunch.journal.append import Journal
from gpulaunch.journal.find import (
    Here,
    before,
    find,
    here,
    make_latest,
    newest_of,
    nothing_under,
    runs,
)
from gpulaunch.journal.rundir import RUNS, RunDir
from tests.journal.facts import opened
from tests.journal.made import NOTHING_STARTED, STARTED, WHEN, made


def _newest(cwd: Path) -> RunDir:
    near = here(cwd)
    assert near is not None
    return near.runs[0]


def test_runs_are_listed_newest_first_and_nothing_else_is(tmp_path: Path) -> None:
    first, third, second = made(tmp_path), made(tmp_path, "z", 2), made(tmp_path, "b", 1)
    (tmp_path / RUNS / "notes").mkdir()
    assert runs(tmp_path) == [third, second, first]
    assert runs(tmp_path / "nowhere") == []


def test_a_run_whose_manifest_was_lost_is_found_all_the_same(tmp_path: Path) -> None:
    old, new = made(tmp_path), made(tmp_path, "b", 5)
    new.manifest.unlink()
    old.manifest.write_text("{torn")
    assert runs(tmp_path) == [new, old]
    assert find(new.path.name, tmp_path) == new


@pytest.mark.parametrize("how", ["name", "id", "directory name", "path", "relative"])
def test_a_run_is_found_however_it_is_named(tmp_path: Path, how: str) -> None:
    made(tmp_path, seconds=0)
    made(tmp_path, "other", seconds=1)
    run = made(tmp_path, seconds=2)
    named = {
        "name": "fold",
        "id": run.read_manifest().run,
        "directory name": run.path.name,
        "path": str(run.path),
        "relative": f"gpulaunch-runs/{run.path.name}/",
    }[how]
    assert find(named, tmp_path) == run
    assert _newest(tmp_path) == run


def test_the_link_to_the_newest_leads_to_the_run_itself(tmp_path: Path) -> None:
    run = made(tmp_path)
    make_latest(run)
    assert find("gpulaunch-runs/latest", tmp_path) == run
    assert find("latest", tmp_path) == run


def test_a_run_in_a_named_directory_is_found_by_its_path(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "fold", WHEN, explicit=Path("elsewhere"))
    with Journal.create(run) as journal:
        journal.append([(opened(), codec.now())])
    assert find("elsewhere", tmp_path) == run
    assert find(".", run.path) == run


def test_what_is_not_found_is_said_with_where_it_was_looked_for(tmp_path: Path) -> None:
    assert here(tmp_path) is None
    assert nothing_under(tmp_path).startswith(f"there is no run under {tmp_path / RUNS}")
    with pytest.raises(UsageError, match=r"none is there"):
        find("fold", tmp_path)
    made(tmp_path)
    with pytest.raises(UsageError, match=r"no run 'flod': .*newest there: fold-20261120-074215"):
        find("flod", tmp_path)
    with pytest.raises(UsageError, match=r"no run 'flod': .*newest there: fold-20261120-074215"):
        find("flod", tmp_path / "below")
    with pytest.raises(UsageError, match="is a directory, but holds no run"):
        find(str(tmp_path), tmp_path)


def test_the_newest_run_of_a_job_file_is_that_file_s(tmp_path: Path) -> None:
    first = made(tmp_path, "a", 0, "a.yaml")
    second = made(tmp_path, "a", 1, "a.yaml")
    other = made(tmp_path, "b", 2, "b.yaml")
    (tmp_path / "link.yaml").symlink_to("a.yaml")
    (tmp_path / "a.yaml").write_text("jobs: []")
    assert newest_of(tmp_path / "a.yaml", tmp_path) == second != first
    assert newest_of(tmp_path / "link.yaml", tmp_path) == second
    assert newest_of(tmp_path / "b.yaml", tmp_path) == other
    assert newest_of(tmp_path / "c.yaml", tmp_path) is None


# ── Here, and above ─────────────────────────────────────────────────────────────────────────────


def test_runs_of_a_parent_are_found_from_below_and_the_nearest_counts(tmp_path: Path) -> None:
    below = tmp_path / "proj" / "sub" / "deep"
    below.mkdir(parents=True)
    top, near = made(tmp_path, seconds=9), made(tmp_path / "proj", seconds=1)
    assert here(below) == Here(tmp_path / "proj", (near,))
    assert _newest(below) == near
    assert find("latest", below) == near
    assert find(top.path.name, below) == top
    own = made(below, seconds=0)
    assert _newest(below) == own


def test_a_run_s_own_directory_means_that_run_and_so_does_what_is_below_it(tmp_path: Path) -> None:
    run, newer = made(tmp_path), made(tmp_path, seconds=5)
    assert _newest(run.path) == run
    assert _newest(run.logs) == run
    assert _newest(tmp_path / RUNS) == newer


def test_a_run_of_somebody_else_above_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "me"
    below.mkdir()
    run = made(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: run.path.stat().st_uid + 1)
    assert here(below) is None
    with pytest.raises(UsageError):
        find("fold", below)
    assert find(str(run.path), below) == run, "named by its directory it is looked at all the same"
    assert _newest(tmp_path) == run


def test_runs_begun_here_in_directories_of_their_own_are_of_here(tmp_path: Path) -> None:
    apart = made(tmp_path / "elsewhere", seconds=3)
    text = apart.manifest.read_text().replace(os.getcwd(), str(tmp_path / "here"))
    apart.manifest.write_text(text)
    (tmp_path / "here" / "below").mkdir(parents=True)
    assert here(tmp_path / "here" / "below", [apart]) == Here(tmp_path / "here", (apart,))


# ── A job file as a run ─────────────────────────────────────────────────────────────────────────


def test_a_job_file_means_its_newest_run(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    made(tmp_path, "a", 0, "a.yaml")
    newest = made(tmp_path, "a", 1, "a.yaml")
    other = made(tmp_path, "b", 2, "b.yaml")
    (tmp_path / "sub").mkdir()
    assert find("a.yaml", tmp_path) == newest
    assert find("../a.yaml", tmp_path / "sub") == newest
    assert find("b.yaml", tmp_path) == other, "also where the file itself is gone"


def test_a_job_file_s_run_is_found_beside_it_and_where_it_was_begun_whichever_is_newer(
    tmp_path: Path,
) -> None:
    project, home = tmp_path / "proj", tmp_path / "home"
    project.mkdir()
    (project / "jobs.yaml").touch()
    beside = made(project, seconds=1)
    (home / "elsewhere").mkdir(parents=True)
    assert find(str(project / "jobs.yaml"), home) == beside
    from_home = made(home, seconds=2, job_file=project / "jobs.yaml")
    assert find("../../proj/jobs.yaml", home / "elsewhere") == from_home


def test_a_file_in_a_run_s_directory_means_that_run(tmp_path: Path) -> None:
    run = made(tmp_path)
    made(tmp_path, seconds=5)
    run.jobs_file().write_text("jobs: []")
    assert find(str(run.jobs_file()), tmp_path) == run
    with pytest.raises(UsageError):
        find("typo", run.path)


def _awkward(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "notes.txt").write_text("no job file")
    (tmp_path / "gpu.csv").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo-run").mkdir()
    os.mkfifo(tmp_path / "fifo-run" / "events.jsonl")
    return {
        "notes.txt": "there is no run of .*notes.txt",
        "notes.txt/x": "it is no directory and no job file",
        "gpu.csv": "is a directory, but holds no run",
        "loop": "it is no directory and no job file",
        "fifo": "is a FIFO, neither a run's directory nor a job file",
        "fifo-run": "is a directory, but holds no run",
        "x" * 5000: "x" * 99,
        "x/" * 5000: "it is no directory and no job file",
        "a\0b": "it is no directory and no job file",
        "": "is a directory, but holds no run",
        "/dev/null": "is a device",
        "\udcff\x1b[31m": "it is no directory and no job file",
    }


@pytest.mark.parametrize("there", [False, True])
def test_whatever_is_typed_for_a_run_the_answer_is_one_short_line(
    tmp_path: Path, there: bool
) -> None:
    if there:
        made(tmp_path)
    for typed, expected in _awkward(tmp_path).items():
        with pytest.raises(UsageError, match=expected) as error:
            find(typed, tmp_path)
        assert len(str(error.value)) < 600 + len(str(tmp_path)) * 4
        assert str(error.value).isprintable()


def test_a_directory_with_runs_is_answered_with_the_newest_of_them(tmp_path: Path) -> None:
    (tmp_path / "proj").mkdir()
    run = made(tmp_path / "proj")
    with pytest.raises(UsageError, match=f"the newest run of it is {run.path}"):
        find("proj", tmp_path)


# ── What counts as none ─────────────────────────────────────────────────────────────────────────


def test_a_run_in_which_nothing_was_started_counts_as_none(tmp_path: Path) -> None:
    nothing = made(tmp_path, seconds=5, facts=NOTHING_STARTED)
    assert here(tmp_path) is None
    assert f"nothing was started in {nothing.path}" in nothing_under(tmp_path)
    started = made(tmp_path, seconds=1)
    assert _newest(tmp_path) == started
    assert find("latest", tmp_path) == started
    assert find("fold", tmp_path) == started
    assert find("jobs.yaml", tmp_path) == started
    assert newest_of(tmp_path / "jobs.yaml", tmp_path) == started
    assert find(nothing.path.name, tmp_path) == nothing
    assert find(str(nothing.path), tmp_path) == nothing


def test_a_run_in_which_nothing_was_started_is_before_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = made(tmp_path)
    made(tmp_path, seconds=1, facts=NOTHING_STARTED)
    assert before(made(tmp_path, seconds=2)) == started


def test_a_run_that_only_waited_in_its_last_turn_counts(tmp_path: Path) -> None:
    run = made(tmp_path, facts=(*STARTED, RunClosed("stopped", Quoted("no card came free"), 3)))
    assert _newest(tmp_path) == run


def test_the_words_of_a_job_do_not_make_its_run_one_that_started(tmp_path: Path) -> None:
    words = RunClosed("stopped", Quoted('"e":"attempt_launched"'), 3)
    made(tmp_path, facts=(words,))
    assert here(tmp_path) is None


def test_latest_points_to_the_newest_run_and_leaves_what_is_the_user_s(tmp_path: Path) -> None:
    old, new = made(tmp_path), made(tmp_path, seconds=5)
    link = tmp_path / RUNS / "latest"
    assert not link.is_symlink()
    make_latest(new)
    make_latest(old)
    assert os.readlink(link) == new.path.name
    left = [path.name for path in link.parent.iterdir() if path.name.startswith(".")]
    assert left == []
    link.unlink()
    link.mkdir()
    make_latest(new)
    assert link.is_dir()
    assert not link.is_symlink()
    named = RunDir.create(tmp_path, "x", WHEN, explicit=tmp_path / "named" / "run")
    make_latest(named)
    assert not (tmp_path / "named" / "latest").is_symlink()
