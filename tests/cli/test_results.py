"""`gpulaunch results` over real runs: what jobs left is a row each, whatever it is."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.observe.results.gathering import MAX_FILE_COLUMNS
from gpulaunch.observe.results.table import OWN
from gpulaunch.run import results
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.cli.terminal import terminal
from tests.cli.test_contracts import check
from tests.helpers import wait_until

SWEEP = r"""
name: sweep
jobs:
  - name: "train-{{lr}}-{{opt}}"
    matrix: {lr: [1e-3, 3e-4], opt: [adam, sgd]}
    run: |
      printf '{"acc": 0.5, "loss": {"train": %s}, "note": "süß"}' {{lr}} > {{out}}/metrics.json
  - {name: bad, run: 'printf "{\"acc\": 0.25, }" > {{out}}/metrics.json; exit 3'}
  - {name: after, needs: [bad], run: "true"}
  - {name: plain, gpus: 0, run: "true {{out}}"}
"""
BROKEN = "out/bad.1/metrics.json: line 1, column 15: Expecting property name"


def swept(launcher: Launcher, text: str = SWEEP) -> Path:
    launcher.file("jobs.yaml", text)
    assert launcher("run", "jobs.yaml", "--simulate", "2", "--new").status == 1
    return launcher.run


def told(launcher: Launcher, *argv: str | Path) -> dict[str, Any]:
    return check("results", launcher("results", "--json", *argv).out)


def rows(launcher: Launcher, *argv: str | Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in told(launcher, *argv)["rows"]}


def test_a_row_a_job_with_what_was_varied_what_came_out_and_what_it_took(
    launcher: Launcher,
) -> None:
    at = swept(launcher)
    done = launcher("results", "--json")
    document = check("results", done.out)
    assert document["runs"] == [
        {
            "run": at.name,
            "id": launcher.status()["run"]["id"],
            "name": "sweep",
            "dir": str(at),
            "state": "failed",
            "simulated": True,
        }
    ]
    by_name = {row["name"]: row for row in document["rows"]}
    assert list(by_name) == list(launcher.jobs())
    one = by_name["train-3e-4-sgd"]
    assert [one[key] for key in ("run", "state", "lr", "opt", "acc", "loss.train", "note")] == [
        at.name, "succeeded", 0.0003, "sgd", 0.5, 0.0003, "süß"
    ]  # fmt: skip
    attempt = launcher.jobs()["train-3e-4-sgd"]["attempts"][0]
    assert one["seconds"] == round(attempt["seconds"], 3)
    assert (one["attempts"], one["card"], one["out"]) == (1, "simulated", attempt["out"])
    bad = by_name["bad"]
    assert (bad["state"], bad["failure"], bad["acc"], bad["lr"]) == ("failed", "exit", None, None)
    after = by_name["after"]
    assert (after["state"], after["seconds"], after["attempts"]) == ("skipped", None, 0)
    assert after["out"] is None
    assert BROKEN in done.err
    assert "metrics.json: 1 of 5 jobs that succeeded left none" in done.err
    assert len(done.err.splitlines()) == 2
    types = {column["name"]: (column["source"], column["type"]) for column in document["columns"]}
    assert types["lr"] == ("params", "number")
    assert types["loss.train"] == ("metrics.json", "number")
    assert types["peak_gpu_memory"] == ("job", "integer")


def test_a_file_may_be_called_as_what_else_columns_are_of(launcher: Launcher) -> None:
    left = """printf '{"lr": 7, "name": "x", "n": 1}' >"""
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: a
            matrix: {{lr: [1]}}
            run: |
              {left} {{{{out}}}}/job
              {left} {{{{out}}}}/params
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    row = rows(launcher, "--file", "job", "--file", "params")["a-lr=1"]
    assert [row[key] for key in ("lr", "job.lr", "params.lr", "job.name", "n", "params.n")] == [
        1, 7, 7, "x", 1, 1
    ]  # fmt: skip


def test_a_directory_that_is_not_utf_8_is_told_in_json_that_is(launcher: Launcher) -> None:
    odd = Launcher(launcher.path / os.fsdecode(b"r\xff\n"), {"PYTHONIOENCODING": "utf-8:strict"})
    odd.path.mkdir()
    odd.file("jobs.yaml", 'jobs: [{name: a, run: "echo [ > {{out}}/metrics.json"}]')
    assert odd("run", "jobs.yaml", "--simulate", "1").status == 0
    document = told(odd)
    assert document["runs"][0]["dir"] == str(odd.run)
    assert document["rows"][0]["out"].endswith(
        "\\udcff\n" + f"/gpulaunch-runs/{odd.run.name}/out/a.1"
    )
    table = odd("results", "--csv")
    assert (table.status, table.out.count("r\\udcff\n/gpulaunch-runs/")) == (0, 1)
    assert "\\udcff" in odd("results", "nowhere", "--json").out


def test_jobs_are_picked_and_sorted(launcher: Launcher) -> None:
    swept(launcher)
    assert list(rows(launcher, "--sort", "-lr", "--first", "2")) == [
        "train-1e-3-adam",
        "train-1e-3-sgd",
    ]
    picked = rows(launcher, "--only", "train-*", "--only", "plain", "--state", "succeeded")
    assert [*picked][-1] == "plain"
    assert [*rows(launcher, "--state", "failed", "--state", "skipped")] == ["bad", "after"]
    for argv, why in (
        (["--sort", "ac"], "no column is called ac; did you mean acc?"),
        (["--sort", ""], "no column is called ; there are run, name"),
        (["--only", "fold-*"], "no job is called fold-*"),
        (["--csv"], "--json and --csv: leave one out"),
        (["nowhere"], "nowhere"),
        (["--file", "/etc/passwd"], "--file /etc/passwd: expected a file's path inside each job's"),
        (["--file", "../../x"], "expected a file's path inside"),
        (["--file", "eval/"], "expected a file's path inside"),
    ):
        done = launcher("results", "--json", *argv)
        assert done.status == 2
        assert why in done.err
        assert json.loads(done.out)["status"] == 2


def test_csv_is_the_same_table(launcher: Launcher) -> None:
    swept(launcher)
    document = told(launcher)
    found = list(csv.reader(io.StringIO(launcher("results", "--csv").out)))
    assert found[0] == [column["name"] for column in document["columns"]]
    assert len(found) == 1 + len(document["rows"])
    one = dict(zip(found[0], found[1], strict=True))
    assert (one["lr"], one["opt"], one["note"], one["failure"]) == ("0.001", "adam", "süß", "")


FILES = r"""
jobs:
  - name: a
    run: |
      mkdir {{out}}/eval
      printf 'step,acc\n1,0.25\n2,0.5\n' > {{out}}/eval/scores.csv
      printf '{"acc": 1, "seconds": 3}' > {{out}}/more.json
  - name: kept
    run: "printf '{\"acc\": 7}' > {{keep}}/more.json"
  - {name: none, run: "true"}
"""


def test_files_are_named_and_looked_for_in_out_and_then_in_keep(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", FILES)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    without = launcher("results")
    assert "no job left a metrics.json in its {{out}}: --file names the one" in without.err
    found = rows(launcher, "--file", "eval/scores.csv", "--file", "./more.json")
    assert (found["a"]["step"], found["a"]["acc"]) == (2, 0.5)
    assert (found["a"]["more.acc"], found["a"]["more.seconds"]) == (1, 3)
    assert found["a"]["seconds"] != 3
    assert (found["kept"]["acc"], found["kept"]["more.acc"]) == (None, 7)
    wrong = launcher("results", "--file", "moore.json")
    assert wrong.status == 0
    assert wrong.err.endswith(
        "moore.json: 3 of 3 jobs that succeeded left none; a left eval, more.json\n"
    )


def test_a_job_that_went_again_is_one_row_by_its_last_attempt(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: late
            retries: 1
            run: 'printf "{\\"n\\": $GPULAUNCH_ATTEMPT}" > {{out}}/metrics.json; [ -e fixed ]'
          - name: second
            retries: 1
            run: 'printf "{\\"n\\": $GPULAUNCH_ATTEMPT}" > {{out}}/metrics.json;
                  [ $GPULAUNCH_ATTEMPT = 2 ]'
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    found = rows(launcher)
    assert [(row["n"], row["attempts"], row["state"]) for row in found.values()] == [
        (2, 2, "failed"),
        (2, 2, "succeeded"),
    ]
    launcher.file("fixed", "")
    assert launcher("retry").status == 0
    found = rows(launcher)
    assert [(row["n"], row["attempts"], row["failure"]) for row in found.values()] == [
        (3, 3, None),
        (2, 2, None),
    ]
    assert found["late"]["out"].endswith("out/late.3")


def test_a_job_that_runs_shows_what_it_has_written_whole(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: whole
            run: 'printf "{{\\"epoch\\": 3}}" > {{{{out}}}}/metrics.json; {UNTIL_GO}'
          - name: half
            run: 'printf "{{\\"epo" > {{{{out}}}}/metrics.json; {UNTIL_GO}'
        """,
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        launcher.wait_for("attempt_started", 2)
        out = launcher.run / "out"
        for name, size in (("whole.1", 12), ("half.1", 5)):
            path = out / name / "metrics.json"
            wait_until(lambda path=path, size=size: path.exists() and path.stat().st_size == size)
        done = launcher("results", "--json")
        found = {row["name"]: row for row in json.loads(done.out)["rows"]}
        assert (found["whole"]["epoch"], found["whole"]["state"]) == (3, "running")
        assert (found["half"]["epoch"], found["half"]["seconds"]) == (None, None)
        assert "half" not in done.err
        launcher.file("go", "")
        process.wait(60)
    assert "half.1/metrics.json: line 1" in launcher("results").err


def test_what_has_no_place_in_a_table_is_said(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", 'jobs: [{name: a, run: "echo {} > {{out}}/metrics.json"}]')
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    many = {f"sample-{n}": n for n in range(MAX_FILE_COLUMNS + 7)}
    left = {"text": "x" * 5000, "y" * 5000: 1, **many}
    (launcher.run / "out" / "a.1" / "metrics.json").write_text(json.dumps(left))
    done = launcher("results", "--json")
    assert len(check("results", done.out)["columns"]) == len(OWN) + MAX_FILE_COLUMNS - 2
    long = "left out, as texts or lists too long for a table"
    assert f"{long}: text, {'y' * 59}…\n" in done.err
    assert "left out: 9 columns or more beyond the first 1,000 of files\n" in done.err


def test_what_is_broken_is_a_line_each_up_to_ten(launcher: Launcher) -> None:
    values = ", ".join(map(str, range(14)))
    job = 'name: x, gpus: 0, run: "echo [ > {{out}}/metrics.json"'
    launcher.file("jobs.yaml", f"jobs: [{{{job}, matrix: {{n: [{values}]}}}}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    huge = launcher.run / "out" / "x-n=3.1" / "metrics.json"
    os.truncate(huge, 1 << 30)
    done = launcher("results")
    assert done.err.count(": line 2, column 1: ") == 9
    assert done.err.count("x-n=3.1/metrics.json: it has more than 16 MiB") == 1
    assert done.err.endswith("and 4 more such files\n")
    assert len(done.out.splitlines()) == 2 + 14


def test_the_report_of_a_run_has_its_results_of_the_file_that_is_named(
    launcher: Launcher,
) -> None:
    launcher.file("jobs.yaml", FILES)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert "What came out" not in (launcher.run / "report.html").read_text()
    done = launcher("report", "--file", "more.json")
    assert done.status == 0
    text = (launcher.run / "report.html").read_text()
    assert "What came out" in text
    assert '"name":"acc","own":false,"param":false,"kind":"integer","cells":[1,7,null]' in text
    wrong = launcher("report", "--file", "/more.json")
    assert (wrong.status, wrong.out) == (2, "")
    assert "expected a file's path inside each job's {{out}}" in wrong.err
    swept(launcher)
    assert '"name":"acc"' in (launcher.run / "report.html").read_text()


def test_runs_stack_and_each_counts_once(launcher: Launcher, tmp_path: Path) -> None:
    first = swept(launcher)
    second = swept(launcher, SWEEP.replace('"acc": 0.5', '"acc": 1, "f1": 2'))
    (launcher.path / "alias").symlink_to(first)
    assert len(told(launcher, "alias", first, first)["rows"]) == 7
    both = told(launcher, *sorted((launcher.path / "gpulaunch-runs").iterdir()))
    assert [run["run"] for run in both["runs"]] == [first.name, second.name]
    assert [run["dir"] for run in both["runs"]] == [str(first), str(second)]
    assert len(both["rows"]) == 14
    trained = [row for row in both["rows"] if row["lr"] is not None]
    assert [row["acc"] for row in trained] == [0.5] * 4 + [1.0] * 4
    assert [row["f1"] for row in trained] == [None] * 4 + [2] * 4
    named = told(launcher, "-r", second.name, "jobs.yaml")
    assert [run["run"] for run in named["runs"]] == [second.name]
    copy = launcher.path / "elsewhere" / first.name
    shutil.copytree(first, copy, symlinks=True)
    agree = told(launcher, first, copy)
    assert [run["run"] for run in agree["runs"]] == [str(first), str(copy)]
    assert [row["run"] for row in agree["rows"]] == [str(first)] * 7 + [str(copy)] * 7
    assert agree["rows"][7]["acc"] == 0.5
    shown = launcher("results", first, second)
    heads = shown.out.splitlines()[:2]
    assert all(head.endswith("1 skipped; simulated cards") for head in heads)
    assert shown.out.count(first.name) > 7


def test_a_run_without_jobs_in_it_is_a_table_without_rows(launcher: Launcher) -> None:
    swept(launcher)
    assert told(launcher, "--state", "cancelled")["rows"] == []
    shown = launcher("results", "--state", "cancelled").out.splitlines()
    assert shown[0].endswith("0 jobs; simulated cards")
    assert shown[1] == "name  state"


def test_on_a_terminal_the_table_is_as_wide_as_that(launcher: Launcher) -> None:
    swept(launcher)
    with terminal(launcher, "results", columns=52) as screen:
        assert screen.ended() == 0
        lines = screen.text.splitlines()
    table = [line for line in lines if not line.startswith("gpulaunch: ")]
    assert table[1].split() == ["name", "state", "lr", "opt", "acc"]
    assert max(map(len, table[1:])) <= 52
    assert "no room for 7 columns: loss.train, note, seconds, attempts" in screen.text
    assert "\x1b[" in screen.raw


def test_csv_carries_cells_as_they_are_and_shows_a_terminal_no_escape_code(
    launcher: Launcher,
) -> None:
    at = swept(launcher)
    left = next(at.glob("out/*"))
    (left / "metrics.json").write_text(json.dumps({"note": "\x1b[31mred"}))
    assert "\x1b[31mred" in launcher("results", "--csv").out
    with terminal(launcher, "results", "--csv") as screen:
        assert screen.ended() == 0
    assert "\x1b[31m" not in screen.raw
    assert "red" in screen.text


def test_from_python_it_is_a_table_of_values(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = swept(launcher)
    monkeypatch.chdir(launcher.path)
    made = results([at], only=["train-*"], sort="-lr", first=3)
    assert made.column("lr") == [0.001, 0.001, 0.0003]
    assert made.runs[0].counts == {"succeeded": 4}
    assert results().column("state").count("succeeded") == 5
