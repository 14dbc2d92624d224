"""A further job costs at most a tenth more than recorded, in what no busy machine can change."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks import launchers
from tests.costs import measure
from tests.costs.measure import Costs
from tests.costs.processes import Tracer, UntraceableError, by_kind

ROOT = Path(__file__).parents[2]
TOLD = """\
exec 10 100 1 9 /usr/bin/python -m gpulaunch
fork 10 11
exec 11 2000000 2 30 python -m keeper
fork 11 12
fork 12 13
exec 13 3000000 40 5 dd if=x
exit 13 4000000 50 6 dd if=x
fork 10 13
exec 13 5000000 60 7 sampler
exit 13 6000000 70 8 sampler
exit 12 7000000 80 9 keeper-monitor
exit 11 8000000 90 10 keeper-spawner
exit 10 9000000 100 11 /usr/bin/python -m gpulaunch
"""


@pytest.mark.parametrize("count", [measure.instructions, measure.calls])
def test_a_job_costs_no_more_than_recorded(count: Callable[[], Costs]) -> None:
    known = measure.recorded()
    if not known:
        pytest.skip(f"no record of Python {measure.VERSION}")
    try:
        costs = count()
    except UntraceableError as error:
        pytest.skip(str(error))
    if lines := measure.grown(costs, known):
        pytest.fail("\n".join(lines), pytrace=False)


def test_what_has_grown_by_over_a_tenth_is_named_with_the_way_to_accept_it() -> None:
    known = {"supervisor_calls": 100.0, "keepers_calls": 50.0}
    assert not measure.grown({"supervisor_calls": 110.0, "keepers_calls": 20.0}, known)
    (line,) = measure.grown({"supervisor_calls": 112.0, "keepers_calls": 50.0}, known)
    assert line.startswith("supervisor calls a job, Python 3.")
    assert "112, 12 % above the record of 100; " in line
    assert line.endswith(": python -m tests.costs")


def test_a_record_is_of_one_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RECORD", tmp_path / "record.json")
    measure.RECORD.write_text('{"2.7": {"supervisor_calls": 1}}')
    measure.record({"supervisor_calls": 90.0})
    assert measure.recorded() == {"supervisor_calls": 90.0}
    assert measure.recorded("2.7") == {"supervisor_calls": 1}
    assert measure.recorded("3.1") == {}


def test_processes_are_told_apart_by_what_they_are_and_not_by_their_names() -> None:
    used = by_kind(TOLD.splitlines(), "dd ")
    assert used["supervisor"].calls == 9 + 30 + 7 + 11  # until its children are programs themselves
    assert used["keepers"].calls == 5 + 9 + 10
    assert used["job"].calls == 6
    assert used["others"].calls == 8
    assert used["job"].cpu_ms == 4.0
    assert used["job"].faults == 50


def test_each_process_is_traced_to_its_end(tmp_path: Path) -> None:
    try:
        tracer = Tracer(tmp_path, "calls")
    except UntraceableError as error:
        pytest.skip(str(error))
    script = "import os, sys; [os.getppid() for _ in range(int(sys.argv[1]))]"
    calls = []
    for count in (0, 5000):
        command = ["bash", "-c", f"{sys.executable} -I -c '{script}' {count} & wait; exit 0"]
        launchers.run(tracer.around(command), tmp_path)
        calls.append(tracer.used(sys.executable)["job"].calls)
    assert calls[1] - calls[0] == 5000


def test_instructions_are_counted_exactly() -> None:
    """In a process of its own: others' threads and collections of garbage execute some, too."""
    script = """if True:
        from tests.costs.gated import Instructions

        def counted(times):
            instructions = Instructions()
            instructions.begin()
            sum(n * n for n in range(times))
            instructions.end()
            return instructions.count

        print(counted(100), counted(100), counted(200))
    """
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    once, again, twice = map(int, said.stdout.split())
    each = (twice - once) / 100
    assert once == again
    assert each == int(each) > 0
