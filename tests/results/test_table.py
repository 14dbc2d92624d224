"""Columns: their types, their names where two agree, their order; rows sorted."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import Any

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.core import facts as f
from gpulaunch.core.ledger import JobRecord
from gpulaunch.observe.results.cells import Cell, from_texts, kind_of, scalar, spelled
from gpulaunch.observe.results.gathering import JobValues, LeftValues
from gpulaunch.observe.results.table import FIRST, LAST, OWN, ResultTable, results_csv, table_of

FILE = "metrics.json"


def table(*jobs: Mapping[str, Any], files: tuple[str, ...] = (FILE,)) -> ResultTable:
    """A table of jobs, each by its params and, under the files' names, what it left."""
    rows = []
    for number, job in enumerate(jobs):
        params = {name: value for name, value in job.items() if name not in files}
        added = f.JobAdded(f"job-{number}", 0, 1, "d", params)
        left = tuple((file, LeftValues(job[file])) for file in files if file in job)
        own = dict.fromkeys(OWN) | {"name": added.name, "state": "succeeded", "attempts": 1}
        rows.append(JobValues(JobRecord(added), own, left))
    return table_of([], rows)


def kinds(of: ResultTable) -> dict[str, str]:
    return {column.name: column.kind for column in of.columns if column.name not in OWN}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-0.5", -0.5),
        ("1e-3", 0.001),
        ("1.10", 1.1),
        (".5", 0.5),
        ("1.", 1.0),
        ("true", True),
        ("False", False),
        ("inf", math.inf),
        ("010", "010"),
        ("1_000", "1_000"),
        ("NO", "NO"),
        ("None", "None"),
        ("0x10", "0x10"),
        ("1e", "1e"),
        ("", ""),
        (" 1", " 1"),
        ("９", "９"),
        ("9223372036854775807", (1 << 63) - 1),
        ("9223372036854775808", "9223372036854775808"),
        ("-99999999999999999999", "-99999999999999999999"),
    ],
)
def test_what_a_text_is_by_itself(text: str, value: Cell) -> None:
    found = scalar(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([1, None, 2], "integer"),
        ([1, 0.5], "number"),
        ([math.nan, 1], "number"),
        ([True, False, None], "boolean"),
        ([True, 1], "text"),
        ([1, "n/a"], "text"),
        ([1 << 63], "text"),
        ([-(1 << 63)], "integer"),
        ([(1 << 53) + 1, 0.5], "text"),
        ([1 << 53, 0.5], "number"),
        ([None], "text"),
        ([], "text"),
    ],
)
def test_the_type_that_holds_a_column(cells: list[Cell], kind: str) -> None:
    assert kind_of(cells) == kind


def test_a_column_of_params_is_of_numbers_where_all_of_them_are() -> None:
    assert from_texts(["1e-3", "2", None]) == [0.001, 2, None]
    assert from_texts(["1e-3", "adam"]) == ["1e-3", "adam"]
    assert from_texts(["true", "false"]) == [True, False]
    assert from_texts(["010", "20"]) == ["010", "20"]
    made = table({"lr": "1e-3", "opt": "adam", "seed": "0"}, {"lr": "1", "opt": "1", "seed": "1"})
    assert kinds(made) == {"lr": "number", "opt": "text", "seed": "integer"}
    assert made.column("lr") == [0.001, 1.0]
    assert made.column("opt") == ["adam", "1"]


def test_values_of_several_types_are_texts_as_json_has_them() -> None:
    made = table({FILE: {"x": 1}}, {FILE: {"x": "n/a"}}, {FILE: {"x": True}}, {FILE: {"x": 0.25}})
    assert kinds(made) == {"x": "text"}
    assert made.column("x") == ["1", "n/a", "true", "0.25"]
    big = table({FILE: {"seed": 18446744073709551615}}, {FILE: {"seed": 1}})
    assert big.column("seed") == ["18446744073709551615", "1"]


def test_columns_go_from_which_job_to_what_it_took() -> None:
    made = table({"lr": "1", FILE: {"b": 1, "a": 2}}, {"wd": "0", FILE: {"c": 3}})
    names = [column.name for column in made.columns]
    assert names == [*FIRST, "lr", "wd", "b", "a", "c", *LAST]
    assert [column.source for column in made.columns][3:8] == ["params"] * 2 + [FILE] * 3
    assert made.column("c") == [None, 3]


def test_a_name_that_is_taken_gets_its_source_before_it() -> None:
    files = (FILE, "eval/scores.csv", "eval/last")
    made = table(
        {
            "lr": "1",
            "state": "x",
            FILE: {"lr": 2, "seconds": 3, "metrics.lr": 4, "acc": 5},
            "eval/scores.csv": {"acc": 6, "lr": 7, "scores.acc": 8},
            "eval/last": {"lr": 9},
        },
        files=files,
    )
    named = {column.name: made.column(column.name)[0] for column in made.columns}
    assert named["state"] == "succeeded"
    assert {name: named[name] for name in named if name not in OWN} == {
        "lr": 1,
        "params.state": "x",
        "metrics.lr": 4,
        "metrics.metrics.lr": 2,
        "metrics.seconds": 3,
        "acc": 5,
        "scores.acc": 8,
        "scores.scores.acc": 6,
        "scores.lr": 7,
        "last.lr": 9,
    }


def test_no_job_is_a_table_without_rows() -> None:
    made = table()
    assert [column.name for column in made.columns] == list(OWN)
    assert made.rows == ()
    assert made.sorted_by("seconds").first(3) == made


def test_rows_are_sorted_by_a_column_and_what_is_unknown_comes_last() -> None:
    accs: list[Cell] = [0.5, None, math.nan, 0.9, 0.1]
    made = table(*({"tag": f"t-{n * 3}", FILE: {"acc": acc}} for n, acc in enumerate(accs)))
    rising = made.sorted_by("acc").column("name")
    assert rising == ["job-4", "job-0", "job-3", "job-1", "job-2"]
    falling = made.sorted_by("-acc")
    assert falling.column("name") == ["job-3", "job-0", "job-4", "job-1", "job-2"]
    assert falling.first(1).column("acc") == [0.9]
    assert made.sorted_by("-tag").column("tag") == ["t-12", "t-9", "t-6", "t-3", "t-0"]
    with pytest.raises(UsageError, match="no column is called ac; did you mean acc"):
        made.sorted_by("-ac")
    digits = ["9" * 5000, "1" + "0" * 5000, "007", "8"]  # more than Python takes for a number
    made = table(*({"id": text} for text in digits))
    assert made.sorted_by("id").column("id") == [digits[2], digits[3], digits[0], digits[1]]
    odd = table({FILE: {"-x": 2, "x": 1}}, {FILE: {"-x": 1, "x": 2}})
    assert odd.sorted_by("-x").column("-x") == [1, 2], "a column may begin with a dash"


def test_what_has_line_ends_and_quotes_in_it_is_one_cell_of_csv() -> None:
    odd = ["a\rb", "a\nb", "a\r\n", '"', ",", "\\x00", "=1+1", "-1e5", " x "]
    made = table(*({FILE: {"x": text, f"k{text}": 1}} for text in odd))
    text = results_csv(made).decode()
    found = list(csv.reader(io.StringIO(text, newline="")))
    assert found[0] == [column.name for column in made.columns]
    assert [row[found[0].index("x")] for row in found[1:]] == odd
    assert '"a\rb"' in text
    assert text.endswith("\n")
    assert "\r\n" not in text.replace('a\r\n"', "")


def test_a_cell_is_spelled_as_dataframes_read_it() -> None:
    cells: list[Cell] = [None, True, False, 0.1, 1e-05, math.nan, math.inf, -math.inf, 7, "a"]
    assert [spelled(cell) for cell in cells] == [
        "", "true", "false", "0.1", "1e-05", "NaN", "inf", "-inf", "7", "a"
    ]  # fmt: skip
