"""Workers in the core: who goes on in one, when it ends, and what its card waits for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.events import (
    Asked,
    Cancel,
    DrainGpus,
    Ended,
    Event,
    GangGranted,
    GpuEvent,
    Granted,
    Pause,
    Stop,
    Wanted,
    WorkerEnded,
)
from gpulaunch.core.facts import AttemptLaunched, AttemptStarted, WorkerGone, WorkerLeft
from gpulaunch.core.model import (
    AttemptId,
    Demand,
    End,
    Exited,
    Interrupted,
    Job,
    Lost,
    RetryPolicy,
    Signaled,
    Worker,
)
from tests.core.table import BIG, Table, attempt, job
from tests.core.world import CANCELLED, GIB


def folds(count: int, **fields: object) -> list[Job]:
    return [job(f"fold{n}", worker="fold", **fields) for n in range(count)]


def test_the_next_job_of_its_key_starts_in_it_without_a_drain() -> None:
    table = Table(1)
    table.submit(*folds(3))
    assert table.granted(0) == ["launch fold0.1 on 0"]
    assert table.ended("fold0.1", kept=True) == ["launch fold1.1 on 0 in fold0.1"]
    assert table.ended("fold1.1", Exited(3), kept=True) == ["launch fold2.1 on 0 in fold0.1"]
    assert table.state("fold1") == "failed: exited with status 3"


def test_with_nothing_left_to_run_in_it_it_ends_and_then_its_card_drains() -> None:
    table = Table(1)
    table.submit(*folds(1))
    table.granted(0)
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]
    assert not table.run.finished
    assert table.worker_ended("fold0.1") == ["drain 0"]
    assert table.drained(0) == ["release 0"]
    assert table.run.finished


def test_a_worker_that_died_is_followed_by_a_drain_and_a_fresh_one() -> None:
    table = Table(1)
    table.submit(*folds(2))
    table.granted(0)
    assert table.ended("fold0.1", Signaled(11), kept=False) == ["drain 0"]
    assert table.drained(0) == ["launch fold1.1 on 0"]


def test_another_job_gets_the_card_only_when_the_worker_is_gone_and_its_memory_back() -> None:
    table = Table(1)
    table.submit(*folds(1), job("other"), job("more", worker="embed"))
    table.granted(0)
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]
    assert table.state("other").endswith("GPU 0 still has the worker of fold0")
    assert table.worker_ended("fold0.1") == ["drain 0"]
    assert table.drained(0) == ["launch other.1 on 0"]


def test_jobs_of_its_key_come_before_others_of_the_same_priority() -> None:
    table = Table(1)
    table.submit(job("fold0", worker="fold", cost=9.0), job("big", cost=5.0), *folds(2)[1:])
    assert table.granted(0) == ["launch fold0.1 on 0"]
    assert table.ended("fold0.1", kept=True) == ["launch fold1.1 on 0 in fold0.1"]


def test_a_job_of_higher_priority_has_the_card_first() -> None:
    table = Table(1)
    table.submit(*folds(3), job("seed", gpus=0), job("urgent", priority=5, needs=("seed",)))
    table.granted(0)
    table.ended("seed.1")
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]
    assert table.worker_ended("fold0.1") == ["drain 0"]
    assert table.drained(0) == ["launch urgent.1 on 0"]


def test_a_job_of_the_same_priority_is_not_overtaken_for_ever() -> None:
    table = Table(1)
    table.submit(job("fold0", worker="fold", cost=9.0), job("big", cost=5.0), *folds(40)[1:])
    table.granted(0)
    live, history = "fold0.1", ["fold0.1"]
    while "big.1" not in history:
        lines = table.ended(live, kept=live.startswith("fold"))
        for line in lines:
            if line.startswith("end worker"):
                lines = [*table.worker_ended(line.split()[2]), *table.drained(0)]
        live = next(line.split()[1] for line in lines if line.startswith("launch"))
        history.append(live)
    assert len(history) <= 5, history


def test_a_launcher_that_waits_for_the_card_gets_it_between_two_items() -> None:
    table = Table(1)
    table.submit(*folds(3))
    table.granted(0)
    table.on(Wanted("GPU-0", True))
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]
    assert table.worker_ended("fold0.1") == ["drain 0"]
    assert "release 0" in table.drained(0)


def test_a_card_that_is_given_back_loses_its_worker() -> None:
    table = Table(1)
    table.submit(*folds(3))
    table.granted(0)
    table.asked(DrainGpus(("GPU-0",)))
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]
    assert table.worker_ended("fold0.1") == ["drain 0"]
    assert table.drained(0) == ["release 0"]


def test_a_card_that_is_lost_is_set_aside_once_its_worker_is_gone() -> None:
    table = Table(2)
    table.submit(*folds(3))
    table.granted(0, 1)
    table.on(GpuEvent("GPU-0", 79, "Xid 79", "lost"))
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]
    assert table.worker_ended("fold0.1") == ["release 0"]
    assert table.run.ledger.gpus["GPU-0"].state == "aside"


def test_a_lost_card_whose_worker_is_killed_at_a_stop_is_set_aside() -> None:
    table = Table(1)
    table.submit(*folds(1))
    table.granted(0)
    table.ended("fold0.1", kept=True)
    table.worker_ended("fold0.1")
    table.on(GpuEvent("GPU-0", 79, "Xid 79", "lost"))
    assert table.asked(Stop(Quoted("Ctrl-C"), now=True)) == ["release 0"]
    assert table.run.ledger.gpus["GPU-0"].state == "aside"


def test_a_paused_run_keeps_no_worker() -> None:
    table = Table(1)
    table.submit(*folds(3))
    table.granted(0)
    table.asked(Pause(Quoted("the disk is full")))
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]


def test_a_stop_at_once_kills_the_workers_that_are_on_their_way_out() -> None:
    table = Table(1)
    table.submit(*folds(1), job("later", needs=("fold0",)))
    table.granted(0)
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]
    assert table.asked(Stop(Quoted("Ctrl-C"))) == []
    assert table.asked(Stop(Quoted("Ctrl-C"), now=True)) == ["end worker fold0.1 now"]
    assert table.worker_ended("fold0.1") == ["release 0"]
    assert table.run.finished


def test_a_cancelled_item_takes_its_worker_with_it_and_the_next_begins_afresh() -> None:
    table = Table(1)
    table.submit(*folds(2))
    table.granted(0)
    assert table.asked(Cancel(("fold0",))) == ["stop fold0.1 cancelled"]
    assert table.ended("fold0.1", Signaled(15)) == ["drain 0"]
    assert table.drained(0) == ["launch fold1.1 on 0"]


def test_a_retry_goes_on_in_the_worker_that_is_there() -> None:
    table = Table(1)
    table.submit(*folds(1, retry=RetryPolicy(1)))
    table.granted(0)
    assert table.ended("fold0.1", Exited(3), kept=True) == ["launch fold0.2 on 0 in fold0.1"]


def test_a_job_that_is_to_avoid_the_card_does_not_start_in_its_worker() -> None:
    table = Table(2)
    avoiding = Demand(worker="fold", avoid=frozenset({"GPU-0"}))
    table.submit(*folds(1), job("busy"), Job("fold9", "true", demand=avoiding))
    assert table.granted(0, 1) == ["launch fold0.1 on 0", "launch busy.1 on 1"]
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]


@pytest.mark.parametrize("field", ["gpu_memory", "cpus"])
def test_a_job_of_another_size_gets_a_worker_of_its_own(field: str) -> None:
    table = Table(1)
    table.submit(*folds(1), job("wide", worker="fold", **{field: GIB if field > "d" else 3}))
    table.granted(0)
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]


def test_each_seat_of_a_shared_card_has_a_worker() -> None:
    table = Table(1)
    table.submit(*folds(5, per_gpu=2))
    assert table.granted(0) == ["launch fold0.1 on 0", "launch fold1.1 on 0"]
    assert table.ended("fold1.1", kept=True) == ["launch fold2.1 on 0 in fold1.1"]
    assert table.ended("fold0.1", kept=True) == ["launch fold3.1 on 0 in fold0.1"]
    assert table.ended("fold2.1", kept=True) == ["launch fold4.1 on 0 in fold1.1"]
    assert table.ended("fold3.1", kept=True) == ["end worker fold0.1"]
    assert table.worker_ended("fold0.1") == []
    assert table.ended("fold4.1", kept=True) == ["end worker fold1.1"]
    assert table.worker_ended("fold1.1") == ["drain 0"]


def test_a_seat_is_free_for_others_only_when_its_worker_is_gone() -> None:
    table = Table(1)
    table.submit(*folds(2, per_gpu=2), job("other", per_gpu=2))
    table.granted(0)
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]
    assert table.worker_ended("fold0.1") == ["launch other.1 on 0"]


def test_a_worker_with_two_cards_is_taken_on_both() -> None:
    table = Table(2)
    table.submit(*folds(2, gpus=2))
    assert table.granted(0, 1) == ["launch fold0.1 on 0 1"]
    assert table.ended("fold0.1", kept=True) == ["launch fold1.1 on 0 1 in fold0.1"]
    assert table.ended("fold1.1", kept=True) == ["end worker fold0.1"]
    assert table.worker_ended("fold0.1") == ["drain 0", "drain 1"]


def test_a_wide_job_waits_for_a_worker_to_end_and_gets_both_cards() -> None:
    table = Table(2)
    table.submit(*folds(2), job("wide", gpus=2))
    table.granted(0, 1)
    lines = table.ended("fold0.1", kept=True)
    assert "end worker fold0.1" in lines
    lines += table.worker_ended("fold0.1") + table.drained(0)
    lines += table.ended("fold1.1", kept=True) + table.worker_ended("fold1.1")
    if "gather True" in lines:
        lines += table.on(GangGranted())
    for line in list(lines):
        if line.startswith("acquire"):
            lines += table.on(Granted(f"GPU-{line[-1]}", BIG))
    lines += table.drained(1)
    assert "launch wide.1 on 0 1" in lines, lines


def test_a_worker_without_cards_goes_on_too() -> None:
    table = Table(0)
    assert table.submit(*folds(2, gpus=0)) == ["launch fold0.1 on none"]
    assert table.ended("fold0.1", kept=True) == ["launch fold1.1 on none in fold0.1"]
    assert table.ended("fold1.1", kept=True) == ["end worker fold0.1"]
    assert not table.run.finished
    table.worker_ended("fold0.1")
    assert table.run.finished


def test_what_is_written_tells_which_worker_and_when_it_left() -> None:
    table = Table(1)
    table.submit(*folds(2))
    table.granted(0)
    table.ended("fold0.1", kept=True)
    table.ended("fold1.1", kept=True)
    table.worker_ended("fold0.1")
    first, second = AttemptId("fold0", 1), AttemptId("fold1", 1)
    assert AttemptLaunched(second, ("GPU-0",), first) in table.facts
    at = table.facts.index(WorkerLeft(first, ("GPU-0",)))
    assert WorkerGone(first, ("GPU-0",)) in table.facts[at:]
    assert table.run.ledger.attempt(second).worker == first


def test_it_waits_a_minute_for_jobs_of_its_key_that_are_still_to_come() -> None:
    table = Table(1)
    table.submit(*folds(1), job("msa", gpus=0), job("late", worker="fold", needs=("msa",)))
    table.granted(0)
    assert table.ended("fold0.1", kept=True) == ["at 60 worker/fold0.1"]
    assert table.ended("msa.1") == ["launch late.1 on 0 in fold0.1"]
    assert table.ended("late.1", kept=True) == ["end worker fold0.1"]


def test_after_a_minute_it_ends_though_more_are_to_come() -> None:
    table = Table(1)
    table.submit(*folds(1), job("msa", gpus=0), job("late", worker="fold", needs=("msa",)))
    table.granted(0)
    table.ended("fold0.1", kept=True)
    assert table.timer("worker/fold0.1", 60) == ["end worker fold0.1"]
    table.worker_ended("fold0.1")
    assert table.drained(0) == ["release 0"]
    assert table.ended("msa.1") == ["acquire 0"]


def test_it_waits_for_a_retry_that_is_delayed() -> None:
    table = Table(1)
    table.submit(*folds(1, retry=RetryPolicy(1, delay=30.0)))
    table.granted(0)
    assert table.ended("fold0.1", Exited(3), kept=True) == [
        "at 30 job/fold0",
        "at 60 worker/fold0.1",
    ]
    assert table.timer("job/fold0", 30) == ["launch fold0.2 on 0 in fold0.1"]


@pytest.mark.parametrize(
    "event",
    [
        Wanted("GPU-0", True),
        Asked(DrainGpus(("GPU-0",))),
        Asked(Pause(Quoted("the disk is full"))),
        Asked(Cancel(("late",))),
        Asked(Stop(Quoted("Ctrl-C"))),
        Ended(AttemptId("other", 1), End(Exited(0))),
    ],
)
def test_it_waits_no_more_when_its_card_is_wanted_or_nothing_is_to_come(event: Event) -> None:
    table = Table(1, cpus=4)
    table.submit(
        *folds(1),
        job("msa", gpus=0),
        job("other", gpus=0),
        job("late", worker="fold", needs=("msa",)),
        job("plain", needs=("other",)),
    )
    table.granted(0)
    assert table.ended("fold0.1", kept=True) == ["at 60 worker/fold0.1"]
    assert "end worker fold0.1" in table.on(event)


def test_news_of_a_worker_that_nobody_knows_changes_nothing() -> None:
    table = Table(1)
    table.submit(*folds(1))
    table.granted(0)
    assert table.on(WorkerEnded(attempt("fold0.1"))) == []


def test_a_worker_that_dies_while_idle_frees_its_card() -> None:
    table = Table(1)
    table.submit(*folds(1))
    table.granted(0)
    table.ended("fold0.1", kept=True)
    assert table.worker_ended("fold0.1") == ["drain 0"]
    assert table.worker_ended("fold0.1") == []


# ── One ahead ───────────────────────────────────────────────────────────────────────────────────


def begun(table: Table, count: int, **fields: object) -> list[str]:
    """So many jobs of one key; the first runs. Return what its start brings."""
    table.submit(*folds(count, **fields))
    table.granted(0)
    return table.started("fold0.1")


def behind(name: str, leader: str, on: int = 0) -> str:
    return f"launch {name} on {on} in fold0.1 behind {leader}"


def test_the_next_job_is_with_the_worker_before_the_last_one_ends() -> None:
    table = Table(1)
    assert begun(table, 3) == [behind("fold1.1", "fold0.1")]
    assert table.state("fold1") == "waiting: is next in the worker of fold0"
    both = [Ended(attempt("fold0.1"), End(Exited(0)), kept=True)]
    assert table.on(*both, AttemptStarted(attempt("fold1.1"), 42)) == [behind("fold2.1", "fold1.1")]
    assert table.states() == {"fold0": "succeeded", "fold1": "running", "fold2": "waiting"}
    table.ended("fold1.1", kept=True)
    assert table.started("fold2.1") == []
    assert table.ended("fold2.1", kept=True) == ["end worker fold0.1"]


def test_what_is_behind_a_worker_that_does_not_stay_goes_elsewhere() -> None:
    table = Table(1)
    begun(table, 2)
    assert table.ended("fold0.1", Signaled(11)) == ["drain 0"]
    assert table.ended("fold1.1", Interrupted(Because("worker_ended"))) == []
    assert table.drained(0) == ["launch fold1.2 on 0"]
    assert not table.run.ledger.jobs["fold1"].charged


def test_a_worker_that_dies_between_two_is_ended() -> None:
    table = Table(1)
    begun(table, 2)
    assert table.ended("fold0.1", kept=True) == []
    unbegun = Interrupted(Because("worker_ended"))
    assert table.ended("fold1.1", unbegun, kept=True) == ["launch fold1.2 on 0 in fold0.1"]


def test_nothing_is_launched_behind_before_the_first_has_started() -> None:
    table = Table(1)
    table.submit(*folds(2))
    table.granted(0)
    assert table.asked(Pause(None)) == []


@pytest.mark.parametrize(
    "fields", [{"uses": ("licence",)}, {"gpus": 0}, {"worker_items": 1}], ids=str
)
def test_nothing_is_launched_behind(fields: dict[str, object]) -> None:
    items = fields.pop("worker_items", None)
    jobs = folds(2, **fields)
    if items:
        jobs = [replace(one, worker=Worker(items=1)) for one in jobs]
    table = Table(1, limits={"licence": 2}, cpus=1)
    table.submit(*jobs)
    table.granted(0)
    assert table.started("fold0.1") == []


@pytest.mark.parametrize(
    "event",
    [
        Asked(Pause(Quoted("the disk is full"))),
        Asked(DrainGpus(None)),
        Wanted("GPU-0", True),
        GpuEvent("GPU-0", 79, "fell off the bus", "lost"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_it_is_taken_back_where_it_may_not_begin_any_more(event: Event) -> None:
    table = Table(1)
    begun(table, 2)
    assert table.on(event) == ["take back fold1.1"]
    assert table.on(event) == []


def test_it_is_taken_back_for_a_more_urgent_job() -> None:
    table = Table(1, cpus=1)
    table.submit(*folds(2), job("seed", gpus=0), job("urgent", priority=5, needs=("seed",)))
    table.granted(0)
    assert table.started("fold0.1") == [behind("fold1.1", "fold0.1")]
    assert table.ended("seed.1") == ["take back fold1.1"]
    assert table.ended("fold1.1", Interrupted(Because("taken_back"))) == []
    assert table.ended("fold0.1", kept=True) == ["end worker fold0.1"]


def test_what_has_begun_by_then_goes_on() -> None:
    table = Table(1)
    begun(table, 3)
    assert table.asked(Pause(Quoted("the disk is full"))) == ["take back fold1.1"]
    table.ended("fold0.1", kept=True)
    table.started("fold1.1")
    assert table.ended("fold1.1", kept=True) == ["end worker fold0.1"]
    assert table.states() == {"fold0": "succeeded", "fold1": "succeeded", "fold2": "waiting"}


def test_another_worker_that_is_idle_has_it() -> None:
    table = Table(3)
    table.submit(*folds(6))
    table.granted(0, 1, 2)
    assert table.started("fold1.1") == ["launch fold3.1 on 1 in fold1.1 behind fold1.1"]
    # The other two are kept for the other two workers.
    assert table.started("fold0.1") == table.started("fold2.1") == []
    assert table.ended("fold2.1", kept=True) == ["launch fold4.1 on 2 in fold2.1"]
    assert table.ended("fold0.1", kept=True) == ["launch fold5.1 on 0 in fold0.1"]
    assert table.ended("fold4.1", kept=True)[-1] == "take back fold3.1"
    assert table.ended("fold3.1", Interrupted(Because("taken_back"))) == [
        "launch fold3.2 on 2 in fold2.1"
    ]


def test_a_job_that_is_behind_another_is_cancelled_and_stopped_as_any() -> None:
    table = Table(1)
    begun(table, 3)
    assert table.asked(Cancel(("fold1",))) == ["stop fold1.1 cancelled"]
    assert table.ended("fold1.1", Interrupted(CANCELLED)) == [behind("fold2.1", "fold0.1")]
    assert table.state("fold1") == "cancelled: cancelled"
    assert table.asked(Stop(Quoted("SIGINT"))) == [
        "stop fold0.1 interrupted",
        "stop fold2.1 interrupted",
    ]


def test_a_job_that_was_overtaken_too_often_has_the_cards_kept_for_it() -> None:
    table = Table(1)
    table.submit(*folds(1, cost=9.0), job("other", cost=5.0), *folds(9)[1:])
    table.granted(0)
    table.started("fold0.1")
    lines: list[str] = []
    for number in range(8):
        lines += table.ended(f"fold{number}.1", kept=True)
        if "end worker fold0.1" in lines:
            break
        lines += table.started(f"fold{number + 1}.1")
    assert "end worker fold0.1" in lines
    assert table.state("other").startswith("waiting: ")


def test_what_was_taken_back_between_them_does_not_part_losses_in_a_row() -> None:
    table = Table(1, cpus=1)
    urgent = job("urgent", worker="fold", priority=5, after=("gate",))
    table.submit(*folds(1), urgent, job("gate", gpus=0))
    table.granted(0)
    table.ended("fold0.1", Lost(Quoted("gone")))
    table.ended("gate.1")
    assert table.drained(0) == ["launch urgent.1 on 0"]
    assert table.started("urgent.1") == ["launch fold0.2 on 0 in urgent.1 behind urgent.1"]
    table.ended("urgent.1", Signaled(11))
    table.ended("fold0.2", Interrupted(Because("worker_ended")))
    assert table.drained(0) == ["launch fold0.3 on 0"]
    table.ended("fold0.3", Lost(Quoted("gone")))
    assert table.drained(0) == ["launch fold0.4 on 0"]
    table.ended("fold0.4", Lost(Quoted("gone")))
    assert table.states()["fold0"] == "failed"


def test_what_a_dead_supervisor_left_behind_another_is_not_lost() -> None:
    dead = Table(1)
    begun(dead, 2)
    table = Table(1, ledger=dead.run.ledger)
    table.submit(*folds(2))
    table.ended("fold0.1", Lost(Because("unseen")))
    table.ended("fold1.1", Lost(Because("unseen")))
    states = {name: [a.state for a in job.attempts] for name, job in table.run.ledger.jobs.items()}
    assert states == {"fold0": ["lost"], "fold1": ["interrupted"]}
    assert table.run.ledger.jobs["fold1"].attempts[0].taken_back
