"""Where each card's time went: the parts are the whole, and each part is what it is called."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import field

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, Instant, Interrupted
from gpulaunch.core.reasons import OutsideHours
from gpulaunch.observe.report import fold
from gpulaunch.observe.report.drawing import CAUSE_WORDS
from gpulaunch.observe.report.idle import CAUSES, totals
from tests.core import world
from tests.core.histories import play
from tests.views.history import History


def causes(run: History, gpu: str = "GPU-0", after: float = 0.0) -> dict[str, float]:
    """Whole seconds by cause, `after` the last fact as well."""
    history = fold.of(run.facts)
    spans = history.times.until(run.now.utc + after)[gpu]
    return {cause: round(seconds) for cause, seconds in totals(spans).items() if seconds > 0.4}


def card(run: History, state: Any, why: str = "") -> History:
    return run.add(f.GpuChanged("GPU-0", state, Quoted(why)))


def test_jobs_and_the_memory_they_leave_are_told_apart() -> None:
    run = History(1).open().jobs("a", "b").start("a", 0).pass_(60)
    card(run.end("a"), "draining").pass_(4)
    card(run.add(f.JobSettled("a", "succeeded")), "leased").start("b", 0).pass_(30).succeed("b")
    assert causes(run) == {"busy": 90, "draining": 4}


def test_two_jobs_that_share_a_card_count_its_time_once() -> None:
    run = History(1).open().jobs("a", "b").start("a", 0).pass_(10).start("b", 0).pass_(10)
    run.succeed("a").pass_(10).succeed("b")
    assert causes(run) == {"busy": 30}


def test_a_job_left_its_card_when_its_keeper_says() -> None:
    """The run may hear of it late, and the card's time is not its own until then."""
    run = History(1).open().jobs("a", "b").start("a", 0).start("b", 0).pass_(60)
    first, last = run.now, run.pass_(20).now
    for name, ended in (("b", last), ("a", first)):
        attempt = AttemptId(name, 1)
        run.pass_(5).add(f.AttemptEnded(attempt, End(Exited(0), ended=ended)))
        run.add(f.JobSettled(name, "succeeded"))
    assert causes(run) == {"busy": 80, "nothing_left": 10}


def test_a_card_that_nobody_asks_for_has_nothing_ready_then_nothing_left() -> None:
    run = History(2).open().jobs("fold", "design").start("fold", 1).pass_(50)
    run.succeed("fold").start("design", 1).pass_(20).succeed("design")
    assert causes(run) == {"nothing_ready": 50, "nothing_left": 20}


def test_jobs_without_cards_do_not_wait_for_one() -> None:
    run = History(1).open().jobs("a", "b", cards=0).pass_(9)
    assert causes(run) == {"nothing_left": 9}


def test_a_card_that_is_looked_at_in_vain_waits_for_memory() -> None:
    run = History(1).open().add(f.JobAdded("big", 0, 1, "d", gpu_memory=60 << 30))
    card(card(run, "leased"), "free").pass_(15)
    card(card(run, "leased").pass_(1), "free").pass_(15)
    card(run, "leased").start("big", 0).pass_(60).succeed("big")
    assert causes(run) == {"memory": 31, "busy": 60}


def test_a_card_given_back_unused_waits_for_no_memory_that_nobody_asked_for() -> None:
    run = History(1).open().jobs("a")
    card(card(run, "leased"), "free").pass_(15)
    assert causes(run) == {"nothing_ready": 15}


def test_a_card_given_back_after_a_job_ran_there_waits_for_no_memory() -> None:
    """It was not looked at in vain, although a job that asks for memory waits."""
    run = History(1).open().add(f.JobAdded("big", 0, 1, "d", gpu_memory=60 << 30)).jobs("a")
    card(run, "leased").start("a", 0).pass_(30).succeed("a")
    card(run, "free").pass_(15)
    assert causes(run) == {"busy": 30, "nothing_ready": 15}


def test_a_leased_card_without_a_job_is_kept_for_one() -> None:
    run = card(History(2).open().jobs("wide", cards=2), "leased").pass_(40)
    assert causes(run, after=0) == {"kept": 40}


@pytest.mark.parametrize("state", ["elsewhere", "occupied"])
def test_a_card_in_others_hands_is_theirs(state: str) -> None:
    assert causes(card(History(1).open().jobs("a"), state).pass_(40)) == {"others": 40}


def test_cards_set_aside_and_given_back_say_so() -> None:
    run = History(1).open().jobs("a").add(f.GpuDrained("GPU-0", True)).pass_(10)
    card(run.add(f.GpuDrained("GPU-0", False)), "aside", "Xid 79").pass_(20)
    assert causes(run) == {"given_back": 10, "aside": 20}


def test_outside_the_hours_of_a_run_a_card_is_idle_for_that() -> None:
    run = History(1).open().jobs("a").add(f.AdmissionPaused(OutsideHours(9.0), "hours")).pass_(10)
    run.add(f.AdmissionPaused(Quoted("a person"))).pass_(5)
    run.add(f.AdmissionContinued()).pass_(3).add(f.AdmissionContinued("hours")).pass_(1)
    assert causes(run) == {"hours": 13, "paused": 5, "nothing_ready": 1}


def test_a_paused_and_a_stopping_run_say_so() -> None:
    run = History(1).open().jobs("a").add(f.AdmissionPaused(Quoted("a person"))).pass_(10)
    run.add(f.AdmissionContinued()).pass_(1).add(f.StopAsked(Quoted("Ctrl-C"))).pass_(20)
    assert causes(run) == {"paused": 10, "nothing_ready": 1, "stopping": 20}


def test_cards_beyond_the_runs_limit_are_not_called_idle() -> None:
    run = History(2)
    run.add(f.RunOpened("r", "n", 1, "0", "box", "b", 7, run.pool, limit=1)).jobs("a", "b")
    run.add(f.GpuChanged("GPU-1", "leased")).start("a", 1).pass_(30)
    assert causes(run) == {"limit": 30}


def test_between_two_starts_nobody_used_the_cards() -> None:
    run = History(1).open().jobs("a").start("a", 0).pass_(30).add(f.Noted("the last word"))
    run.pass_(1000).open().end("a", Interrupted(Quoted("its supervisor was gone"))).pass_(5)
    assert causes(run) == {"busy": 30, "away": 1000, "nothing_left": 5}


def test_a_job_that_outlived_its_supervisor_was_on_its_card_until_it_ended() -> None:
    run = History(2).open().jobs("a", "wide").start("a", 0).pass_(30).add(f.Noted("the last word"))
    end = run.pass_(600).now
    run.pass_(400).open()
    cut = Interrupted(Quoted("its supervisor was gone"))
    run.add(f.AttemptEnded(AttemptId("a", 1), End(cut, ended=end))).pass_(5)
    assert causes(run) == {"busy": 630, "away": 400, "nothing_ready": 5}
    assert causes(run, "GPU-1")["away"] == 1000


def test_a_closed_run_and_a_card_that_came_later_were_away() -> None:
    run = History(1).open().jobs("a").pass_(10).add(f.RunClosed("stopped")).pass_(50)
    run.pool = History(2).pool
    run.open().pass_(5)
    assert causes(run) == {"nothing_ready": 15, "away": 50}
    assert causes(run, "GPU-1") == {"away": 60, "nothing_ready": 5}


def test_a_clock_that_is_set_back_stands_still() -> None:
    run = History(1).open().jobs("a").start("a", 0).pass_(30).add(f.Noted("x"))
    run.facts.append((f.Noted("y"), Instant(run.mono, run.now.utc - 3600)))
    assert causes(run) == {"busy": 30}


def test_every_cause_has_its_words() -> None:
    assert set(CAUSE_WORDS) == set(CAUSES)


class Recorded(Ledger):
    """A ledger that remembers what it was given."""

    seen: list[tuple[f.Fact, Instant]] = field(default_factory=list)

    def apply(self, fact: f.Fact, at: Instant) -> None:
        super().apply(fact, at)
        self.seen.append((fact, at))


def test_of_every_history_the_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "Ledger", Recorded)
    seen = set()
    for seed in range(120):
        for side in play(seed, 1 + seed % 2).sides:
            assert isinstance(side.replayed, Recorded)
            history = fold.of(side.replayed.seen)
            when = fold.period(history, side.replayed.state, 0.0)
            for spans in fold.spans(history, when).values():
                edges = [when.start, *(span.end for span in spans)]
                assert [span.start for span in spans] == edges[:-1], f"a gap in history {seed}"
                assert edges[-1] == when.end
                parts = totals(spans)
                assert sum(parts.values()) == pytest.approx(when.seconds)
                seen |= parts.keys()
    assert seen >= {"busy", "draining", "others", "nothing_left", "nothing_ready", "aside"}
    assert seen >= {"memory", "kept", "given_back", "away", "stopping"}
