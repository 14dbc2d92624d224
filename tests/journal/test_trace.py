"""A run's trace: it replays to the same facts, and shows where another core does otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpulaunch.core import graph
from gpulaunch.core.events import Asked, DrainGpus, Event, Launch, Submitted
from gpulaunch.core.facts import RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import End, Instant, Job
from gpulaunch.core.run import Run
from gpulaunch.journal.trace import TracedRun, TraceStart, begun, main, replay
from tests.core import world as worlds
from tests.core.histories import play
from tests.core.options import config
from tests.core.table import job
from tests.core.world import pretend_gpus

GPUS = pretend_gpus(2)
AT = Instant(1.0, 2.0)
OPENED = RunOpened("r", "r", 1, "0", "h", "b", 1, GPUS)


def _traced(path: Path, **options: Any) -> TracedRun:
    ledger = Ledger()
    ledger.apply(OPENED, AT)
    return TracedRun(path, TraceStart("", OPENED, AT, config(**options)), ledger, pytest.fail)


def test_a_trace_of_random_histories_replays_to_the_same_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Path, TracedRun]] = []

    def traced(gpus: object, options: Any, ledger: Ledger) -> Run:
        if (
            ledger.opening.epoch > 1
        ):  # what came before is in its journal, which a pretended run lacks
            return Run(gpus, options, ledger)  # type: ignore[arg-type]
        path = tmp_path / f"{len(made)}"
        opened = RunOpened("A", "A", 1, "0", "host", "boot", 1, gpus)  # type: ignore[arg-type]
        at = ledger.opened or AT
        made.append((path, TracedRun(path, TraceStart("", opened, at, options), ledger, print)))
        return made[-1][1]

    monkeypatch.setattr(worlds, "Run", traced)
    for seed in range(20):
        play(seed, 1)
    for path, run in made:
        run.close()
        count, found = replay(path, begun(path))
        assert count > 0
        assert found is None, found


def test_the_first_event_is_named_after_which_a_broken_core_does_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace"
    run = _traced(path)
    _until_quiet(run, Submitted((job("a"), job("b", needs=("a",)))))
    run.close()
    assert main([str(path)]) == 0
    assert "the same facts and instructions" in capsys.readouterr().out
    monkeypatch.setattr(graph, "AHEAD_OF", 0)
    assert main([str(path)]) == 0, "what this run does not use changes nothing"
    monkeypatch.setattr(graph, "may_go_ahead", graph._advance)
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    assert f"{path}:2: Submitted(" in said.splitlines()[1]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    run = _traced(path)
    run.handle([Submitted((job("a"),))], AT)
    run.handle([Asked(DrainGpus(None))], AT)
    run.close()
    path.write_bytes(path.read_bytes()[:-5])
    assert replay(path, begun(path)) == (1, None)


def test_no_command_and_no_variable_of_a_job_is_in_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    run = _traced(path)
    secret = Job(
        "a", "echo hidden", env={"TOKEN": "hidden"}, item={"item": "hidden"}, cwd="/hidden"
    )
    _until_quiet(run, Submitted((secret,)))
    run.close()
    assert "hidden" not in path.read_text()


def test_a_trace_that_cannot_be_written_is_warned_of_once_and_stops_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "there"
    path.write_text("an older trace")
    ledger = Ledger()
    ledger.apply(OPENED, AT)
    run = TracedRun(path, TraceStart("", OPENED, AT, config()), ledger, said.append)
    assert _until_quiet(run, Submitted((job("a"),)))
    assert said == [f"GPULAUNCH_TRACE: {path}: File exists; the run is not traced"]
    assert path.read_text() == "an older trace"


def _until_quiet(run: Run, event: Event) -> list[Launch]:
    """Grant what the run asks for, and let each attempt succeed; return its launches."""
    from gpulaunch.core.events import Acquire, Drain, Drained, Ended, Granted
    from gpulaunch.core.model import Exited

    todo, launched = [event], []
    for number, told in enumerate(todo):
        for result in run.handle([told], Instant(2.0 + number, 3.0 + number)):
            match result:
                case Acquire(gpu):
                    todo.append(Granted(gpu, 80 << 30))
                case Drain(gpu):
                    todo.append(Drained(gpu, 80 << 30))
                case Launch(attempt):
                    launched.append(result)
                    todo.append(Ended(attempt, End(Exited(0))))
    return launched
