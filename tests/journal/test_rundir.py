from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.journal.append import Journal
from gpulaunch.journal.rundir import RUNS, RunDir, file_name, new_run_id
from tests.journal.made import WHEN, made

# ── Making one ──────────────────────────────────────────────────────────────────────────────────


def test_a_run_gets_a_private_directory_named_for_its_moment(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "fold", WHEN)
    assert run.path == tmp_path / "gpulaunch-runs" / "fold-20261120-074215"
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert sorted(p.name for p in run.path.iterdir()) == ["ends", "logs", "out", "results"]


def test_two_runs_of_one_second_do_not_share_a_directory(tmp_path: Path) -> None:
    names = [RunDir.create(tmp_path, "fold", WHEN).path.name for _ in range(3)]
    stem = "fold-20261120-074215"
    assert names == [stem, f"{stem}-2", f"{stem}-3"]


def test_launchers_that_start_together_get_a_directory_each(tmp_path: Path) -> None:
    made: list[RunDir] = []
    threads = [
        threading.Thread(target=lambda: made.append(RunDir.create(tmp_path, "fold", WHEN)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.path for run in made}) == 16


def test_a_named_directory_is_used_as_it_is(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "fold", WHEN, explicit=Path("deep/down/here"))
    assert run.path == tmp_path / "deep/down/here"
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / RUNS).exists()


def test_an_empty_directory_is_made_private_and_one_in_use_is_left(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o755)
    used = tmp_path / "used"
    used.mkdir()
    used.chmod(0o755)
    (used / "notes.txt").write_text("mine")
    assert RunDir.create(tmp_path, "a", WHEN, Path("empty")).path.stat().st_mode & 0o777 == 0o700
    assert RunDir.create(tmp_path, "a", WHEN, used).path.stat().st_mode & 0o777 == 0o755


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path)
    with pytest.raises(UsageError, match="already holds a run"):
        RunDir.create(tmp_path, "fold", WHEN, explicit=run.path)


def test_what_died_before_its_first_event_is_no_run(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "x", WHEN, explicit=tmp_path / "x")
    run.manifest.write_text("{}")
    run.events.touch()
    assert not run.holds_run
    again = RunDir.create(tmp_path, "x", WHEN, explicit=run.path)
    Journal.create(again).close()


def test_where_no_directory_can_be_made_the_reason_is_said(tmp_path: Path) -> None:
    (tmp_path / RUNS).write_text("a file in the way")
    with pytest.raises(UsageError, match=r"no run directory can be made at .*gpulaunch-runs"):
        RunDir.create(tmp_path, "fold", WHEN)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fold", "fold"),
        ("a/b", "a_b"),
        ("..", "_."),
        (".hidden", "_hidden"),
        ("", "run"),
        ("tab\there\n", "tab_here_"),
        ("β x", "β x"),
        ("n" * 300, "n" * 200),
        ("é" * 150, "é" * 100),
    ],
)
def test_any_name_begins_a_file_name(tmp_path: Path, name: str, expected: str) -> None:
    assert file_name(name) == expected
    assert RunDir.create(tmp_path, name, WHEN).path.parent == tmp_path / RUNS


# ── Its paths ───────────────────────────────────────────────────────────────────────────────────

NAMES = [
    "a b",
    "-rf",
    "β-Amyloid",
    "a.1",
    "new\nline",
    "x" * 200,
    "é" * 100,
    "latest",
    "~",
    "$(id)",
]


@pytest.mark.parametrize("name", NAMES)
def test_jobs_of_any_name_have_files_of_their_own(tmp_path: Path, name: str) -> None:
    run = RunDir.create(tmp_path, "fold", WHEN)
    attempt = AttemptId(name, 123)
    run.log(attempt).write_text("log")
    run.end(attempt).write_text("end")
    run.out(attempt).mkdir()
    (run.out(attempt) / "pred.cif").write_text("atoms")
    run.link_result(attempt)
    assert (run.result(name) / "pred.cif").read_text() == "atoms"
    assert os.readlink(run.result(name)) == f"../out/{name}.123"
    run.record(name).parent.mkdir(parents=True)
    run.record(name).write_text(">x")
    run.batch(name).mkdir(parents=True)


@pytest.mark.parametrize("name", ["", ".", "..", "../../etc/passwd", "a/b", "nul\0"])
def test_a_journal_s_names_lead_nowhere_else(tmp_path: Path, name: str) -> None:
    run = SlurmDir(tmp_path)
    for path in (run.log, run.out, run.end, run.ticket, run.start, run.stop):
        with pytest.raises(ValueError, match="must be a file name"):
            path(AttemptId(name, 1))
    for of_job in (run.result, run.record, run.batch):
        with pytest.raises(ValueError, match="must be a file name"):
            of_job(name)


def test_attempts_of_names_that_look_alike_do_not_meet(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    attempts = [AttemptId(job, n) for job in ("a", "a.1", "a.1.1", "a.1.log") for n in (1, 2, 11)]
    assert len({run.log(attempt) for attempt in attempts}) == len(attempts)
    assert len({run.out(attempt) for attempt in attempts}) == len(attempts)


def test_a_result_moves_to_the_newest_success_in_one_step(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "fold", WHEN)
    for number in (1, 2):
        run.link_result(AttemptId("a", number))
        assert os.readlink(run.result("a")) == f"../out/a.{number}"
    assert [path.name for path in run.results.iterdir()] == ["a"]


def test_each_reading_of_the_job_file_is_kept(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    names = [run.jobs_file().name, run.jobs_file(2).name, run.jobs_file(10).name]
    assert names == ["jobs.yaml", "jobs.2.yaml", "jobs.10.yaml"]


def test_a_run_moved_as_a_whole_keeps_its_results(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.out(AttemptId("a", 1)).mkdir()
    (run.out(AttemptId("a", 1)) / "x").write_text("1")
    run.link_result(AttemptId("a", 1))
    moved = RunDir(run.path.rename(tmp_path / "moved"))
    assert (moved.result("a") / "x").read_text() == "1"


def test_run_ids_are_of_one_form_and_differ() -> None:
    ids = {new_run_id(WHEN) for _ in range(100)}
    assert len(ids) > 95
    assert all(id.startswith("20261120-074215-") and len(id) == 22 for id in ids)
