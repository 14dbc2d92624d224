"""`worker:` in a job file: its forms, its mistakes, and which jobs may share a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.base.errors import JobFileError
from gpulaunch.core.model import Worker
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from gpulaunch.jobfile.plan import Plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("fold.py", "a.fasta", "b.fasta"):
        (tmp_path / name).write_text("x")
    return tmp_path


def read(folder: Path, entry: str) -> Plan:
    name = "" if "name:" in entry else "name: 'f-{{stem}}', "
    items = "" if "foreach:" in entry else "foreach: '*.fasta', "
    text = f"jobs:\n  - {{{name}{items}{entry}}}"
    return load_text(text.encode(), Surroundings({}), name="j.yaml", base=folder)


def mistakes(folder: Path, entry: str) -> str:
    with pytest.raises(JobFileError) as caught:
        read(folder, entry)
    return str(caught.value)


def test_a_function_of_a_file_is_found_beside_the_job_file(folder: Path) -> None:
    one, two = read(folder, "worker: 'fold.py:predict'").jobs
    assert one.worker == Worker(f"{folder}/fold.py:predict")
    assert one.run == ("python", f"{folder}/fold.py")
    assert one.item["stem"] == "a"
    assert one.item["path"] == f"{folder}/a.fasta"
    assert one.demand.worker == two.demand.worker != ""


def test_everything_that_a_worker_may_say(folder: Path) -> None:
    form = (
        "{function: pack.mod:fold, load: fold.py:load, items: 200, memory: 30GB, load_timeout: 10m}"
    )
    (job, _) = read(folder, f"worker: {form}").jobs
    assert job.worker == Worker(
        "pack.mod:fold", f"{folder}/fold.py:load", (), 200, 30 * 10**9, 600.0
    )
    assert job.run == ("python", "-m", "pack.mod")


def test_a_program_that_reads_lines(folder: Path) -> None:
    (job, _) = read(folder, "worker: {run: [python, loop.py, 3], items: 5}").jobs
    assert job.worker == Worker(run=("python", "loop.py", "3"), items=5)
    assert job.run == ("python", "loop.py", "3")


def test_each_kind_of_model_is_a_worker_of_its_own(folder: Path) -> None:
    jobs = read(folder, "matrix: {m: [x, y]}, worker: {run: [fold, '{{m}}']}, name: null").jobs
    assert len(jobs) == 4
    assert len({job.demand.worker for job in jobs}) == 2


@pytest.mark.parametrize(
    ("field", "shared"),
    [
        ("timeout: '1{{index}}'", True),
        ("outputs: ['{{stem}}.pdb']", True),
        ("priority: '{{index}}'", True),
        ("cwd: '{{dir}}'", True),
        ("env: {OUT: '{{out}}'}", True),
        ("env: {A: '{{stem}}'}", False),
        ("gpu_memory: '2{{index}}GB'", False),
        ("cpus: '1{{index}}'", False),
    ],
)
def test_what_keeps_jobs_from_sharing_a_process(folder: Path, field: str, shared: bool) -> None:
    jobs = read(folder, f"worker: 'fold.py:predict', {field}").jobs
    assert (len({job.demand.worker for job in jobs}) == 1) == shared


def test_the_digest_changes_with_the_function_and_the_item_but_not_its_number(
    folder: Path,
) -> None:
    def digests(entry: str) -> dict[str, str]:
        return {job.name: job.digest for job in read(folder, entry).jobs}

    before = digests("worker: 'fold.py:predict'")
    assert len(set(before.values())) == 2
    assert digests("worker: {function: 'fold.py:predict', items: 3}") == before
    assert digests("worker: 'fold.py:other'")["f-a"] != before["f-a"]
    (folder / "Z.fasta").write_text("x")
    (folder / "0.fasta").write_text("x")
    after = digests("worker: 'fold.py:predict'")
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("worker: fold.py", "expected FILE.py:function or package.module:function"),
        ("worker: 'fold.py:a b'", "expected FILE.py:function or package.module:function"),
        ("worker: 'nowhere.py:predict'", "nowhere.py does not exist"),
        ("worker: [fold]", "expected FILE.py:function, package.module:function"),
        ("worker: {}", "expected function: or run:, one of them; found neither"),
        ("worker: {function: 'fold.py:f', run: [x]}", "one of them; found both"),
        ("worker: {run: [x], load: 'fold.py:f'}", "load: goes with function:"),
        ("worker: {run: python loop.py}", "expected a program and its arguments"),
        ("worker: {function: 'fold.py:f', items: 0}", "after how many items"),
        ("worker: {function: 'fold.py:f', itms: 3}", "did you mean items"),
        ("worker: {function: 'fold.py:f', memory: 30}", "j.yaml:2"),
        ("worker: 'fold.py:f', run: x", "run: and worker: exclude each other"),
        ("worker: 'fold.py:f', service: {ready: 'tcp:1'}", "a service runs beside the jobs"),
        ("worker: {run: [x, '{{out}}']}", "{{out}} is known only when the job starts"),
        ("worker: {run: [x]}, env: {A: '{{out}}'}", "finds it in each line that it reads"),
        ("name: null", "run: is missing: the command to run"),
    ],
)
def test_mistakes_say_what_was_expected(folder: Path, entry: str, words: str) -> None:
    assert words in mistakes(folder, entry)


def test_a_worker_for_each_of_many_jobs_is_a_mistake(folder: Path) -> None:
    entry = "worker: 'fold.py:f', env: {A: '{{n}}'}, foreach: null, name: null"
    numbers = ", ".join(map(str, range(300)))
    assert "more than 256 different workers" in mistakes(
        folder, f"{entry}, matrix: {{n: [{numbers}]}}"
    )


def test_a_file_that_a_need_makes_may_come_later(folder: Path) -> None:
    text = """
    jobs:
      - {name: make, run: "true"}
      - {name: use, needs: [make], worker: "made/fold.py:predict"}
    """
    jobs = load_text(text.encode(), Surroundings({}), name="j.yaml", base=folder).jobs
    assert jobs[1].worker == Worker(f"{folder}/made/fold.py:predict")
