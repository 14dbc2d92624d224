"""What is made just before a start: a record's own file, and the outputs to look for."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest

from gpulaunch.base.text import unescaped
from gpulaunch.core.model import FastaRecord, Job
from gpulaunch.core.template import render
from gpulaunch.engines.prepare import NotPreparedError, OutputDirs, materialise
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.items import digest_of
from gpulaunch.jobfile.load import load_text
from gpulaunch.journal.rundir import RunDir


def jobs_of(text: str, base: Path) -> tuple[Job, ...]:
    return load_text(text.encode(), Surroundings({"HOME": "/h[1]"}), name="j.yaml", base=base).jobs


def test_a_job_gets_its_record_as_it_was_when_the_file_was_read(tmp_path: Path) -> None:
    file = tmp_path / "s.fa"
    file.write_text(">a x\nACD\n>b\nEFG\n")
    a, b = jobs_of("jobs: [{run: 'x {{path}}', foreach: {fasta: s.fa}}]", tmp_path)
    assert b.fasta == FastaRecord(str(file), 9, 7, digest_of(b">b\nEFG\n"))
    run = RunDir(tmp_path / "run")
    assert Path(materialise(a, run)["path"]).read_text() == ">a x\nACD\n"
    for torn in (">a x\nAC\n>b\nEFGH\n", ">a x\nACD\n>b\nEFK\n", ">a x\nACD\n>b\nE", ""):
        file.write_text(torn)
        with pytest.raises(NotPreparedError, match=r"s\.fa changed since the run began: record b"):
            materialise(b, run)
    file.write_text(">a x\nACK\n>b\nEFG\n")
    assert Path(materialise(b, run)["path"]).read_text() == ">b\nEFG\n"


def test_a_batch_holds_the_items_that_it_has_now_and_what_jobs_have_put_there(
    tmp_path: Path,
) -> None:
    run = RunDir(tmp_path / "run")
    old = Job("j", "x", batch=("/in/a.txt", "/in/b.txt", "/old/c.txt"))
    place = Path(materialise(old, run)["batch_dir"])
    (place / "notes").write_text("the job's own")
    new = Job("j", "x", batch=("/in/b.txt", "/new/c.txt"))
    assert Path(materialise(new, run)["batch_dir"]) == place
    links = {path.name: os.readlink(path) for path in place.iterdir() if path.is_symlink()}
    assert links == {"b.txt": "/in/b.txt", "c.txt": "/new/c.txt"}
    assert (place / "notes").exists()


def test_in_outputs_only_what_was_typed_is_a_pattern(tmp_path: Path) -> None:
    names = ["a[1].in", "a1.in", "b*.in", "bb.in", "c?.in"]
    for name in names:
        (tmp_path / name).touch()
    jobs = jobs_of("jobs: [{run: x, foreach: '*.in', outputs: ['{{stem}}.re[s]']}]", tmp_path)
    for name in names:
        (tmp_path / name).with_suffix(".res").touch()
    for job in jobs:
        stem = job.name.removeprefix("job-")
        pattern = render(job.outputs[0], {})
        assert glob.glob(pattern, root_dir=tmp_path) == [f"{stem}.res"]
        assert unescaped(pattern) == f"{stem}.re[s]"


def test_the_home_directory_in_outputs_is_the_home_directory(tmp_path: Path) -> None:
    (job,) = jobs_of("jobs: [{run: x, outputs: ['~/a*', '~', 'b/~', '~b']}]", tmp_path)
    assert job.outputs == ("/h[[]1]/a*", "/h[[]1]", "b/~", "~b")
    assert [unescaped(str(text)) for text in job.outputs][:2] == ["/h[1]/a*", "/h[1]"]
    assert os.path.join(tmp_path, str(job.outputs[0])) == job.outputs[0]


def test_an_empty_output_directory_serves_a_later_attempt(tmp_path: Path) -> None:
    outs = OutputDirs()
    outs.make(str(tmp_path / "a.1"))
    made = os.stat(tmp_path / "a.1")
    outs.over(str(tmp_path / "a.1"))
    assert not (tmp_path / "a.1").exists()
    outs.make(str(tmp_path / "b.1"))
    assert os.stat(tmp_path / "b.1").st_ino == made.st_ino
    outs.over(str(tmp_path / "b.1"))
    outs.close()
    assert list(tmp_path.iterdir()) == []


def test_only_an_output_directory_that_is_as_one_just_made_serves_again(tmp_path: Path) -> None:
    outs = OutputDirs()
    for name in ("full", "open", "gone"):
        outs.make(str(tmp_path / name))
    (tmp_path / "full" / "result").touch()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "gone").rmdir()
    for name in ("full", "open", "gone"):
        outs.over(str(tmp_path / name))
    outs.make(str(tmp_path / "fresh"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "full"]
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o700
    outs.close()


def test_a_spare_directory_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    outs = OutputDirs()
    outs.make(str(tmp_path / "a.1"))
    outs.over(str(tmp_path / "a.1"))
    for path in tmp_path.iterdir():
        path.rmdir()
    outs.make(str(tmp_path / "b.1"))
    assert (tmp_path / "b.1").is_dir()
