"""`ladder:` in a job file: what it accepts, and where its values may stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.core.model import Ladder
from gpulaunch.core.template import Template, render, slots
from tests.jobfile.helpers import job_of, jobs_of, mistakes_of


def test_values_are_texts_as_typed_and_slots_until_the_start() -> None:
    job = job_of(
        "run: 'x --batch {{batch}} {{out}}', env: {B: '{{batch}}'}, outputs: ['{{batch}}.txt'],"
        " retries: 2, ladder: {batch: [032, 1.60e1, NO]}"
    )
    assert job.ladder == Ladder(("batch",), (("032",), ("1.60e1",), ("NO",)))
    assert isinstance(job.run, Template)
    assert [slot.name for slot in slots(job.run)] == ["batch", "out"]
    assert render(job.run, {"batch": "a b", "out": "o"}) == "x --batch 'a b' 'o'"


def test_keys_move_together() -> None:
    job = job_of("run: x, retries: 1, ladder: {batch: [32, 16, 16], chunk: [0, 0, 64]}")
    assert job.ladder is not None
    assert [job.ladder.step(number).values for number in (1, 3)] == [
        {"batch": "32", "chunk": "0"},
        {"batch": "16", "chunk": "64"},
    ]


def test_defaults_may_hold_it_and_a_job_leave_it_out() -> None:
    with_it, without = jobs_of("""
        defaults: {ladder: {batch: [2, 1]}, retries: 1}
        jobs: [{name: a, run: 'x {{batch}}'}, {name: b, run: x, ladder: null}]
    """)
    assert with_it.ladder is not None
    assert without.ladder is None


def test_the_step_is_no_part_of_the_definition_and_the_ladder_is() -> None:
    one = job_of("name: a, run: 'x {{batch}}', retries: 2, ladder: {batch: [32, 16]}")
    same = job_of("name: a, run: 'x {{batch}}', retries: 9, ladder: {batch: [32, 16]}")
    other = job_of("name: a, run: 'x {{batch}}', retries: 2, ladder: {batch: [32, 8]}")
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("ladder: {batch: [2]}", "jobs[0].ladder.batch: expected a list of two values or more"),
        ("ladder: {batch: 2}", "jobs[0].ladder.batch: expected a list of two values or more"),
        ("ladder: [2, 1]", "jobs[0].ladder: expected keys with lists like {batch: [32, 16]}"),
        ("ladder: {}", "jobs[0].ladder: expected keys with lists like {batch: [32, 16]}"),
        (
            "ladder: {batch: [3, 2, 1], chunk: [2, 1]}",
            "jobs[0].ladder.chunk: 2 values, batch has 3: they move together, step by step",
        ),
        ("ladder: {batch: [2, 1, 2]}", "jobs[0].ladder.batch[2]: step 3 is step 1 again"),
        ("ladder: {gpu: [2, 1]}", "jobs[0].ladder.gpu: the name gpu is reserved for {{gpu}}"),
        ("ladder: {item: [2, 1]}", "jobs[0].ladder.item: the name item is reserved"),
        ("ladder: {'a b': [2, 1]}", "jobs[0].ladder.a b: expected a name of letters"),
        ("ladder: {a: ['{{out}}', 1]}", "jobs[0].ladder.a[0]: placeholders do not work here"),
        ("ladder: {a: [[1], 2]}", "jobs[0].ladder.a[0]: expected one value"),
        (
            "ladder: {lr: [2, 1]}, matrix: {lr: [1, 2]}",
            "jobs[0].ladder.lr: lr is a name that matrix gives",
        ),
    ],
)
def test_mistakes_have_their_place(fields: str, message: str) -> None:
    (line,) = mistakes_of(f"jobs: [{{run: x, retries: 2, {fields}}}]")
    assert line.split(": ", 1)[1].startswith(message), line


@pytest.mark.parametrize("retries", ["", "retries: 0,", "retries: {times: 0},"])
def test_without_retries_it_never_moves(retries: str) -> None:
    (line,) = mistakes_of(f"jobs: [{{run: x, {retries} ladder: {{batch: [2, 1]}}}}]")
    assert line.endswith("jobs[0].ladder: it moves with each retry, and retries: is 0")


def test_a_column_of_the_same_name_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,batch\na,1\n")
    (line,) = mistakes_of(
        "jobs: [{run: x, retries: 1, foreach: {csv: t.csv}, ladder: {batch: [2, 1]}}]", tmp_path
    )
    assert line.endswith("batch is a name that foreach gives")


@pytest.mark.parametrize("field", ["name: 'a-{{batch}}'", "gpus: '{{batch}}'", "cost: '{{batch}}'"])
def test_where_it_is_not_known_yet_it_does_not_work(field: str) -> None:
    (line,) = mistakes_of(f"jobs: [{{run: x, retries: 1, ladder: {{batch: [2, 1]}}, {field}}}]")
    assert "{{batch}} is known only when the job starts" in line


def test_a_workers_item_gets_it_and_its_own_command_does_not() -> None:
    (line,) = mistakes_of(
        "jobs: [{foreach: {values: [a]}, retries: 1, ladder: {batch: [2, 1]},"
        " worker: {run: [python, loop.py, '{{batch}}']}}]"
    )
    assert "{{batch}} is known only when the job starts" in line
    (line,) = mistakes_of(
        "jobs: [{foreach: {values: [a]}, retries: 1, ladder: {batch: [2, 1]},"
        " env: {B: '{{batch}}'}, worker: {run: [python, loop.py]}}]"
    )
    assert "its value changes from job to job" in line


def test_a_long_ladder_takes_time_in_proportion_to_its_length() -> None:
    steps = ", ".join(map(str, range(100_000)))
    job = job_of(f"run: x, retries: 1, ladder: {{batch: [{steps}]}}")
    assert job.ladder is not None
    assert len(job.ladder.steps) == 100_000
