"""A project folder that was renamed, moved or copied keeps its runs, each its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpulaunch.journal.liveness import original_of
from gpulaunch.journal.rundir import RunDir
from tests.cli.launcher import Launcher

JOBS = """
    jobs:
      - {name: good, run: 'pwd > {{out}}/where'}
      - {name: bad, needs: [good], run: '[ -e mended ]'}
"""


@pytest.fixture
def project(launcher: Launcher) -> Launcher:
    """A folder whose run has failed in part."""
    made = Launcher(launcher.path / "proj", launcher.environ)
    made.path.mkdir()
    made.file("jobs.yaml", JOBS)
    assert made("run", "jobs.yaml", "--simulate", "1").status == 1
    return made


def moved(project: Launcher, name: str, copy: bool = False) -> Launcher:
    to = project.path.parent / name
    if copy:
        shutil.copytree(project.path, to, symlinks=True)
    else:
        to.parent.mkdir(exist_ok=True)
        project.path.rename(to)
    return Launcher(to, project.environ)


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ("retry",),
        ("resume",),
        ("resume", "jobs.yaml"),
        ("resume", "--recorded"),
        ("retry", "--recorded"),
        ("run", "--continue", "jobs.yaml", "--simulate", "1"),
    ],
)
def test_a_run_goes_on_where_its_folder_is_now(
    project: Launcher, words: tuple[str, ...], copy: bool
) -> None:
    here = moved(project, "deep/renamed" if not copy else "copied", copy)
    here.file("mended", "")
    done = here(*words)
    assert done.status == 0, done.err
    assert here.states() == {"good": "succeeded", "bad": "succeeded"}
    assert len(here.jobs()["good"]["attempts"]) == 1, "it had succeeded"
    assert [path.name for path in (here.path / "gpulaunch-runs").iterdir() if path.is_dir()] != []
    assert here.path.joinpath("gpulaunch-runs").stat().st_nlink == 3, "it is the same run"
    assert not copy or project.states()["bad"] == "failed", "the original is as it was"


@pytest.mark.parametrize("words", [("report",), ("logs", "good"), ("status",), ("wait",)])
def test_a_moved_run_is_looked_at_by_its_job_file(
    project: Launcher, words: tuple[str, ...]
) -> None:
    here = moved(project, "renamed")
    named = ("-r", "jobs.yaml") if words[0] == "logs" else ("jobs.yaml",)
    assert here(*words, *named).status == (1 if words[0] == "wait" else 0)


def test_what_succeeded_is_not_called_changed_where_only_the_folder_was_renamed(
    project: Launcher,
) -> None:
    here = moved(project, "renamed")
    here.file("mended", "")
    done = here("resume", "--changed")
    assert done.status == 0
    assert "changed" not in done.err
    assert len(here.jobs()["good"]["attempts"]) == 1


def test_a_renamed_run_moves_again(project: Launcher) -> None:
    here = moved(project, "renamed")
    assert here("retry").status == 1
    again = moved(here, "once-more")
    again.file("mended", "")
    assert again("retry").status == 0


def test_a_run_directory_alone_that_was_moved_keeps_its_job_file(project: Launcher) -> None:
    archive = project.path.parent / "archive"
    archive.mkdir()
    run = project.run.rename(archive / "old-run")
    project.file("mended", "")
    assert project("retry", run).status == 0
    assert project.states(run)["bad"] == "succeeded"


def test_a_copy_is_not_the_live_run_it_was_copied_from(launcher: Launcher) -> None:
    project = Launcher(launcher.path / "proj", launcher.environ)
    project.path.mkdir()
    project.file("jobs.yaml", "jobs: [{name: a, run: '[ -e done ] || exec sleep 1000', grace: 0}]")
    with project.begun("run", "jobs.yaml", "--simulate", "1") as process:
        project.wait_for("attempt_started")
        copied = moved(project, "copied", copy=True)
        assert copied.status()["run"]["state"] == "interrupted"
        for words in (("cancel", "--all"), ("drain",), ("cancel", "--all", "-r", copied.run)):
            refused = copied(*words)
            assert refused.status == 2
        assert copied("wait").status == 1
        copied.file("done", "")
        assert copied("resume").status == 0, "it goes on beside the original"
        assert copied.states() == {"a": "succeeded"}
        assert project.states() == {"a": "running"}
        assert copied.status()["run"]["id"] != project.status()["run"]["id"]
        assert project("cancel", "--all").status == 0
        assert process.wait(60) == 1


def test_a_folder_renamed_under_a_live_run_is_that_run_s(launcher: Launcher) -> None:
    project = Launcher(launcher.path / "proj", launcher.environ)
    project.path.mkdir()
    project.file("jobs.yaml", "jobs: [{name: a, run: exec sleep 1000, grace: 0}]")
    with project.begun("run", "jobs.yaml", "--simulate", "1"):
        project.wait_for("attempt_started")
        here = moved(project, "renamed")
        assert original_of(RunDir(here.run)) is None
        assert here.status()["run"]["state"] == "running"
        assert here("run", "jobs.yaml", "--simulate", "1").status == 5


def test_a_manifest_of_an_older_version_follows_as_well(project: Launcher) -> None:
    here = moved(project, "renamed")
    run = RunDir(here.run)
    text = run.manifest.read_text()
    manifest = run.read_manifest()
    without = text.replace(f'"directory": "{manifest.directory}"', '"directory": ""')
    assert without != text
    run.manifest.write_text(without)
    assert run.read_manifest().job_file == str(here.path / "jobs.yaml")
    assert Path(run.read_manifest().cwd) == here.path
