from __future__ import annotations

import io
import time
from collections.abc import Sequence

import pytest

from gpulaunch.base.errors import NO_CARDS
from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId, End, Exited, Failure, RunState
from gpulaunch.observe.metrics.model import AttemptUse, Measured
from gpulaunch.observe.present.summary import Summary, next_command, summarise
from gpulaunch.observe.present.usage import covered
from gpulaunch.observe.terminal.overview import print_summary
from gpulaunch.observe.terminal.terminal import console_for
from tests.views.history import History
from tests.views.screen import Paths, Tty, rendered


def no_tail(_log: str) -> Sequence[str]:
    return ()


def summary_of(run: History, tail: Sequence[str] = ()) -> Summary:
    return summarise(
        run.ledger, Paths(), run.now, tail_of=lambda _log: tail, exists=lambda _log: True
    )


def mixed(simulated: bool = False) -> History:
    run = History(2, simulated).open().jobs("a", "b", "c", "d")
    run.start("a", 0).start("b", 1).pass_(1800).succeed("a")
    run.pass_(1800).end("b", Exited(1), "exit").add(f.JobDelayed("b", Quoted("retry")))
    run.start("b", 0).pass_(60).fail("b", 3)
    run.skip("c", "needs b, which failed").skip("d", "needs b, which failed")
    return run.add(f.RunClosed("failed"))


def test_a_run_with_a_failure_ends_with_why_where_and_what_next() -> None:
    summary = summary_of(mixed(simulated=True), ["Traceback ...", "ValueError: no [bold] chain"])
    assert rendered(lambda console: print_summary(console, summary)) == (
        "    failed  b  exited with status 3, 2 attempts, simulated GPU 0\n"
        "            gpulaunch-runs/nanobodies-20261120-074215/logs/b.2.log\n"
        "            │ Traceback ...\n"
        "            │ ValueError: no [bold] chain\n"
        "\n"
        "   skipped  2 jobs: needs b, which failed\n"
        "\n"
        "    failed  nanobodies  4 jobs: 1 succeeded, 1 failed, 2 skipped\n"
        "      time  1:01:00\n"
        "     cards  2 simulated cards 75 % busy, 1.52 GPU-hours (GPU 0: 51 %, GPU 1: 98 %)\n"
        "       run  gpulaunch-runs/nanobodies-20261120-074215\n"
        "go on with  gpulaunch retry gpulaunch-runs/nanobodies-20261120-074215"
    )


def test_advice_is_given_once_and_the_drivers_reports_with_each_failure() -> None:
    run = History(1).open().jobs("a", "b")
    for name, reason in (("a", "went wrong"), ("b", "ran dry")):
        run.start(name, 0).add(f.GpuReported("GPU-0", "Xid 31: a fault", (AttemptId(name, 1),)))
        end = f.AttemptEnded(
            AttemptId(name, 1),
            End(Exited(ord(name)), Failure("crash", advice=(Quoted("Do this.\nThen that."),))),
            charged=True,
        )
        run.add(end).add(f.JobSettled(name, "failed", Quoted(reason)))
    shown = rendered(lambda console: print_summary(console, summary_of(run)))
    assert shown.count("    driver  Xid 31: a fault\n") == 2, "of each kind"
    assert shown.count("    advice  Do this.\n            Then that.\n") == 1
    assert "failed  a  the program crashed on the card (went wrong), GPU 0" in shown


def test_scripts_that_changed_are_told_the_last_ones_first_of_all() -> None:
    run = History(1).open().jobs("a").start("a", 0)
    for number in range(5):
        run.pass_(60).add(f.CodeChanged(f"s{number}.py", run.now.utc, 1, 2))
    run.pass_(60).succeed("a").add(f.RunClosed("succeeded"))
    shown = rendered(lambda console: print_summary(console, summary_of(run)))
    first = next(line for line in shown.splitlines() if ".py" in line)
    assert first.startswith("      code  s2.py")
    assert "s4.py changed at " in shown
    assert "and 2 more files of the jobs' code" in shown


def test_a_run_where_all_is_well_is_short() -> None:
    run = History(1).open().jobs("a").start("a", 0).pass_(90).succeed("a")
    run.add(f.RunClosed("succeeded"))
    assert rendered(lambda console: print_summary(console, summary_of(run))) == (
        " succeeded  nanobodies  1 job: 1 succeeded\n"
        "      time  1:30\n"
        "     cards  1 card 100 % busy, 0.03 GPU-hours\n"
        "       run  gpulaunch-runs/nanobodies-20261120-074215"
    )


@pytest.mark.parametrize(
    ("state", "command"),
    [("stopped", "resume"), ("interrupted", "resume"), ("failed", "retry"), ("succeeded", None)],
)
def test_the_next_command_fits_how_it_ended(state: RunState, command: str | None) -> None:
    run = History(1).open().jobs("a")
    if state == "failed":
        run.start("a", 0).fail("a")
    found = next_command(state, run.ledger, str(Paths.root))
    assert found == (f"gpulaunch {command} {Paths.root}" if command else None)


def test_the_next_command_can_be_pasted_whatever_the_directory_is_called() -> None:
    class Spaced(Paths):
        root = Paths.root.parent / "my runs; rm"

    run = History(1).open().jobs("a").add(f.RunClosed("stopped", Quoted("Ctrl-C")))
    summary = summarise(run.ledger, Spaced(), run.now, tail_of=no_tail)
    assert summary.next_command == "gpulaunch resume 'gpulaunch-runs/my runs; rm'"


def test_ten_failures_are_shown_and_only_their_logs_are_read() -> None:
    run = History(1).open().jobs(*(f"j{n}" for n in range(25)))
    for n in range(25):
        run.start(f"j{n}", 0).end(f"j{n}", Exited(1), "exit")
        run.add(f.JobSettled(f"j{n}", "failed", Quoted(f"went wrong {'x' * n}")))
    read: list[str] = []

    def tail_of(log: str) -> Sequence[str]:
        read.append(log)
        return ()

    summary = summarise(run.ledger, Paths(), run.now, tail_of=tail_of, exists=lambda _log: True)
    assert len(summary.failed) == len(read) == 10
    assert "and 15 failed jobs more" in rendered(lambda c: print_summary(c, summary))


def test_jobs_that_share_a_card_use_its_time_once() -> None:
    run = History(1).open().jobs("a", "b").start("a", 0).start("b", 0).pass_(3600)
    run.succeed("a").succeed("b").add(f.RunClosed("succeeded"))
    summary = summary_of(run)
    assert summary.busy == 1.0
    assert summary.gpu_hours == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0),
        ([(0, 10), (5, 15)], 15),
        ([(0, 10), (2, 3)], 10),
        ([(20, 30), (0, 10)], 20),
        ([(0, 10), (10, 20), (0, 20)], 20),
    ],
)
def test_overlapping_times_are_counted_once(
    spans: list[tuple[float, float]], seconds: float
) -> None:
    assert covered(spans) == seconds


def test_a_resumed_run_is_not_blamed_for_the_night_between() -> None:
    run = History(1).open().jobs("a", "b").start("a", 0).pass_(3600).succeed("a")
    run.pass_(40_000).open().start("b", 0).pass_(1800).succeed("b").pass_(1800)
    summary = summary_of(run.add(f.RunClosed("succeeded")))
    assert summary.elapsed == 3600
    assert summary.busy == 0.5
    assert summary.gpu_hours == pytest.approx(1.5)
    assert "1:00:00 since it was taken up again" in rendered(lambda c: print_summary(c, summary))


def test_a_card_that_a_resume_no_longer_has_is_still_named() -> None:
    run = History(2).open().jobs("a").start("a", 1).fail("a")
    run.pool = run.pool[:1]
    (failed,) = summary_of(run.open()).failed
    assert failed.card == "card GPU-1"


def test_hostile_names_logs_and_reasons_stay_text() -> None:
    run = History(1).open().jobs("\x1b[2Jx").start("\x1b[2Jx", 0).end("\x1b[2Jx", Exited(1), "exit")
    run.add(f.JobSettled("\x1b[2Jx", "failed", Quoted("[red]\x07"))).add(
        f.RunClosed("failed", Quoted("\x1bq"))
    )
    shown = rendered(lambda c: print_summary(c, summary_of(run, ["\x1b[0m[/]"])))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\\x1b[2Jx  [red]\\x07" in shown
    assert "│ \\x1b[0m[/]" in shown


def test_colour_on_a_terminal_and_none_with_no_color() -> None:
    summary = summary_of(mixed())
    for environ, coloured in (
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, False),
    ):
        stream = Tty()
        print_summary(console_for(stream, environ), summary)
        assert ("\x1b[" in stream.getvalue()) is coloured, environ
    piped = io.StringIO()
    print_summary(console_for(piped, {"TERM": "xterm", "FORCE_COLOR": "1"}), summary)
    assert "\x1b" not in piped.getvalue()


def test_ten_thousand_jobs_are_summarised_without_a_pause() -> None:
    run = History(8).open().jobs(*(f"j{n}" for n in range(10_000)))
    for n in range(10_000):
        run.start(f"j{n}", n % 8).pass_(1).succeed(f"j{n}")
    started = time.perf_counter()
    summary = summarise(run.ledger, Paths(), run.now, tail_of=no_tail)
    print(f"10,000 jobs summarised in {time.perf_counter() - started:.3f} s")
    assert summary.ledger.counts["succeeded"] == 10_000


def test_a_log_that_was_never_made_is_not_named() -> None:
    run = History(1).open().jobs("a").start("a", 0).fail("a")
    summary = summarise(run.ledger, Paths(), run.now)
    assert summary.failed[0].log is None
    assert "logs" not in rendered(lambda console: print_summary(console, summary))


def test_what_was_measured_is_told_with_each_failure_and_for_the_run() -> None:
    a, b = AttemptId("a", 1), AttemptId("b", 2)
    uses = {
        a: AttemptUse(a, 6 << 30, 5 << 30, 99.0, 80.0, 3000.0, 600.0, 2 << 30, 7 << 30),
        b: AttemptUse(b, 71 << 30, 60 << 30, 90.0, 20.0, 1000.0, 100.5, 1 << 30, 72 << 30),
    }
    summary = summarise(
        mixed().ledger, Paths(), mixed().now, tail_of=no_tail, measured=Measured(uses)
    )
    shown = rendered(lambda console: print_summary(console, summary))
    assert (
        "      used  GPU memory at most 71 GiB, 20 % utilised, 1 GiB resident, 1:40 of CPU time\n"
    ) in shown
    assert (
        "      used  a job's GPU memory at most 71 GiB (b), the jobs' cards 65 % utilised,"
        " resident memory at most 2 GiB (a), 11:40 of CPU time\n"
    ) in shown


def test_of_pretend_cards_nothing_is_told_not_even_zero() -> None:
    b = AttemptId("b", 2)
    told = Measured({b: AttemptUse(b, cpu_seconds=3.0, peak_resident=5 << 20)})
    run = mixed(simulated=True)
    summary = summarise(run.ledger, Paths(), run.now, tail_of=no_tail, measured=told)
    shown = rendered(lambda console: print_summary(console, summary))
    assert "      used  5 MiB resident, 0:03 of CPU time\n" in shown
    assert "used  resident memory at most 5 MiB (b), 0:03 of CPU time\n" in shown
    assert "GPU memory" not in shown


def test_where_no_pid_can_be_matched_the_cards_memory_stands_in() -> None:
    b = AttemptId("b", 2)
    told = Measured({b: AttemptUse(b, peak_card_memory=3 << 30)})
    run = mixed()
    summary = summarise(run.ledger, Paths(), run.now, tail_of=no_tail, measured=told)
    assert summary.failed[0].use == "memory of its cards, whoever's, at most 3 GiB"
    assert summary.used == ""


def test_a_run_for_which_no_card_came_in_time_is_nothing_to_go_on_with() -> None:
    run = History(1).open().jobs("a").add(f.RunClosed("failed", Quoted("no card in 1 s"), NO_CARDS))
    assert summary_of(run).next_command is None
    run.open().start("a", 0).end("a", Exited(1), "exit").add(f.RunClosed("failed", None, NO_CARDS))
    assert summary_of(run).next_command is not None, "an earlier start got cards"
