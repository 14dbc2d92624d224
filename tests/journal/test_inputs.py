"""How input files were at a start, and whether they are so still."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulaunch.core import facts as f
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, Instant, Job
from gpulaunch.journal.joblog import InputLook, files_of, look, stamp_of

AT = Instant(0.0, 0.0)


def reads(path: Path, name: str = "a") -> Job:
    return Job(name, "true", params={"item": path.name}, input_base=str(path.parent))


def succeeded(job: Job, stamp: str) -> Ledger:
    ledger, attempt = Ledger(), AttemptId(job.name, 1)
    ledger.apply(f.JobAdded(job.name, 0, 0, "v1"), AT)
    ledger.apply(f.AttemptLaunched(attempt, ()), AT)
    if stamp:
        ledger.apply(f.InputsSeen(attempt, stamp), AT)
    ledger.apply(f.AttemptStarted(attempt, 7), AT)
    ledger.apply(f.AttemptEnded(attempt, End(Exited(0))), AT)
    ledger.apply(f.JobSettled(job.name, "succeeded"), AT)
    return ledger


def test_a_stamp_is_of_size_and_time_and_follows_links(tmp_path: Path) -> None:
    file = tmp_path / "x.fasta"
    file.write_text("ACGT")
    os.utime(file, ns=(7, 1_700_000_000_123_456_789))
    assert stamp_of(reads(file)) == "4:1700000000123456789"
    (tmp_path / "link").symlink_to(file)
    assert stamp_of(reads(tmp_path / "link")) == "4:1700000000123456789"
    assert stamp_of(reads(tmp_path / "none")) == ""
    assert stamp_of(reads(tmp_path)) == "", "a job may write into it"
    assert stamp_of(Job("a", "true")) == ""
    assert files_of(Job("a", "true")) == ()


def test_a_batch_is_one_stamp_of_all_its_files(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(20)]
    for file in files:
        file.write_text("x")
    job = Job("a", "true", batch=tuple(map(str, files)))
    before = stamp_of(job)
    assert before.startswith("20:")
    files[7].write_text("xy")
    assert stamp_of(job) != before
    files[7].unlink()
    assert stamp_of(job) == ""


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ("ACGT", InputLook()),
        ("ACGTA", InputLook(changed=frozenset({"a"}))),
        (None, InputLook(missing=frozenset({"a"}))),
    ],
)
def test_only_what_differs_has_changed(tmp_path: Path, now: str | None, found: InputLook) -> None:
    file = tmp_path / "x"
    file.write_text("ACGT")
    job = reads(file)
    ledger = succeeded(job, stamp_of(job))
    if now is None:
        file.unlink()
    elif now != "ACGT":
        file.write_text(now)
    assert look([job], ledger) == found
    assert look([job], ledger, seconds=-1) == InputLook(), "no time was given to look"


def test_what_was_not_looked_at_then_is_not_known_to_have_changed(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("ACGT")
    job = reads(file)
    assert look([job], succeeded(job, "")) == InputLook(), "an older version kept no stamp"
    assert look([job], Ledger()) == InputLook()
