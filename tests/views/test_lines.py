from __future__ import annotations

import io
from datetime import timezone

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    End,
    Exited,
    Failure,
    ImageSource,
    Interrupted,
    LadderStep,
    Lost,
    NotStarted,
)
from gpulaunch.core.reasons import ImageUnavailable
from gpulaunch.observe.terminal.lines import LineView
from tests.views.history import History
from tests.views.screen import Tty


def watched(
    cards: int = 2, simulated: bool = False, quiet: bool = False, color: bool = False
) -> tuple[History, io.StringIO]:
    stream = io.StringIO()
    view = LineView(stream, color=color, quiet=quiet, zone=timezone.utc)
    return History(cards, simulated, view), stream


def text(run: History, stream: io.StringIO, times: bool = False) -> list[str]:
    assert run.view is not None
    run.view.close(run.ledger)
    return [line if times else line[21:] for line in stream.getvalue().splitlines()]


def test_a_run_reads_as_one_line_per_event_with_its_time() -> None:
    run, stream = watched(simulated=True)
    run.open().jobs("a", "b").start("a", 0).start("b", 1)
    run.pass_(42).succeed("a").pass_(3681).fail("b").add(f.RunClosed("failed"))
    assert text(run, stream, times=True) == [
        "2026-11-20 07:42:15  run                   nanobodies  "
        "run 20261120-074215-a1b2c3 on box, 2 simulated cards",
        "2026-11-20 07:42:15  planned               2 jobs",
        "2026-11-20 07:42:15  started               a  simulated GPU 0",
        "2026-11-20 07:42:15  started               b  simulated GPU 1",
        "2026-11-20 07:42:57  succeeded       0:42  a  simulated GPU 0",
        "2026-11-20 08:44:18  failed       1:02:03  b  simulated GPU 1, exited with status 1",
        "2026-11-20 08:44:18  failed                nanobodies  1 succeeded, 1 failed",
    ]


def test_a_failure_that_is_tried_again_says_when() -> None:
    run, stream = watched()
    run.open().jobs("a").start("a", 0).pass_(5).end("a", Exited(1), "gpu_oom")
    run.add(f.JobDelayed("a", Quoted("retry"), 30)).pass_(30).start("a", 1).pass_(9).succeed("a")
    assert text(run, stream)[2:] == [
        "started               a  GPU 0",
        "failed          0:05  a  out of GPU memory (exited with status 1), attempt 1; "
        "tries again in 30 s",
        "started               a  GPU 1, attempt 2",
        "succeeded       0:09  a  GPU 1, attempt 2",
    ]


def test_what_the_job_file_has_no_more_is_told_once_and_as_it_stands() -> None:
    run, stream = watched()
    run.open().jobs("done", "runs", "waits", "lost", "queued").start("done", 0).succeed("done")
    run.start("runs", 0).start("lost", 1).pass_(5).fail("lost")
    run.add(f.JobSettled("waits", "cancelled", Because("not_in_file")))
    for name in ("done", "runs", "waits", "lost"):
        run.add(f.JobVanished(name))
    queued = AttemptId("queued", 1)
    run.add(f.AttemptLaunched(queued, (), queued=True)).add(f.AttemptQueued(queued, "7"))
    run.add(f.JobVanished("queued"))
    gone = "no longer in the job file"
    told = [line for line in text(run, stream) if gone in line]
    assert told == [
        f"cancelled             waits  {gone}",
        f"vanished              done  {gone}; succeeded",
        f"vanished              runs  {gone}: runs to the end, and not again",
        f"vanished              lost  {gone}; exited with status 1",
    ]


def test_a_step_of_a_ladder_is_told_from_the_second_on() -> None:
    first, second = (LadderStep(number, 2, {"batch": f"{64 >> number}"}) for number in (1, 2))
    run, stream = watched()
    run.open().jobs("a").start("a", 0, step=first).pass_(5).end("a", Exited(1), "gpu_oom")
    run.add(f.JobDelayed("a", Quoted("retry"), step=second))
    run.start("a", 0, step=second).pass_(9).succeed("a")
    assert text(run, stream)[2:] == [
        "started               a  GPU 0",
        "failed          0:05  a  out of GPU memory (exited with status 1), attempt 1; "
        "tries again at step 2 of 2 (batch=16)",
        "started               a  GPU 0, attempt 2, step 2 of 2 (batch=16)",
        "succeeded       0:09  a  GPU 0, attempt 2, step 2 of 2 (batch=16)",
    ]


def test_a_failure_says_what_shows_it_and_says_that_once() -> None:
    run, stream = watched()
    run.open().jobs("a").start("a", 0).pass_(5)
    shows = "ValueError: x must not be 5"
    run.add(f.AttemptEnded(AttemptId("a", 1), End(Exited(1), Failure("exit", shows)), charged=True))
    run.add(f.JobDelayed("a", Quoted("retry"), 0.0)).start("a", 0).pass_(5)
    run.add(f.AttemptEnded(AttemptId("a", 2), End(Exited(1), Failure("exit", shows)), charged=True))
    run.add(f.JobSettled("a", "failed", Quoted("exited with status 1"))).add(f.RunClosed("failed"))
    lines = [line for line in text(run, stream) if line.startswith("failed          0:05")]
    assert lines == [
        f"failed          0:05  a  exited with status 1: {shows}, attempt 1; tries again",
        f"failed          0:05  a  GPU 0, exited with status 1: {shows}, attempt 2",
    ]


def test_evidence_that_the_reason_has_already_is_not_repeated() -> None:
    run, stream = watched()
    run.open().jobs("a").start("a", 0)
    why = "could not be started: no program frob"
    run.add(
        f.AttemptEnded(
            AttemptId("a", 1), End(NotStarted(why), Failure("not_started", why)), charged=True
        )
    )
    run.add(f.JobSettled("a", "failed", Quoted(why)))
    assert text(run, stream)[-1].count("no program frob") == 1


def test_a_retry_elsewhere_says_where_and_the_drivers_reports_are_told() -> None:
    run, stream = watched()
    run.open().jobs("a").start("a", 0).pass_(5)
    run.add(f.GpuReported("GPU-0", "Xid 31: a fault", (AttemptId("a", 1),)))
    run.add(f.GpuReported("GPU-1", "Xid 79: fell off the bus"))
    run.end("a", Exited(1), "crash").add(f.JobDelayed("a", Quoted("retry"), 0.0, "other_card"))
    assert text(run, stream)[3:] == [
        "reports               GPU 0  Xid 31: a fault; a.1 ran there",
        "reports               GPU 1  Xid 79: fell off the bus",
        "failed          0:05  a  the program crashed on the card (exited with status 1), "
        "attempt 1; tries again on another card",
    ]


def test_a_failure_reads_the_same_whatever_follows_it_at_once() -> None:
    run, stream = watched()
    run.open().jobs("a", "s", service=True).start("a", 0).pass_(5)
    first, second = AttemptId("a", 1), AttemptId("a", 2)
    batch: list[f.Fact] = [
        f.AttemptEnded(first, End(Exited(1), Failure("exit")), charged=True),
        f.JobDelayed("a", Quoted("exited with status 1; retry 1 of 2")),
        f.AttemptLaunched(second, ("GPU-0",)),
    ]
    for fact in batch:
        run.ledger.apply(fact, run.now)
    assert run.view is not None
    for fact in batch:
        run.view.see(fact, run.now, run.ledger)
    assert text(run, stream)[3:] == [
        "failed          0:05  a  exited with status 1, attempt 1; tries again"
    ]


def test_a_card_whose_memory_is_all_that_the_run_waits_for_is_said_once() -> None:
    run, stream = watched()
    run.open().jobs("a", "b").start("a", 0).start("b", 1)
    run.add(f.GpuChanged("GPU-0", "draining")).succeed("a")
    assert run.view is not None
    run.pass_(3)
    run.view.tick(run.now, run.ledger)
    assert "memory" not in stream.getvalue(), "another job runs"
    run.succeed("b").add(f.GpuChanged("GPU-1", "draining")).add(f.GpuChanged("GPU-1", "leased"))
    for _ in range(3):
        due = run.view.next_tick(run.now)
        run.pass_(max(0.0, due - run.mono) if due else 1.0)
        run.view.tick(run.now, run.ledger)
    assert [line for line in text(run, stream) if "memory" in line] == [
        "card                  GPU 0  waits for the memory of its last job to be given back"
    ]
    assert run.view.next_tick(run.now) is None


def test_an_interrupted_attempt_is_no_failure() -> None:
    run, stream = watched()
    run.open().jobs("a").start("a", 0).pass_(5).end(
        "a", Interrupted(Quoted("GPU 0 was given back"))
    )
    run.add(f.JobDelayed("a", Quoted("unterbrochen: GPU 0 was given back")))
    assert text(run, stream)[3:] == ["interrupted     0:05  a  GPU 0 was given back"]


def test_an_attempt_that_was_lost_says_why_once() -> None:
    run, stream = watched()
    run.open().jobs("a").start("a", 0).pass_(5).end(
        "a", Lost(Quoted("its keepers were killed")), "lost"
    )
    run.add(f.JobDelayed("a", Quoted("verloren: its keepers were killed")))
    assert text(run, stream)[3:] == ["lost            0:05  a  its keepers were killed"]


def test_a_card_that_stays_busy_is_news_once() -> None:
    run, stream = watched(1)
    run.open().jobs("a")
    for _ in range(5):
        run.add(f.GpuChanged("GPU-0", "occupied", Quoted("python of ann, 40 GiB")))
        run.add(f.GpuChanged("GPU-0", "free"))
    run.add(f.GpuChanged("GPU-0", "leased")).add(f.GpuChanged("GPU-0", "draining"))
    run.add(f.GpuChanged("GPU-0", "leased"))
    run.add(f.GpuChanged("GPU-0", "aside", Quoted("its memory did not drain")))
    assert text(run, stream)[2:] == [
        "card                  GPU 0  in use: python of ann, 40 GiB",
        "card                  GPU 0  came free",
        "card                  GPU 0  set aside: its memory did not drain",
    ]


def test_ten_thousand_jobs_skipped_for_one_cause_are_one_line() -> None:
    names = [f"j{n}" for n in range(10_000)]
    run, stream = watched()
    run.open().jobs("first", *names).start("first", 0).fail("first", 2)
    for name in names:
        run.skip(name, "needs first, which failed")
    run.add(f.RunClosed("failed"))
    assert text(run, stream)[3:] == [
        "failed          0:00  first  GPU 0, exited with status 2",
        "skipped               10,000 jobs  needs first, which failed",
        "failed                nanobodies  1 failed, 10,000 skipped",
    ]


def test_many_that_could_not_be_started_for_one_cause_are_one_line() -> None:
    names = [f"j{n}" for n in range(30)]
    run, stream = watched()
    run.open(engine="slurm").jobs(*names).hand_over(*names)
    for name in names:
        run.end(name, NotStarted("sbatch: no such partition"))
        run.add(f.JobSettled(name, "failed", None))
    run.add(f.RunClosed("failed"))
    told = [line for line in text(run, stream) if "sbatch" in line]
    assert len(told) == 1
    assert told[0].startswith("failed                30 jobs  ")


def test_few_skipped_jobs_are_named_without_waiting_for_the_next_event() -> None:
    run, stream = watched()
    run.open().jobs("a", "b").start("a", 0).fail("a").skip("b", "needs a, which failed")
    assert "skipped" not in stream.getvalue()
    assert run.view is not None
    due = run.view.next_tick(run.now)
    assert due is not None
    run.view.tick(run.now, run.ledger)
    assert "skipped" not in stream.getvalue()
    run.pass_(due - run.mono)
    run.view.tick(run.now, run.ledger)
    assert stream.getvalue().endswith("skipped               b  needs a, which failed\n")
    assert run.view.next_tick(run.now) is None


def test_what_people_and_the_machine_do_is_said() -> None:
    run, stream = watched()
    run.open().jobs("a", "s", service=True).start("s", 0).pass_(3)
    run.add(f.ServiceReady(AttemptId("s", 1)))
    run.add(f.AdmissionPaused(Quoted("the disk is full"))).add(f.AdmissionContinued())
    run.add(f.GpuDrained("GPU-1", True)).add(f.Noted("12 leftovers", "s"))
    run.add(f.StopAsked(Quoted("Ctrl-C"))).end("s", Cancelled(), left=2)
    run.add(f.JobSettled("s", "cancelled", Quoted("cancelled by ann")))
    run.add(f.StopAsked(Quoted("Ctrl-C"), now=True)).add(f.RunClosed("stopped", Quoted("Ctrl-C")))
    assert text(run, stream)[3:] == [
        "ready           0:03  s",
        "paused                no new starts  the disk is full",
        "continues             new starts again",
        "drain                 GPU 1  given back: no new starts there",
        "note                  s  12 leftovers",
        "stopping              no new jobs, running ones are ended  Ctrl-C",
        "cancelled       0:03  s  GPU 0, cancelled by ann, 2 processes left behind, killed",
        "stopping              running jobs are killed  Ctrl-C",
        "stopped               nanobodies  1 cancelled, 1 waiting, Ctrl-C",
    ]


def test_quiet_still_says_what_concerns_the_whole_run() -> None:
    run, stream = watched(quiet=True)
    run.open().jobs("a").add(f.Noted("mail was not told: no route to host"))
    run.add(f.Noted("12 leftovers", "a"))
    assert text(run, stream) == ["note                  mail was not told: no route to host"]


def test_quiet_says_only_what_failed() -> None:
    run, stream = watched(quiet=True)
    run.open().jobs("a", "b").start("a", 0).start("b", 1).succeed("a").fail("b")
    run.add(f.GpuChanged("GPU-0", "aside", Quoted("sick"))).add(f.RunClosed("succeeded"))
    assert text(run, stream) == ["failed          0:00  b  GPU 1, exited with status 1"]


def test_hostile_names_and_reasons_stay_text() -> None:
    run, stream = watched()
    name = "a\x1b[2J\nb[bold]"
    run.open().jobs(name).start(name, 0).end(name, Exited(1), "exit")
    run.add(f.JobSettled(name, "failed", Quoted("said \x1b]0;x\x07")))
    assert text(run, stream)[3] == (
        "failed          0:00  a\\x1b[2J\\nb[bold]  GPU 0, said \\x1b]0;x\\x07"
    )


def test_colours_only_where_asked_for() -> None:
    run, stream = watched(color=True)
    run.open().jobs("a").start("a", 0).fail("a")
    assert "\x1b[31;1mfailed     \x1b[0m" in stream.getvalue()
    run, stream = watched()
    run.open().jobs("a").start("a", 0).fail("a")
    assert "\x1b" not in stream.getvalue()


def test_an_ascii_stream_gets_escapes_not_an_error() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii", write_through=True) as stream:
        run = History(1, view=LineView(stream))
        run.open().jobs("蛋白").start("蛋白", 0).succeed("蛋白")
        assert b"\\u86cb\\u767d" in raw.getvalue()


class Gone(Tty):
    """A terminal that was closed, or a pipe without a reader."""

    def write(self, text: str) -> int:
        raise BrokenPipeError("nobody reads")


def test_a_reader_that_goes_away_does_not_stop_the_run() -> None:
    run = History(1, view=LineView(Gone()))
    run.open().jobs("a").start("a", 0).succeed("a")
    closed = io.StringIO()
    closed.close()
    History(1, view=LineView(closed)).open()


def test_a_pull_is_told_with_what_came_of_it() -> None:
    digest = "sha256:0123456789abcdef0123456789abcdef"
    pulled, there = ImageSource("registry/af3:1", "docker"), ImageSource("/a/b.sif", "apptainer")
    run, stream = watched()
    run.open().jobs("a").add(f.PullBegun(pulled, "docker")).pass_(200)
    run.add(f.ImageKnown(pulled, digest, digest, "docker", pulled=True))
    run.add(f.ImageKnown(there, "/a/b.sif", "", "apptainer"))
    assert text(run, stream)[2:] == [
        "pulling               registry/af3:1  with docker",
        "pulled          3:20  registry/af3:1  docker, sha256:0123456789ab",
        "found                 /a/b.sif  apptainer",
    ]


def test_jobs_whose_image_cannot_be_had_say_so_in_one_line() -> None:
    run, stream = watched()
    run.open().jobs(*"abcde")
    for name in "abcde":
        run.add(f.JobSettled(name, "failed", ImageUnavailable("img", "no such image")))
    assert text(run, stream)[2:] == [
        "failed                5 jobs  never started: its image img cannot be had: no such image"
    ]
