"""A run within its hours: a week of it is played, with a clock and a zone that are passed in."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timezone

import pytest

from gpulaunch.base.hours import Hours, parse_hours
from gpulaunch.base.localtime import shown
from gpulaunch.core.events import (
    Acquire,
    Elsewhere,
    Ended,
    HoldQueue,
    Instruction,
    Launch,
    Refused,
    Release,
    Submitted,
)
from gpulaunch.core.facts import (
    AdmissionContinued,
    AdmissionPaused,
    AttemptStarted,
    RunClosed,
    RunOpened,
)
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, DueTime, End, Exited, Gpu, Job
from gpulaunch.core.run import Run
from gpulaunch.core.state import InEngineQueue, RunConfig
from gpulaunch.run.supervisor import Supervisor, WithinHours
from tests.app.played import Clock, SkippingLoop
from tests.engines.fakes import FakeEngine, FakeRecord, FakeView
from tests.zones import BERLIN

GPU = Gpu("GPU-0", 0, "0000:01:00.0", "A100", 80 << 30)
HOUR = 3600.0


class SlowEngine(FakeEngine):
    """Each attempt takes `takes` seconds; what was begun, and when cards were given back."""

    def __init__(self, supervisor: Supervisor, loop: SkippingLoop, takes: float) -> None:
        super().__init__(supervisor.post)
        self.loop, self.takes = loop, takes
        self.begun: list[float] = []
        self.ended: list[float] = []
        self.released: list[float] = []

    def carry_out(self, instruction: Instruction) -> None:
        utc = self.loop.clock().utc
        if isinstance(instruction, Release):
            self.released.append(utc)
        if not isinstance(instruction, Launch):
            super().carry_out(instruction)
            return
        self.seen.append(instruction)
        self.begun.append(utc)
        self.post(AttemptStarted(instruction.attempt, 1))
        attempt = instruction.attempt
        self.loop.call_after(attempt, self.takes, lambda: self._end(attempt))

    def _end(self, attempt: AttemptId) -> None:
        self.ended.append(self.loop.clock().utc)
        self.post(Ended(attempt, End(Exited(0))))


class Played:
    """A run with these hours and jobs, from its start to its end."""

    def __init__(
        self, clock: Clock, hours: str, jobs: int, takes: float, wait: float | None = None
    ) -> None:
        self.hours = parse_hours(hours)
        assert isinstance(self.hours, Hours)
        ledger = Ledger()
        ledger.apply(RunOpened("id", "run", 1, "", "", "", 1, (GPU,)), clock())
        with closing(SkippingLoop(clock)) as loop:
            self.record, self.loop = FakeRecord(), loop
            within = WithinHours(self.hours, loop, clock, BERLIN)
            run = Run([GPU], ledger=ledger)
            supervisor = Supervisor(run, self.record, FakeView(), loop, clock, wait, hours=within)
            self.engine = SlowEngine(supervisor, loop, takes)
            supervisor.serve(
                self.engine, Submitted(tuple(Job(f"j{n}", "true") for n in range(jobs)))
            )
        self.no_card = supervisor.no_card

    @property
    def begun(self) -> list[str]:
        return [f"{shown(utc, BERLIN):%a %H:%M}" for utc in self.engine.begun]


@pytest.mark.parametrize("monday", ["2026-03-22T23:00", "2026-10-18T22:00", "2026-06-07T22:00"])
def test_a_week_of_nights_and_weekends(monday: str) -> None:
    played = Played(Clock(monday), "mon-fri 19:00-07:30,sat,sun", 45, 2.5 * HOUR)
    assert played.record.facts[-1] == RunClosed("succeeded", None)
    assert len(played.begun) == 45
    assert all(played.hours.open_at(utc, BERLIN) for utc in played.engine.begun)
    for utc in played.engine.ended:  # running ones go on past the end of the hours
        if not played.hours.open_at(utc, BERLIN):
            assert any(0 <= released - utc <= 60 for released in played.engine.released)
    assert any(not played.hours.open_at(utc, BERLIN) for utc in played.engine.ended)
    evenings = [text for text in played.begun if text.endswith(" 19:00")]
    assert [text[:3] for text in evenings][:5] == ["Mon", "Tue", "Wed", "Thu", "Fri"]


def test_a_run_that_is_started_outside_of_its_hours_starts_at_once_when_they_begin() -> None:
    played = Played(Clock("2026-11-25T12:00"), "19:00-07:30", 2, HOUR)
    assert played.begun == ["Wed 19:00", "Wed 20:00"]
    assert sum(isinstance(fact, AdmissionPaused) for fact in played.record.facts) == 1


def test_a_change_of_the_clock_moves_the_hours_with_it() -> None:
    """On 29 March 02:30 is left out; on 25 October it comes twice."""
    assert Played(Clock("2026-03-28T23:30"), "02:30-04:00", 1, HOUR).begun == ["Sun 03:00"]
    twice = Played(Clock("2026-10-24T23:30"), "02:30-02:50", 3, 1200.0)
    assert twice.begun == ["Sun 02:30", "Sun 02:30", "Mon 02:30"]


def test_a_machine_that_slept_over_the_beginning_of_the_hours_starts_within_a_minute() -> None:
    clock = Clock("2026-11-25T12:00", asleep=(1000.0 + HOUR, 8 * HOUR))
    played = Played(clock, "19:00-07:30", 1, HOUR)
    (begun,) = played.engine.begun
    woken = datetime(2026, 11, 25, 21, tzinfo=timezone.utc).timestamp()
    assert woken <= begun <= woken + 60.0


def test_a_machine_that_slept_over_their_end_starts_nothing_more() -> None:
    """The next job comes at the very end of one that ran meanwhile."""
    clock = Clock("2026-11-25T19:00", asleep=(1000.0 + HOUR / 2, 14 * HOUR))
    assert Played(clock, "19:00-07:30", 2, HOUR / 2).begun == ["Wed 20:00", "Thu 19:00"]


def test_a_clock_that_is_set_back_closes_the_hours_again() -> None:
    clock = Clock("2026-11-25T18:00", asleep=(1000.0 + HOUR, -2 * HOUR))
    assert Played(clock, "19:00-07:30", 3, HOUR).begun == ["Wed 19:00", "Wed 19:00", "Wed 20:00"]


def test_a_run_wakes_once_a_minute_outside_its_hours() -> None:
    played = Played(Clock("2026-11-25T12:00"), "19:00-07:30", 1, 1.0)
    assert played.loop.turns <= 6 * 60 + 30


def test_the_time_for_which_a_first_card_is_waited_for_stands_still_outside_the_hours() -> None:
    clock = Clock("2026-11-25T04:30")
    ledger = Ledger()
    ledger.apply(RunOpened("id", "run", 1, "", "", "", 1, (GPU,)), clock())
    hours = parse_hours("19:00-07:30")
    assert hours is not None
    with closing(SkippingLoop(clock)) as loop:
        within = WithinHours(hours, loop, clock, BERLIN)
        supervisor = Supervisor(
            Run([GPU], ledger=ledger), FakeRecord(), FakeView(), loop, clock, 3 * HOUR, hours=within
        )
        job = Job("late", "true", not_before=DueTime("", clock().utc))
        supervisor.serve(_Busy(supervisor.post), Submitted((job,)))
    assert supervisor.no_card
    assert f"{shown(clock().utc, BERLIN):%a %H:%M}" == "Wed 20:00"


class _Busy(FakeEngine):
    """Another launcher has the card, and keeps it."""

    def carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Acquire):
            self.post(Refused(instruction.gpu, Elsewhere("ann")))


def test_an_engines_queue_is_held_outside_the_hours() -> None:
    clock, ledger, record = Clock("2026-11-25T12:00"), Ledger(), FakeRecord()
    ledger.apply(RunOpened("id", "run", 1, "", "", "", 1, (), engine="slurm"), clock())
    hours = parse_hours("19:00-07:30")
    assert hours is not None
    with closing(SkippingLoop(clock)) as loop:
        within = WithinHours(hours, loop, clock, BERLIN)
        run = Run([], RunConfig(InEngineQueue(10)), ledger)
        supervisor = Supervisor(run, record, FakeView(), loop, clock, hours=within)
        engine = SlowEngine(supervisor, loop, 60.0)
        supervisor.serve(engine, Submitted((Job("a", "true"),)))
    kinds = [type(one) for one in engine.seen]
    assert kinds == [HoldQueue, HoldQueue, Launch]
    assert [one.on for one in engine.seen if isinstance(one, HoldQueue)] == [True, False]
    assert AdmissionContinued("hours") in record.facts
