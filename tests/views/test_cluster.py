"""Jobs in an engine's queue and on a cluster's nodes, in every view."""

from __future__ import annotations

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId, Cancelled, End, Exited, Interrupted
from gpulaunch.observe.present import words
from gpulaunch.observe.present.status import Standing, status_json
from gpulaunch.observe.present.summary import summarise
from gpulaunch.observe.present.usage import Estimate
from gpulaunch.observe.prometheus.families import Tally
from gpulaunch.observe.terminal.overview import print_summary
from gpulaunch.observe.terminal.standing import print_status
from gpulaunch.observe.top.board import Board
from gpulaunch.observe.top.head import counts
from gpulaunch.observe.top.rows import CardRows, FailedRows, Filter
from tests.views.history import History
from tests.views.screen import Paths, rendered
from tests.views.test_lines import text, watched
from tests.views.test_progress import Watched


def cluster() -> History:
    """One job is done, three run on nodes, one without a card; one is in the queue, one waits."""
    run = History(0).open(engine="slurm").jobs("done", "wide", "small", "queued", "left")
    run.jobs("cpu", cards=0).hand_over("done", "wide", "small", "queued", "cpu")
    run.start_there("done", "n1", 0).pass_(1800).succeed("done")
    run.start_there("wide", "n10", 0, 1).start_there("small", "n2", 3).start_there("cpu", "n2")
    return run.pass_(60)


def status(run: History, state: str = "running", **reasons: str) -> str:
    told = {name: Quoted(text) for name, text in reasons.items()}
    return rendered(
        lambda console: print_status(
            console,
            Standing(run.ledger, Paths(), state, told, run.now),  # type: ignore[arg-type]
            everything=True,
        )
    )


def test_cards_of_other_machines_are_named_with_them() -> None:
    run = cluster().hand_over("left")
    run.add(f.AttemptStarted(AttemptId("left", 1), 1, (), "n\x1b3"))
    found = {job.name: words.attempt_cards(job.attempts[-1], run.ledger) for job in
             run.ledger.jobs.values()}  # fmt: skip
    assert found == {
        "done": "n1 GPU 0",
        "wide": "n10 GPUs 0, 1",
        "small": "n2 GPU 3",
        "queued": "",
        "left": "n\\x1b3",
        "cpu": "n2",
    }
    gpus = [record.gpu for record in run.ledger.gpus.values()]
    assert words.cards(gpus) == "n1 GPU 0, n10 GPUs 0, 1, n2 GPU 3"


def test_status_says_where_jobs_run_and_why_the_others_wait() -> None:
    lines = status(cluster(), left="waits for its turn").splitlines()
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[3:]}
    assert rows["wide"] == "running     1:00  n10 GPUs 0, 1"
    assert rows["cpu"] == "running     1:00  n2"
    assert rows["queued"].split(maxsplit=1) == ["waiting", "in the queue (Slurm job 8)"]
    assert rows["left"].split(maxsplit=1) == ["waiting", "waits for its turn"]


def test_the_engine_knows_better_why_a_job_is_in_the_queue() -> None:
    assert "n1 is drained" in status(cluster(), queued="n1 is drained")


def test_what_slurm_doubts_of_a_job_that_runs_is_told() -> None:
    run, doubt = cluster(), "Slurm has suspended it; scontrol resume lets it go on"
    standing = Standing(run.ledger, Paths(), "running", {"wide": Quoted(doubt)}, run.now)
    reasons = {job["name"]: job["reason"] for job in status_json(standing)["jobs"]}
    assert (reasons["wide"], reasons["small"]) == (doubt, "")


def test_json_tells_node_and_queue_of_attempts_there() -> None:
    run = cluster()
    found = status_json(Standing(run.ledger, Paths(), "running", {}, run.now))
    jobs = {job["name"]: job for job in found["jobs"]}
    assert jobs["queued"]["state"] == "waiting"
    (attempt,) = jobs["small"]["attempts"]
    assert (attempt["node"], attempt["queue_id"]) == ("n2", "Slurm job 8")
    assert attempt["gpus"] == [{"index": 3, "uuid": "n2/3"}]
    assert [gpu["node"] for gpu in found["gpus"]] == ["n1", "n10", "n10", "n2"]
    assert [gpu["jobs"] for gpu in found["gpus"]] == [[], ["wide"], ["wide"], ["small"]]


def test_what_goes_on_without_a_supervisor_is_not_called_cut_off() -> None:
    run = cluster()
    run.ledger.cut_off()
    said = status(run, "interrupted")
    assert "cut off" not in said
    assert "goes on: `gpulaunch resume` takes it up" in said
    assert "n10 GPUs 0, 1" in said
    assert "in the queue" in said


def test_lines_tell_of_the_queue_once_for_many() -> None:
    run, stream = watched(0)
    names = [f"j{number}" for number in range(50)]
    run.open(engine="slurm").jobs(*names, "cpu").hand_over(*names)
    run.start_there("j7", "n1", 0, 1).hand_over("cpu").start_there("cpu", "n2")
    run.pass_(42).succeed("j7")
    assert text(run, stream) == [
        "run                   nanobodies  run 20261120-074215-a1b2c3 on box, by slurm",
        "planned               51 jobs",
        "queued                50 jobs",
        "started               j7  n1 GPUs 0, 1",
        "queued                cpu",
        "started               cpu  n2, no card",
        "succeeded       0:42  j7  n1 GPUs 0, 1",
    ]


def test_what_was_taken_back_before_it_began_is_no_try_of_its_job() -> None:
    run, stream = watched(0)
    run.open(engine="slurm").jobs("fold", "score").hand_over("fold").start_there("fold", "n1", 0)
    run.hand_over("score", after="fold").end("fold", Exited(1), "exit")
    run.end("score", Interrupted(Quoted("what it needs did not succeed")))
    run.add(f.JobDelayed("score", Quoted("what it needs did not succeed"), 0.0))
    run.add(f.JobSettled("fold", "failed", Quoted("exited with status 1"))).hand_over(
        "score", after="fold"
    )
    run.end("score", Interrupted(Quoted("what it needs did not succeed")))
    run.skip("score", "needs fold, which failed")
    said = text(run, stream)
    assert [line for line in said if "interrupted" in line] == []
    assert said[-1] == "skipped               score  needs fold, which failed"
    assert "needs fold, which failed\n" in status(run) + "\n"
    assert "attempt 2" not in status(run)


def test_what_is_queued_ahead_of_its_needs_is_told_with_them() -> None:
    run, stream = watched(0)
    run.open(engine="slurm").jobs("a", "b", "c").hand_over("a")
    needs = (AttemptId("a", 1),)
    for name in "bc":
        attempt = AttemptId(name, 1)
        run.add(f.AttemptLaunched(attempt, (), queued=True, after=needs))
        run.add(f.AttemptQueued(attempt, "Slurm job 9"))
    run.start_there("a", "n1", 0)
    assert text(run, stream)[2:-1] == [
        "queued                a",
        "queued                b  needs a",
        "queued                c  needs a",
    ]
    board = Board()
    board.ledger = run.ledger
    assert board.reason(run.ledger.jobs["b"]) == "needs a; in the queue (Slurm job 9)"
    run.succeed("a")
    assert board.reason(run.ledger.jobs["b"]) == "in the queue (Slurm job 9)"


def test_the_live_view_has_a_row_for_each_card_in_use() -> None:
    w = Watched(0)
    w.run.open(engine="slurm").jobs("a", "b", "c", "d").hand_over("a", "b", "c")
    w.run.start_there("a", "n1", 0).start_there("b", "n2", 0)
    lines = w.tick()
    assert any("2 running · 2 left · 1 in the queue" in line for line in lines)
    assert [line.split() for line in lines if "GPU" in line] == [
        ["n1", "GPU", "0", "0:00", "a"],
        ["n2", "GPU", "0", "0:00", "b"],
    ]
    w.run.succeed("a")
    assert not any("n1 GPU 0" in line and "0:00  a" not in line for line in w.tick()[1:])


def test_the_live_view_counts_what_is_queued_and_has_no_line_for_it() -> None:
    w = Watched(0)
    names = [f"j{number}" for number in range(50)]
    w.run.open(engine="slurm").jobs(*names).hand_over(*names)
    shown = [*w.tick(), *w.tick()]
    assert any("50 in the queue" in line for line in shown)
    assert not any("50 jobs" in line for line in shown)


def test_what_ended_while_no_supervisor_lived_did_not_succeed_before() -> None:
    before = cluster()
    run, stream = watched(0)
    for fact, at in before.facts:
        run.ledger.apply(fact, at)
    run.epoch, run.mono = before.epoch, before.mono
    run.open(engine="slurm").add(f.JobAdded("done", 0, 1, "d"))
    news = (
        f.AttemptEnded(AttemptId("wide", 1), End(Exited(0))),
        f.JobSettled("wide", "succeeded"),
    )
    for fact in news:
        run.ledger.apply(fact, run.now)
    for fact in news:
        run.view.see(fact, run.now, run.ledger)  # type: ignore[union-attr]
    assert "planned               6 jobs  1 succeeded before" in text(run, stream)


def test_time_in_the_queue_is_no_time_at_work() -> None:
    run = History(0).open(engine="slurm").jobs("a", "b", "c", "d", "e", "f")
    estimate = Estimate()
    estimate.seed(run.ledger)
    before = len(run.facts)
    run.hand_over("a", "b", "c", "d", "e").pass_(10_000)
    for name in "abcd":
        run.start_there(name, "n1", 0).pass_(100).succeed(name)
    for fact, at in run.facts[before:]:
        estimate.see(fact, at, run.ledger)
    ahead = estimate.ahead(run.now)
    assert ahead is not None
    assert ahead.seconds == 200.0
    assert estimate.in_queue == 1
    again = Estimate()
    again.seed(run.ledger)
    assert (again.in_queue, again.running) == (1, {})


def test_the_summary_counts_hours_on_nodes() -> None:
    run = cluster()
    run.end("queued", Cancelled()).add(f.JobSettled("queued", "cancelled", Quoted("cancelled")))
    for name in ("wide", "small", "cpu"):
        run.succeed(name)
    run.add(f.RunClosed("stopped", Quoted("Ctrl-C"), 130))
    summary = summarise(run.ledger, Paths(), run.now)
    said = rendered(lambda console: print_summary(console, summary))
    assert "4 cards on 3 nodes, 0.55 GPU-hours" in said
    assert "busy" not in said


def test_top_lists_what_is_in_the_queue_among_the_waiting_and_cards_while_in_use() -> None:
    board = Board()
    for fact, at in cluster().facts:
        board.see(fact, at)
    board.state = "running"
    assert board.queue() == ["queued", "left"]
    assert board.reason(board.ledger.jobs["queued"]) == "in the queue (Slurm job 8)"
    assert str(counts(board, 100)).endswith("3 running · 2 left · 1 in the queue")
    rows = CardRows(board, Filter())
    assert rows.title == "Cards in use 3"
    shown = [str(rows.lines(item, 80)[0]).split() for item in range(len(rows))]
    assert [line[:3] for line in shown[:3]] == [
        ["n10", "GPU", "0"],
        ["n10", "GPU", "1"],
        ["n2", "GPU", "3"],
    ]
    assert (shown[3][0], shown[3][-1]) == ("CPU", "n2")
    assert len(shown) == 4


def test_top_says_how_a_job_failed_that_waits_to_run_again() -> None:
    run = History(0).open(engine="slurm").jobs("a").hand_over("a").start_there("a", "n1", 0)
    run.end("a", Exited(4), "exit").add(f.JobDelayed("a", Quoted("exit"))).hand_over("a")
    board = Board()
    for fact, at in run.facts:
        board.see(fact, at)
    head, shown, _ = map(str, FailedRows(board, Filter()).lines(0, 80))
    assert "waits to run again" in head
    assert shown.strip() == "exited with status 4"


def test_top_does_not_call_cut_off_what_goes_on() -> None:
    board = Board()
    for fact, at in cluster().facts:
        board.see(fact, at)
    assert board.state == "interrupted"
    assert "3 running" in str(counts(board, 100))
    assert board.reason(board.ledger.jobs["queued"]) == "in the queue (Slurm job 8)"
    assert board.reason(board.ledger.jobs["left"]).startswith("not started")
    rows = CardRows(board, Filter())
    assert not any("cut off" in str(rows.lines(item, 80)[0]) for item in range(len(rows)))


def test_metrics_count_as_running_only_what_runs() -> None:
    tally = Tally()
    for fact, at in cluster().facts:
        tally.see(fact, at)
    assert sorted(attempt.id.job for attempt in tally.running) == ["cpu", "small", "wide"]
    assert tally.queued == 2
