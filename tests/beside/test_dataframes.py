"""Three stacked runs as CSV, JSON and Parquet, read back by the real pandas and polars."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpulaunch.cli.results import results
from tests.cli.launcher import Launcher
from tests.cli.terminal import terminal

JOBS = r"""
name: sweep
jobs:
  - name: "train-{{lr}}-{{opt}}"
    matrix: {lr: [1e-3, 3e-4], opt: [adam, sgd], amp: ["true"], width: [8]}
    run: "python3 leave.py {{lr}} {{out}}"
  - {name: bad, gpus: 0, run: "exit 3"}
"""
LEAVE = """
import json, sys
lr, out = float(sys.argv[1]), sys.argv[2]
left = {
    "acc": lr * ROUND, "loss": {"val": float("nan") if lr > 5e-4 else 0.1 + 0.2, "top": 1e-300},
    "diverged": lr > 5e-4, "epochs": 3 if ROUND == 1 else 3.5, "note": 'süß, "so"\\n日本', "lr": lr,
    "cells": '=1+1,\\r\\r\\n\\0"', "a,\\r\\nb": 1,
    "seed": 2**64 - 1, "n": 2**53 - 1, "hist": [1, 2.5], "mixed": ROUND if lr > 5e-4 else "n/a",
    "peak": float("inf") if ROUND == 2 else 1,
}
if ROUND == 3:
    left["f1"] = None if lr > 5e-4 else 7
json.dump(left, open(f"{out}/metrics.json", "w"))
"""
KINDS = {
    "lr": "number",
    "opt": "text",
    "amp": "boolean",
    "width": "integer",
    "acc": "number",
    "loss.val": "number",
    "loss.top": "number",
    "diverged": "boolean",
    "epochs": "number",
    "note": "text",
    "cells": "text",
    "a,\r\nb": "integer",
    "metrics.lr": "number",
    "seed": "text",
    "n": "integer",
    "hist": "text",
    "mixed": "text",
    "peak": "number",
    "f1": "integer",
}
READ = """
import json, math, sys
import pandas, polars

def plain(cell, kind):
    if cell is None or cell is pandas.NA or isinstance(cell, float) and math.isnan(cell):
        return None
    if kind == "text":  # a CSV's digits are numbers to whoever reads them
        return str(cell) or None
    if hasattr(cell, "item"):
        cell = cell.item()
    assert not isinstance(cell, str), cell
    return float(cell) if kind == "number" else bool(cell) if kind == "boolean" else int(cell)

document = json.load(open("t.json"))
kinds = {one["name"]: one["type"] for one in document["columns"]}
big = {"text": polars.String, "integer": polars.Int64, "number": polars.Float64,
       "boolean": polars.Boolean}
frames = {
    "pandas csv": pandas.read_csv("t.csv"),
    "pandas json": pandas.DataFrame(document["rows"]),
    "pandas parquet": pandas.read_parquet("t.parquet"),
    "polars csv": polars.read_csv("t.csv", infer_schema_length=None),
    "polars json": polars.DataFrame(document["rows"], infer_schema_length=None),
    "polars parquet": polars.read_parquet("t.parquet"),
}
told = {}
for name, frame in frames.items():
    assert list(frame.columns) == list(kinds), name
    columns = {one: list(frame[one]) for one in frame.columns}
    told[name] = {one: [plain(cell, kinds[one]) for cell in columns[one]] for one in columns}
known = [one for one in kinds if any(cell is not None for cell in told["polars parquet"][one])]
typed = {one: str(frames["polars parquet"].schema[one]) for one in kinds}
assert all(typed[one] == str(big[kind]) for one, kind in kinds.items()), typed
for name, by in (("polars csv", "seed"), ("polars json", "none")):
    schema = frames[name].schema
    assert all(str(schema[one]) == typed[one] for one in known if one != by), (name, schema)
numbers = [one for one in known if kinds[one] in ("number", "integer")]
for name in ("pandas csv", "pandas json", "pandas parquet"):
    assert all(frames[name][one].dtype.kind in "if" for one in numbers), name
print(json.dumps([kinds, told]))
"""


@pytest.fixture
def stacked(launcher: Launcher, beside: Path) -> Launcher:
    """A launcher of the tools' environment, where three runs of a sweep lie."""
    launcher.environ["PATH"] = f"{Path(sys.executable).parent}:{launcher.environ['PATH']}"
    launcher.file("jobs.yaml", JOBS)
    for number in (1, 2, 3):
        launcher.file("leave.py", f"ROUND = {number}\n{LEAVE}")
        done = launcher("run", "jobs.yaml", "--simulate", "2", "--run-dir", f"runs/r{number}")
        assert done.status == 1, done.err
    return Launcher(launcher.path, command=[str(beside / "python"), "-m", "gpulaunch"])


def test_three_runs_are_the_same_values_in_every_form(stacked: Launcher, beside: Path) -> None:
    runs = [f"runs/r{number}" for number in (1, 2, 3)]
    for form in ("csv", "json", "parquet"):
        with open(stacked.path / f"t.{form}", "wb") as file:
            argv = [*stacked.command, results.name or "", *runs, f"--{form}"]
            subprocess.run(argv, cwd=stacked.path, env=stacked.environ, stdout=file, check=True)
    stacked.file("read.py", READ)
    read = Launcher(stacked.path, command=[str(beside / "python"), "read.py"])()
    assert read.status == 0, read.err
    kinds, told = json.loads(read.out)
    assert {name: kinds[name] for name in KINDS} == KINDS
    reference = told["polars parquet"]
    for name, values in told.items():
        for column, cells in values.items():
            wanted = reference[column]
            if name == "pandas csv" and column == "mixed":  # it takes n/a for nothing
                wanted = [None if cell == "n/a" else cell for cell in wanted]
                cells = [cell and cell.removesuffix(".0") for cell in cells]
            if name.endswith("json") and column == "peak":  # which has no infinity
                wanted = [None if cell == float("inf") else cell for cell in wanted]
            assert cells == wanted, (name, column)
    assert len(reference["run"]) == 15
    assert reference["run"] == ["r1"] * 5 + ["r2"] * 5 + ["r3"] * 5
    assert reference["acc"][:5] == [0.001, 0.001, 0.0003, 0.0003, None]
    assert reference["epochs"][:6] == [3.0, 3.0, 3.0, 3.0, None, 3.5]
    assert reference["seed"][0] == "18446744073709551615"
    assert reference["n"][0] == 2**53 - 1
    assert reference["f1"][10:] == [None, None, 7, 7, None]
    assert reference["note"][0] == 'süß, "so"\n日本'
    assert reference["cells"][0] == '=1+1,\r\r\n\\x00"'
    assert reference["loss.val"][2] == 0.1 + 0.2


def test_parquet_is_not_written_to_a_terminal(stacked: Launcher) -> None:
    with terminal(stacked, "results", "runs/r1", "--parquet") as screen:
        assert screen.ended() == 2
        assert "--parquet is no text for a terminal: > FILE, or | a program" in screen.text
