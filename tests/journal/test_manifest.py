from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpulaunch import __version__
from gpulaunch.base.commit import commit
from gpulaunch.base.errors import UsageError
from gpulaunch.core.model import Gpu
from gpulaunch.journal import manifest
from gpulaunch.journal.manifest import Git, Manifest, git_state

STARTED = "2026-11-20T07:42:15.000001Z"
GPU = Gpu("GPU-0", 0, "0000:01:00.0", "H200", 1 << 37, minor=0)


def collected(job_file: Path) -> Manifest:
    made = manifest.collect(
        "20261120-074215-3fa9c1",
        "fold",
        started=STARTED,
        command=["gpulaunch", "run", "jobs.yaml"],
        job_file=job_file,
        gpus=[GPU],
        driver="570.86",
    )
    return replace(made, directory=str(job_file.parent))


def git(directory: Path, *arguments: str) -> None:
    config = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(
        ["git", "-C", str(directory), *config, *arguments], check=True, capture_output=True
    )


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    first = collected(tmp_path / "jobs.yaml")
    manifest.write(path, first)
    assert manifest.read(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("started", "yesterday"),
        ("run", ""),
        ("run", "x" * 300),
        ("cwd", "/\0"),
    ],
)
def test_a_member_without_a_meaning_is_damage(tmp_path: Path, member: str, value: str) -> None:
    path = tmp_path / "manifest.json"
    manifest.write(path, replace(collected(tmp_path / "jobs.yaml"), **{member: value}))
    with pytest.raises(UsageError, match=r"manifest\.json is damaged: "):
        manifest.read(path)


def test_it_says_who_where_and_what(tmp_path: Path) -> None:
    made = collected(tmp_path / "jobs.yaml")
    assert made.version == __version__
    assert made.host == os.uname().nodename
    assert made.job_file == str(tmp_path / "jobs.yaml")
    assert made.gpus == (GPU,)
    assert (made.driver, made.simulated) == ("570.86", False)
    assert made.latest is not None
    assert (made.latest.epoch, made.latest.pid) == (1, os.getpid())
    assert made.latest.commit == commit()


def test_each_resume_adds_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    first = collected(tmp_path / "jobs.yaml")
    again = first.again(manifest.this_epoch(2, STARTED, ["gpulaunch", "resume"]))
    manifest.write(path, first)
    manifest.write(path, again)
    read = manifest.read(path)
    assert [epoch.command for epoch in read.epochs] == [first.command, ("gpulaunch", "resume")]
    assert read.latest is not None
    assert read.latest.epoch == 2


def test_it_says_which_engine_runs_and_an_older_one_means_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    first = collected(tmp_path / "jobs.yaml")
    assert (first.engine, first.slurm) == ("local", ())
    manifest.write(path, replace(first, engine="slurm", slurm=("--partition=gpu",)))
    read = manifest.read(path)
    assert (read.engine, read.slurm) == ("slurm", ("--partition=gpu",))
    older = json.loads(path.read_text())
    del older["engine"], older["slurm"], older["epochs"][0]["commit"]
    path.write_text(json.dumps(older))
    unknown = replace(first.epochs[0], commit="")
    assert manifest.read(path) == replace(first, epochs=(unknown,))


def test_values_of_the_environment_are_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_topsecret")
    manifest.write(tmp_path / "manifest.json", collected(tmp_path / "jobs.yaml"))
    assert "topsecret" not in (tmp_path / "manifest.json").read_text()


def test_a_newer_version_s_manifest_is_understood_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    manifest.write(path, collected(tmp_path / "jobs.yaml"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))
    assert manifest.read(path) == collected(tmp_path / "jobs.yaml")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run": 3}', "{}", "\xff"])
def test_a_damaged_manifest_is_a_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match="is damaged"):
        manifest.read(path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        manifest.read(tmp_path / "nothing.json")


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        manifest.write(path, collected(tmp_path / "jobs.yaml"))
    assert [each.name for each in tmp_path.iterdir()] == ["manifest.json"]


# ── git ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_commit_and_whether_it_was_clean(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "jobs.yaml").write_text("jobs: []\n")
    assert git_state(tmp_path) is None  # no commit yet
    git(tmp_path, "add", "jobs.yaml")
    git(tmp_path, "commit", "-qm", "a")
    clean = git_state(tmp_path)
    assert clean is not None
    assert clean.clean
    assert len(clean.commit) == 40
    (tmp_path / "gpulaunch-runs").mkdir()
    (tmp_path / "gpulaunch-runs" / "x").write_text("a run makes no tree unclean")
    assert git_state(tmp_path) == clean
    (tmp_path / "jobs.yaml").write_text("jobs: [{run: x}]\n")
    assert git_state(tmp_path) == Git(clean.commit, clean=False)


def test_no_repository_and_no_git_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    assert git_state(tmp_path / "not there") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


def test_a_git_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "git"
    fake.write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None
