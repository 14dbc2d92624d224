"""What people see of a run fits their screen, whatever the number of its jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from rich.console import Console

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import (
    AttemptId,
    End,
    Exited,
    Failure,
    Job,
    MissingOutput,
    Outcome,
    Signaled,
)
from gpulaunch.core.retry import over
from gpulaunch.observe.present.status import Standing
from gpulaunch.observe.present.summary import failures, reasons, summarise
from gpulaunch.observe.terminal.overview import print_summary
from gpulaunch.observe.terminal.standing import print_status
from gpulaunch.observe.terminal.terminal import console_for
from tests.views.history import History
from tests.views.screen import Paths, Screen, Tty

NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full"


def fails(run: History, name: str, outcome: Outcome, kind: str, evidence: str) -> None:
    attempt = AttemptId(name, len(run.ledger.jobs[name].attempts))
    advice = (Quoted("Make the batch smaller."),) if kind == "gpu_oom" else ()
    run.add(f.AttemptEnded(attempt, End(outcome, Failure(kind, evidence, advice)), charged=True))
    run.add(f.JobSettled(name, "failed", over(outcome, Job(name, ""), Failure(kind, evidence))))


def crowd(number: int) -> History:
    """So many jobs in all states there are; a third failed, in eight ways."""
    run = History(4).open().jobs(*(f"fold-{n:04}" for n in range(number)))
    for n in range(number // 3):
        run.start(f"fold-{n:04}", n % 4).pass_(3).succeed(f"fold-{n:04}")
    for n in range(number // 3, 2 * number // 3):
        name = f"fold-{n:04}"
        run.start(name, n % 4).pass_(3)
        if n % 8 == 0:
            fails(run, name, Exited(1), "gpu_oom", NO_MEMORY)
        elif n % 8 == 1:
            fails(run, name, Signaled(11), "signal", "loading weights")
        elif n % 8 < 6:
            shown = f"ValueError: residue {n} of /data/{name}.fasta is {'very ' * 30}unknown"
            fails(run, name, Exited(1), "exit", shown)
        else:
            fails(run, name, Exited(n % 8), "exit", "KeyError: 'a'")
    left = [f"fold-{n:04}" for n in range(2 * number // 3, number)]
    for n, name in enumerate(left[: len(left) // 3]):
        run.skip(name, f"needs fold-{number // 3 + n:04}, which failed")
    for card, name in enumerate(left[-4:]):
        run.start(name, card)
    return run.pass_(9)


def on_screen(show: Callable[[Console], None], columns: int, rows: int) -> list[str]:
    """The lines as a terminal of that size wraps them, its prompt's included."""
    stream, screen = Tty(), Screen(columns)
    console = console_for(stream, {"TERM": "xterm-256color", "NO_COLOR": "1"})
    console.size = (columns, rows)  # type: ignore[assignment]
    show(console)
    screen.feed(stream.getvalue())
    return [*screen.lines, "$"]


@pytest.mark.parametrize("columns", [60, 80])
def test_of_a_path_too_long_for_the_screen_its_end_is_seen(columns: int) -> None:
    run = History(1).open().jobs("e", "f").start("e", 0).start("f", 0).pass_(3)
    home = f"/home/somebody/{'projects/' * 9}gpulaunch-runs/nanobodies-20261120-074215/out"
    fails(run, "e", MissingOutput((f"{home}/e.1/x (empty)",)), "missing_output", "")
    shown = f"FileNotFoundError: {home}/inputs/model 1.pt, not {home}/f.1/chain.cif"
    fails(run, "f", Exited(1), "exit", shown)
    for show in (ending(run), status(run, "failed")):
        text = "\n".join(on_screen(show, columns, 40))
        assert "left no good output: …/e.1/x (empty)" in text
        assert "FileNotFoundError: …/inputs/model" in text
    assert "…/f.1/chain.cif" in text or columns < 80


def status(run: History, state: str = "running") -> Callable[[Console], None]:
    why = {n: Quoted(f"waits for a card: GPU 0 is busy with {n}") for n in run.ledger.jobs}
    told = Standing(run.ledger, Paths(), state, why, run.now)  # type: ignore[arg-type]
    return lambda console: print_status(console, told)


def ending(run: History) -> Callable[[Console], None]:
    run.add(f.RunClosed("failed", Quoted("a third of the jobs did not succeed"), 1))
    tail = ("Traceback (most recent call last):", *(f"  frame {n}" for n in range(5)))
    told = summarise(run.ledger, Paths(), run.now, tail_of=lambda _: tail, exists=lambda _: True)
    return lambda console: print_summary(console, told)


@pytest.mark.parametrize("size", [(80, 24), (60, 24), (200, 50), (80, 12)], ids=str)
@pytest.mark.parametrize("number", [3, 50, 5000])
@pytest.mark.parametrize("view", [status, ending])
def test_it_fits_a_screen(
    view: Callable[[History], Callable[[Console], None]], number: int, size: tuple[int, int]
) -> None:
    columns, rows = size
    lines = on_screen(view(crowd(number)), columns, rows)
    assert len(lines) <= max(rows - (view is ending), 22), "\n".join(lines)
    text = "\n".join(lines)
    if number > 3:
        assert "ValueError: residue" in text, "what shows the most frequent failure"


def test_each_kind_of_failure_is_told_once_with_its_number_names_and_evidence() -> None:
    lines = on_screen(status(crowd(5000)), 200, 50)
    (at,) = (n for n, line in enumerate(lines) if "ValueError" in line)
    assert lines[at - 1] == (
        "   835 failed  exited with status 1: fold-1666, fold-1667, fold-1668 and 832 more"
    )
    assert sum("out of GPU memory" in line for line in lines) == 1
    assert any("waits for a card: GPU 0 is busy with fold-*" in line for line in lines)
    assert any("skipped  needs fold-*, which failed" in line for line in lines)


def test_every_job_is_told_in_whole_words_on_a_narrow_screen() -> None:
    run = crowd(12)
    told = Standing(run.ledger, Paths(), "running", {}, run.now)
    text = "\n".join(on_screen(lambda console: print_status(console, told, True), 40, 30))
    assert "fold-0000  succeeded  0:03\n  GPU 0\n" in text
    assert "fold-0006  failed  0:03\n  GPU 2, exited with status 6: KeyError:\n 'a'\n" in text
    text = "\n".join(on_screen(lambda console: print_status(console, told, True), 60, 30))
    assert "fold-0000  succeeded  0:03  GPU 0\n" in text


def test_a_killed_run_says_so_and_names_the_command_that_goes_on() -> None:
    lines = on_screen(status(crowd(50), "interrupted"), 80, 24)
    assert "its supervisor is gone: it was killed, or the machine went down" in lines
    assert f"gpulaunch resume {Paths.root}" in "".join(lines)


def test_what_differs_in_the_jobs_own_alone_is_one_kind_of_failure() -> None:
    run = History(1).open().add(f.JobAdded("a", 0, 1, "d", {"stem": "1ubq"}))
    run.add(f.JobAdded("b", 0, 1, "d", {"stem": "4hhb"})).jobs("c")
    for name, stem in (("a", "1ubq"), ("b", "4hhb"), ("c", "none")):
        run.start(name, 0)
        fails(run, name, Exited(1), "exit", f"OSError: {stem}.pdb at byte {len(name)} is no PDB")
    assert [group.names for group in failures(run.ledger.jobs.values())] == [("a", "b"), ("c",)]


def test_what_ended_otherwise_is_another_kind_of_failure() -> None:
    run = History(1).open().jobs("a", "b", "c", "d")
    ends = (("a", Exited(1)), ("b", Exited(2)), ("c", Exited(2)), ("d", Signaled(11)))
    for name, outcome in ends:
        fails(run.start(name, 0), name, outcome, "exit", "")
    assert [group.names for group in failures(run.ledger.jobs.values())] == [
        ("b", "c"),
        ("a",),
        ("d",),
    ]


def test_reasons_that_differ_in_jobs_and_numbers_alone_are_one() -> None:
    run = History(1).open().jobs("fold-1a", "fold-2a", "x", "y", "z")
    said = {
        "fold-1a": "needs x, which is running",
        "fold-2a": "needs y, which is running",
        "x": "retries in 5 s",
        "y": "retries in 30 s",
        "z": "waits for its turn",
    }
    found = reasons(run.ledger.jobs.values(), lambda job: Quoted(said[job.name]), run.ledger)
    assert [(group.text, group.names) for group in found] == [
        ("needs *, which is running", ("fold-1a", "fold-2a")),
        ("retries in 5 to 30 s", ("x", "y")),
        ("waits for its turn", ("z",)),
    ]


def test_values_of_one_letter_make_no_kinds_of_failures() -> None:
    run = History(1).open()
    for item in "abc":
        run.add(f.JobAdded(f"fold-{item}", 0, 1, "d", {"item": item})).start(f"fold-{item}", 0)
        fails(run, f"fold-{item}", Exited(1), "exit", f"ValueError: a bad residue in chain {item}")
    (group,) = failures(job for job in run.ledger.jobs.values() if job.name != "fold-a")
    assert group.names == ("fold-b", "fold-c")


@pytest.mark.parametrize("columns", [60, 200])
def test_a_reason_longer_than_the_line_hides_no_names(columns: int) -> None:
    run = History(1).open().jobs("fold-a", "fold-b")
    reason = "waits for a card: GPU 0 is held by " + "some" * 9
    told = Standing(
        run.ledger, Paths(), "running", dict.fromkeys(run.ledger.jobs, Quoted(reason)), run.now
    )
    lines = on_screen(lambda console: print_status(console, told), columns, 24)
    (at,) = (n for n, line in enumerate(lines) if "2 waiting  waits for" in line)
    if columns == 60:
        assert lines[at].endswith("…")
        assert lines[at + 1].strip() == "fold-a, fold-b"
    else:
        assert lines[at].endswith("some: fold-a, fold-b"), lines[at]


def test_what_has_no_job_to_name_leaves_no_gap() -> None:
    run = History(1).open().jobs("a").start("a", 0).pass_(3).succeed("a")
    told = Standing(run.ledger, Paths(), "succeeded", {}, run.now)
    lines = on_screen(lambda console: print_status(console, told), 80, 24)
    assert not any(one == other == "" for one, other in itertools.pairwise(lines)), lines
