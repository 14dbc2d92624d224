"""`resume --changed` runs again what succeeded with another input than there is now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from tests.cli.launcher import Launcher

JOBS = """
jobs:
  - name: fold-{{stem}}
    foreach: in/*.txt
    gpus: 0
    run: cat {{path}} > {{out}}/x
  - {name: plot, needs: ["fold-a"], gpus: 0, run: 'echo p > {{out}}/x'}
  - {name: other, after: ["fold-*"], gpus: 0, run: 'true'}
"""


@pytest.fixture
def ran(launcher: Launcher) -> Launcher:
    for name in "abc":
        launcher.file(f"in/{name}.txt", name)
    launcher.file("jobs.yaml", JOBS)
    assert launcher("run", "jobs.yaml", "--simulate", "1", "-q").status == 0
    return launcher


def attempts(launcher: Launcher) -> dict[str, int]:
    return {name: len(job["attempts"]) for name, job in launcher.jobs().items()}


def test_a_changed_input_is_counted_and_runs_again_with_what_needs_it(ran: Launcher) -> None:
    ran.file("in/a.txt", "another")
    plain = ran("resume")
    assert "5 done, 0 again, 1 done but changed (1 with a changed input)" in plain.err
    assert set(attempts(ran).values()) == {1}
    done = ran("resume", "--changed")
    assert done.status == 0, done.err
    assert "3 done, 2 again (of these 1 with a changed input, 1 that need those)" in done.err
    assert "after jobs that run again, and left as they are: other; needs: in place" in done.err
    assert attempts(ran) == {"fold-a": 2, "fold-b": 1, "fold-c": 1, "plot": 2, "other": 1}
    assert (ran.run / "results" / "fold-a" / "x").read_text() == "another"
    again = ran("resume", "--changed")
    assert "5 done, 0 again" in again.err, "it was seen as it is now"


def test_an_input_that_is_gone_is_said_and_its_job_left(launcher: Launcher) -> None:
    launcher.file("in.txt", "x")
    launcher.file("list", "in.txt\n")
    launcher.file(
        "jobs.yaml",
        "jobs: [{name: 'a-{{stem}}', foreach: {lines: list}, gpus: 0, run: 'cat {{path}}'}]",
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1", "-q").status == 0
    (launcher.path / "in.txt").unlink()
    result = launcher("resume", "--changed")
    assert result.status == 0
    assert "done, and their input is gone, so they are not run again: a-in" in result.err
    assert attempts(launcher) == {"a-in": 1}


def test_a_run_that_recorded_no_inputs_is_gone_on_with(ran: Launcher) -> None:
    journal = ran.run / "events.jsonl"
    lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
    from zlib import crc32

    kept = [line for line in lines if line["e"] != "inputs_seen"]
    assert len(kept) == len(lines) - 3, "a line for each job with a file, and for no other"
    whole = b""
    for number, line in enumerate(kept, 1):
        del line["c"]
        body = json.dumps({**line, "n": number}, separators=(",", ":"), ensure_ascii=False).encode()
        whole += body[:-1] + b',"c":"%08x"}\n' % crc32(body)
    journal.write_bytes(whole)
    ran.file("in/a.txt", "another")
    result = ran("resume", "--changed")
    assert result.status == 0, result.err
    assert "5 done, 0 again" in result.err


BASES = """
jobs:
  - {name: "g-{{stem}}", foreach: "in/*.txt", gpus: 0, run: "true"}
  - {name: "v-{{index}}", foreach: {values: [one, two]}, gpus: 0, run: "echo {{item}}"}
  - {name: "p-{{index}}", foreach: {values: [one, two]}, gpus: 0, run: [cat, "{{path}}"]}
  - {name: "b-{{index}}", foreach: "in/*.txt", batch: 2, gpus: 0, run: "ls {{batch_dir}}"}
  - {name: plain, gpus: 0, run: "true"}
"""


def test_items_are_inputs_where_they_are_files_that_the_job_reads(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("")
    plan = load_text(BASES.encode(), Surroundings({}), name="jobs.yaml", base=tmp_path)
    found = {job.name[0]: job.input_base for job in plan.jobs if job.name != "plain"}
    assert found == {"g": str(tmp_path), "v": None, "p": str(tmp_path), "b": None}
    assert all(job.input_base is None for job in plan.jobs if job.name == "plain")
