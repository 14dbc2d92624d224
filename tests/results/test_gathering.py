"""Which attempt of a job counts, what it used, and which jobs have no row."""

from __future__ import annotations

import json
from pathlib import Path

from gpulaunch.core import facts as f
from gpulaunch.core.model import AttemptId
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.metrics.model import NOTHING, AttemptUse, Measured
from gpulaunch.observe.results.gathering import Gathered, gather
from gpulaunch.observe.results.table import OWN, ResultTable, table_of
from tests.views.history import History
from tests.views.test_cluster import cluster

FILES = ("metrics.json",)


def left(run: RunDir, attempt: str, **values: float) -> None:
    (run.outs / attempt).mkdir(parents=True)
    (run.outs / attempt / "metrics.json").write_text(json.dumps(values))


def table(run: RunDir, history: History, measured: Measured = NOTHING) -> ResultTable:
    gathered = Gathered()
    gather(gathered, run, history.ledger, measured, FILES, "label")
    return table_of([], gathered.rows)


def test_on_a_cluster_what_waits_in_the_queue_has_a_row_without_values(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    left(run, "done.1", acc=0.5)
    left(run, "wide.1", acc=0.25)
    made = table(run, cluster())
    found = dict(zip(made.column("name"), made.column("acc"), strict=True))
    assert (found["done"], found["wide"], found["queued"], found["left"]) == (0.5, 0.25, None, None)
    attempts = dict(zip(made.column("name"), made.column("attempts"), strict=True))
    assert (attempts["done"], attempts["queued"], attempts["left"]) == (1, 0, 0)
    assert made.column("seconds")[0] == 1800.0
    assert made.column("out")[:2] == [str(tmp_path / "out" / "done.1"), str(run.outs / "wide.1")]


def test_a_job_that_is_in_the_queue_again_shows_its_last_start(tmp_path: Path) -> None:
    history = History(0).open(engine="slurm").jobs("a").hand_over("a")
    history.start_there("a", "n1", 0).pass_(5).fail("a").open(engine="slurm")
    history.add(f.JobRequeued("a", "retry")).hand_over("a")
    run = RunDir(tmp_path)
    left(run, "a.1", acc=0.5)
    made = table(run, history)
    assert (made.column("acc"), made.column("attempts"), made.column("seconds")) == (
        [0.5],
        [1],
        [5],
    )
    assert made.column("failure") == ["exit"]


def test_peaks_are_of_the_last_attempt_and_energy_of_all(tmp_path: Path) -> None:
    history = History(1).open().jobs("a").start("a", 0).pass_(2).fail("a")
    history.add(f.JobRequeued("a", "retry")).start("a", 0).pass_(3).succeed("a")
    uses = {
        AttemptId("a", number): AttemptUse(
            AttemptId("a", number),
            peak_gpu_memory=number << 30,
            mean_gpu_utilization=10.00049 * number,
            peak_resident=number,
            energy=100.0,
        )
        for number in (1, 2)
    }
    made = table(RunDir(tmp_path), history, Measured(uses))
    row = dict(zip((column.name for column in made.columns), made.rows[0], strict=True))
    assert row == dict.fromkeys(OWN) | {
        "run": "label",
        "name": "a",
        "state": "succeeded",
        "seconds": 3.0,
        "attempts": 2,
        "card": "NVIDIA H200",
        "peak_gpu_memory": 2 << 30,
        "mean_gpu_utilization": 20.001,
        "peak_resident": 2,
        "energy": 200.0,
    }


def test_jobs_that_are_gone_from_the_job_file_have_no_row(tmp_path: Path) -> None:
    history = History(1).open().jobs("done", "gone", "stays")
    history.start("done", 0).succeed("done")
    history.add(f.JobVanished("done")).add(f.JobVanished("gone"))
    assert table(RunDir(tmp_path), history).column("name") == ["done", "stays"]


def test_of_files_with_ever_more_names_no_more_is_kept_than_a_table_has(tmp_path: Path) -> None:
    names = [f"job-{n}" for n in range(5)]
    history = History(1).open().jobs(*names)
    run = RunDir(tmp_path)
    for number, name in enumerate(names):
        history.start(name, 0).succeed(name)
        left(run, f"{name}.1", acc=number, **{f"sample-{number}-{n}": n for n in range(3)})
    gathered = Gathered(max_columns=4)
    gather(gathered, run, history.ledger, NOTHING, FILES)
    kept = [dict(values.cells) for row in gathered.rows for _, values in row.left]
    assert kept[0] == {"acc": 0, "sample-0-0": 0, "sample-0-1": 1, "sample-0-2": 2}
    assert kept[1:] == [{"acc": number} for number in range(1, 5)]
    assert gathered.cut == 3
    assert len(table_of([], gathered.rows).columns) == len(OWN) + 4


def test_jobs_beyond_the_rows_that_are_wanted_are_counted_and_not_looked_at(
    tmp_path: Path,
) -> None:
    gathered = Gathered(max_rows=2)
    history = History(1).open().jobs("a", "b", "c", "gone").add(f.JobVanished("gone"))
    gather(gathered, RunDir(tmp_path), history.ledger, NOTHING, FILES, in_time=lambda: False)
    assert [row.job.name for row in gathered.rows] == ["a", "b"]
    assert (gathered.more, gathered.unlooked) == (1, 2)


def test_names_that_no_file_can_have_are_rows_all_the_same(tmp_path: Path) -> None:
    forged = History(1).open().jobs("../x", "half-\udcff").start("../x", 0).succeed("../x")
    made = table(RunDir(tmp_path), forged)
    assert made.column("name") == ["../x", "half-\\udcff"]
    assert made.column("out") == [None, None]
