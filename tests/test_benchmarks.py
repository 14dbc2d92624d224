"""The benchmarks run, on the smallest sizes and without their peers. No time is judged."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import cpu, launchers, order, shortcuts, shown, startup
from tests.benchmarks.stamps import Stamps, build

MACHINE = {"cpu": "a CPU", "cores": 2, "memory_gb": 8, "kernel": "6.1", "python": "3.11"}
MACHINE |= {"load": 0.1, "on": "2026-01-01"}
OVERHEAD = {
    "machine": MACHINE,
    "gap_ms": {"gpulaunch": {"median": 3.0, "p90": 4.0}, "xargs -P": {"median": 1.0, "p90": 2.0}},
    "gap_ratio_to_xargs": 3.0,
    "jobs_per_second": {"gpulaunch": 900.0, "xargs -P": 2000.0},
    "slots": {"gap": 1, "jobs_per_second": 4},
    "absent": {"GNU Parallel": "there is no apt-get"},
}


def test_longest_first_beats_any_order_and_that_beats_a_split_made_beforehand() -> None:
    for seed in (1, 2, 3):
        ratio = order.ratios(40, seed)
        assert 1.0 <= ratio["longest first"] < ratio["any order"] < ratio["split beforehand"]


def test_the_order_of_a_drawn_list_is_by_what_was_expected() -> None:
    assert order.finished([10.0, 10.0, 30.0], 2) == 40.0
    assert order.finished([10.0, 10.0, 30.0], 2, before=[10.0, 10.0, 30.0]) == 30.0


def test_a_section_prints_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--dry-run", "--only", "order"]
    done = subprocess.run(
        command,
        cwd=launchers.REPOSITORY,
        env=launchers.environment(),
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["order"]["mean_ratio"].keys() >= {"longest first"}


@pytest.mark.parametrize("section", benchmarks.SECTIONS)
def test_a_section_can_be_measured(section: str) -> None:
    assert callable(importlib.import_module(f"tests.benchmarks.{section}").measure)


def test_a_section_that_stops_runs_is_over_where_sigint_is_ignored() -> None:
    """As below a script's `&`."""
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--dry-run", "--only", "scale"]
    done = subprocess.run(
        command,
        cwd=launchers.REPOSITORY,
        env=launchers.environment(),
        capture_output=True,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        timeout=100,
    )
    scale = json.loads(done.stdout)["scale"]
    assert scale["pair_mb"] > 0
    assert "memory of a resting pair of keepers" in shown.table({"scale": scale})


def test_a_missing_plot_library_is_said_first_and_costs_the_plot_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shown, "can_draw", lambda: False)
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--only", "order"])
    benchmarks.RESULTS.write_text(json.dumps({"overhead": OVERHEAD}))
    document, plot = tmp_path / "benchmarks.md", tmp_path / "plot.svg"
    document.write_text(f"{shown.BEGIN}\n{shown.END}\n")
    write = shown.write
    monkeypatch.setattr(shown, "write", lambda results: write(results, document, plot))
    assert benchmarks.main() == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "overhead.svg stays as it is: matplotlib is missing (pip install -e '.[bench]')"
    assert "empty jobs a second" in document.read_text()
    assert "order" in json.loads(benchmarks.RESULTS.read_text())
    assert not plot.exists()


def test_cpu_is_told_by_process() -> None:
    found = cpu.measure(quick=True)
    if "absent" in found:
        pytest.skip(str(found["absent"]))
    assert "CPU a further empty job" in shown.table({"cpu": found | {"machine": MACHINE}})


ALONE = """
import json
from tests.benchmarks import launchers, overhead
launch = launchers.Launcher(launchers.gpulaunch, launchers.gpulaunch)
launchers.have = lambda place: ({"gpulaunch": launch, "b": launch}, {})
print(json.dumps(overhead.measure(quick=True)))
"""


def test_peers_are_compared_by_slots_and_by_cpu() -> None:
    """In a process of its own: it takes in whatever a launcher leaves behind."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=launchers.REPOSITORY,
        env=launchers.environment(),
        capture_output=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["cpu_ms_per_job"]["b"] > 1
    table = shown.table({"overhead": found | {"machine": MACHINE}})
    assert "over theirs, slots: 2" in table
    assert "CPU an empty job, of the whole command" in table


def test_every_job_leaves_its_stamp(tmp_path: Path) -> None:
    program = build(tmp_path)
    launchers.gpulaunch(tmp_path, 2, 6, [*program, str(tmp_path / "stamps"), "0.01"])
    stamps = Stamps.read(tmp_path / "stamps")
    assert len(stamps.rows) == 6
    assert len(stamps.gaps_ms(2)) == 4
    assert stamps.per_second > 0


def test_gaps_are_from_an_end_to_the_start_that_took_its_slot() -> None:
    stamps = Stamps(((0, 5_000_000), (1_000_000, 9_000_000), (7_000_000, 8_000_000)))
    assert stamps.gaps_ms(2) == [2.0]


def test_start_up_is_measured() -> None:
    found = startup.measure(quick=True) | {"machine": MACHINE}
    assert {"python_ms", "version_ms", "exec_ms", "run_ms"} < found.keys()
    rows = shown.table({"startup": found})
    assert "`check` of 100 jobs, each written out" in rows
    assert all(name in rows for name in startup.COMMANDS)


def test_small_savings_are_measured_beside_the_plain_way() -> None:
    found = shortcuts.measure(quick=True) | {"machine": MACHINE}
    assert "the plain way" in shown.table({"shortcuts": found})


def test_the_table_goes_between_its_markers(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(f"before\n{shown.BEGIN}\nold\n{shown.END}\nafter\n")
    shown.write(
        {"order": {"machine": MACHINE, "mean_ratio": dict.fromkeys(ORDERS, 1.25)}}, document
    )
    text = document.read_text()
    assert text.startswith(f"before\n{shown.BEGIN}\n| | gpulaunch | |")
    assert text.endswith(f"{shown.END}\nafter\n")
    assert "old" not in text
    assert "1.250" in text


ORDERS = ("longest first", "any order", "split beforehand")


def test_what_is_absent_is_said() -> None:
    assert "| GNU Parallel |  | absent: there is no apt-get |" in shown.table(
        {"overhead": OVERHEAD}
    )


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shown.draw(OVERHEAD, tmp_path / "plot.svg")
    assert "empty jobs a second" in (tmp_path / "plot.svg").read_text()
