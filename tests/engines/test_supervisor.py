"""The supervisor between the core and a pretend engine: what is written before what is done."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence

import pytest

import gpulaunch.run.supervisor
from gpulaunch.base.loop import Loop
from gpulaunch.base.wording import job_reason
from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.events import (
    Acquire,
    AllowanceFreed,
    AllowanceSpent,
    Asked,
    Ended,
    ImageFailed,
    ImageReady,
    Instruction,
    Launch,
    PullImage,
    Refused,
    Stop,
    Submitted,
    TakeBack,
)
from gpulaunch.core.facts import (
    AdmissionContinued,
    AdmissionPaused,
    AttemptEnded,
    AttemptLaunched,
    Noted,
    RunClosed,
    RunOpened,
)
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import (
    Container,
    Demand,
    End,
    Gpu,
    ImageSource,
    Instant,
    Interrupted,
    Job,
)
from gpulaunch.core.run import Run
from gpulaunch.core.state import InEngineQueue, RunConfig
from gpulaunch.journal.codec import now
from gpulaunch.run.supervisor import Supervisor
from tests.engines.fakes import FakeEngine, FakeQueue, FakeRecord, FakeView

GPU = Gpu("GPU-0", 0, "0000:01:00.0", "A100", 80 << 30)


class World:
    def __init__(self, wait: float | None = None) -> None:
        ledger = Ledger()
        ledger.apply(RunOpened("id", "run", 1, "", "", "", 1, (GPU,)), Instant(0, 0))
        self.loop = Loop()
        self.record = FakeRecord()
        self.view = FakeView()
        self.supervisor = Supervisor(
            Run([GPU], ledger=ledger), self.record, self.view, self.loop, now, wait
        )
        self.engine: FakeEngine = FakeEngine(self.supervisor.post)

    def serve(self, *names: str) -> None:
        jobs = tuple(Job(name, "true") for name in names)
        self.supervisor.serve(self.engine, Submitted(jobs))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


def test_a_run_ends_closed_and_the_view_sees_what_was_recorded(world: World) -> None:
    world.serve("a", "b")
    assert world.engine.launched() == ["a", "b"]
    assert world.record.facts == world.view.seen
    assert world.record.facts[-1] == RunClosed("succeeded", None)
    assert world.supervisor.ledger.state == "succeeded"


def test_the_intent_is_written_before_the_launch_is_carried_out(world: World) -> None:
    order: list[str] = []
    append, carry_out = world.record.append, world.engine.carry_out

    def recording(facts):  # type: ignore[no-untyped-def]
        order.extend("intent" for fact, _ in facts if isinstance(fact, AttemptLaunched))
        return append(facts)

    def carrying(instruction):  # type: ignore[no-untyped-def]
        order.extend(["launch"] if type(instruction).__name__ == "Launch" else [])
        carry_out(instruction)

    world.record.append, world.engine.carry_out = recording, carrying  # type: ignore[method-assign]
    world.serve("a", "b", "c")
    assert order == ["intent", "launch"] * 3


@pytest.mark.parametrize("how", ["needs", "after"])
def test_results_are_linked_before_a_job_starts_that_looks_at_them(world: World, how: str) -> None:
    order: list[str] = []
    carry_out = world.engine.carry_out

    def carrying(instruction):  # type: ignore[no-untyped-def]
        order.extend([instruction.attempt.job] if isinstance(instruction, Launch) else [])
        carry_out(instruction)

    world.record.link_results = lambda: order.append("linked")  # type: ignore[method-assign]
    world.engine.carry_out = carrying  # type: ignore[method-assign]
    jobs = (Job("a", "true"), Job("b", "true", **{how: ("a",)}))
    world.supervisor.serve(world.engine, Submitted(jobs))
    assert order == ["a", "linked", "b"]


def test_the_view_waits_for_the_launch(world: World) -> None:
    order: list[str] = []
    see, carry_out = world.view.see, world.engine.carry_out

    def seeing(fact, at, ledger):  # type: ignore[no-untyped-def]
        order.extend(["shown"] if isinstance(fact, AttemptLaunched) else [])
        see(fact, at, ledger)

    def carrying(instruction):  # type: ignore[no-untyped-def]
        order.extend(["launch"] if isinstance(instruction, Launch) else [])
        carry_out(instruction)

    world.view.see, world.engine.carry_out = seeing, carrying  # type: ignore[method-assign]
    world.serve("a")
    assert order == ["launch", "shown"]


def test_the_engine_hears_of_each_end_that_is_on_disk_and_of_no_other(world: World) -> None:
    world.serve("a", "b")
    assert [attempt.job for attempt in world.engine.kept_ends] == ["a", "b"]
    unsynced = World()
    unsynced.record.sync = lambda: False  # type: ignore[method-assign]
    unsynced.serve("a")
    assert unsynced.engine.kept_ends == []
    unsynced.loop.close()


def test_nothing_starts_while_the_intent_is_not_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpulaunch.run.supervisor, "RECORD_RETRY", 0.01)
    world.record.broken = 5
    launched_while_broken: list[int] = []
    carry_out = world.engine.carry_out

    def carrying(instruction):  # type: ignore[no-untyped-def]
        if type(instruction).__name__ == "Launch":
            launched_while_broken.append(len(world.record.pending))
        carry_out(instruction)

    world.engine.carry_out = carrying  # type: ignore[method-assign]
    world.serve("a")
    assert launched_while_broken == [0]
    kinds = [type(fact) for fact in world.record.facts]
    assert kinds.index(AdmissionPaused) < kinds.index(AdmissionContinued)
    assert world.supervisor.ledger.state == "succeeded"


def test_what_is_behind_another_and_never_was_written_is_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpulaunch.run.supervisor, "RECORD_RETRY", 0.01)
    append = world.record.append

    def failing(facts):  # type: ignore[no-untyped-def]
        behind = [f for f, _ in facts if isinstance(f, AttemptLaunched) and f.behind]
        if behind and behind[0].attempt.number == 1:
            world.record.broken = 3
        elif behind:
            world.loop.call_after("stop", 0.01, lambda: world.supervisor.on_signal(signal.SIGTERM))
        return append(facts)

    world.record.append = failing  # type: ignore[method-assign]
    jobs = [Job(name, "true", demand=Demand(worker="w")) for name in ("long", "a")]
    world.supervisor.serve(world.engine, Submitted(tuple(jobs)))
    assert [str(i.attempt) for i in world.engine.seen if isinstance(i, Launch)] == [
        "long.1",
        "a.2",
    ]
    assert not any(isinstance(instruction, TakeBack) for instruction in world.engine.seen)
    assert Interrupted(Because("taken_back")) in [
        fact.end.outcome for fact in world.record.facts if isinstance(fact, AttemptEnded)
    ]


def test_a_record_that_stays_broken_stops_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpulaunch.run.supervisor, "RECORD_RETRY", 0.01)
    monkeypatch.setattr(gpulaunch.run.supervisor, "RECORD_PATIENCE", 0.05)
    world.record.broken = None
    world.serve("a", "long")
    assert world.engine.launched() == []
    assert world.supervisor.unrecorded == "No space left on device"
    assert world.supervisor.ledger.state == "stopped"


def test_a_signal_stops_and_a_second_one_kills(world: World) -> None:
    world.loop.on_signals([signal.SIGTERM], world.supervisor.on_signal)
    world.loop.call_after("test", 0.01, lambda: os.kill(os.getpid(), signal.SIGTERM))
    world.serve("long", "a")
    assert world.supervisor.stopped_by == signal.SIGTERM
    assert world.engine.launched() == ["long"]
    assert world.supervisor.ledger.state == "stopped"


def test_a_signal_while_the_record_is_broken_ends_the_run_as_soon_as_its_jobs_have(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpulaunch.run.supervisor, "RECORD_RETRY", 3600.0)
    monkeypatch.setattr(gpulaunch.run.supervisor, "RECORD_PATIENCE", 3600.0)

    def fill_the_disk() -> None:
        world.record.broken = None
        os.kill(os.getpid(), signal.SIGTERM)

    def late() -> None:
        raise AssertionError("it waits for the disk")

    world.loop.on_signals([signal.SIGTERM], world.supervisor.on_signal)
    world.loop.call_after("test", 0.01, fill_the_disk)
    world.loop.call_after("late", 20.0, late)
    world.serve("long")
    assert world.supervisor.stopped_by == signal.SIGTERM
    assert world.supervisor.unrecorded == "No space left on device"
    assert world.view.seen[-1].state == "stopped"  # type: ignore[attr-defined]


def test_what_is_asked_while_the_end_is_told_is_done_first(world: World) -> None:
    told: list[RunClosed] = []

    def farewell(closed: RunClosed, turn: Callable[[], None]) -> None:
        told.append(closed)
        if len(told) == 1:
            assert world.record.facts[-1] != closed, "it is recorded when all is over"
            world.loop.call_after(
                "test", 0.01, lambda: world.supervisor.post(Asked(Stop(Quoted("late"))))
            )
            turn()

    world.supervisor.serve(world.engine, Submitted((Job("a", "true"),)), farewell=farewell)
    assert [closed.state for closed in told] == ["succeeded", "succeeded"]
    assert [type(fact) for fact in world.record.facts].count(RunClosed) == 1
    assert world.record.facts[-1] == told[-1]


def test_of_a_job_in_the_queue_the_engine_says_why_it_waits() -> None:
    ledger = Ledger()
    ledger.apply(RunOpened("id", "run", 1, "", "", "", 1, (), engine="slurm"), Instant(0, 0))
    loop, record = Loop(), FakeRecord()
    supervisor = Supervisor(
        Run((), RunConfig(InEngineQueue(2)), ledger), record, FakeView(), loop, now
    )
    engine = FakeQueue(supervisor.post, last="c")
    told: list[str] = []

    def look() -> None:
        told.append(job_reason(supervisor.why_waiting("a")))
        engine.said = "n1 is drained"
        told.append(job_reason(supervisor.why_waiting("a")))
        told.append(job_reason(supervisor.why_waiting("c")))
        engine.run_all()

    loop.call_after("test", 0.0, look)
    supervisor.serve(engine, Submitted(tuple(Job(name, "true") for name in "abc")))
    loop.close()
    assert told == [
        "in the queue (Slurm job 1)",
        "n1 is drained",
        "waits for its turn: 2 attempts at once are in the queue or running",
    ]
    assert supervisor.ledger.state == "succeeded"
    assert job_reason(supervisor.why_waiting("a")) == ""


def test_of_a_job_in_the_queue_ahead_of_its_needs_it_is_said_which_they_are() -> None:
    ledger = Ledger()
    ledger.apply(RunOpened("id", "run", 1, "", "", "", 1, (), engine="slurm"), Instant(0, 0))
    loop, record = Loop(), FakeRecord()
    run = Run((), RunConfig(InEngineQueue(9, ahead=True)), ledger)
    supervisor = Supervisor(run, record, FakeView(), loop, now)
    engine = FakeQueue(supervisor.post, last="c")
    engine.said = "in Slurm's queue as 2 (Dependency)"
    told: list[str] = []

    def look() -> None:
        told.append(job_reason(supervisor.why_waiting("b")))
        engine.run_all()

    loop.call_after("test", 0.0, look)
    supervisor.serve(engine, Submitted((Job("a", "true"), Job("b", "true", needs=("a",)))))
    loop.close()
    assert told == ["needs a, which is in the queue; in Slurm's queue as 2 (Dependency)"]


def test_of_a_job_that_waits_for_its_image_the_engine_says_how_far_that_is(world: World) -> None:
    source = ImageSource("img", "docker")
    told: list[str] = []
    look = world.supervisor.why_waiting

    def pull() -> None:
        told.append(job_reason(look("a")))
        world.engine.pulling[source] = 72.0
        told.append(job_reason(look("a")))
        world.supervisor.post(ImageReady(source, "sha256:1", "", "docker", True))

    world.loop.call_after("test", 0.0, pull)
    job = Job("a", "true", container=Container("img", "docker"))
    world.supervisor.serve(world.engine, Submitted((job,)))
    assert world.engine.seen[0] == PullImage(source, "")
    assert told == [
        "waits for its image img, which is being looked up",
        "waits for its image img, which is being pulled: 1:12",
    ]
    assert world.supervisor.ledger.state == "succeeded"


def test_the_view_hears_what_is_pulled(world: World) -> None:
    source = ImageSource("img", "docker")
    world.view.next_tick = lambda now: now.mono  # type: ignore[method-assign, assignment]

    def seen(now: Instant, ledger: Ledger, doing: Sequence[str] = ()) -> None:
        if not doing:
            world.engine.pulling[source] = 72.0
            return
        assert doing == ["pulling img: 1:12"]
        world.supervisor.post(ImageFailed(source, "no such image"))

    world.view.tick = seen  # type: ignore[method-assign]
    job = Job("a", "true", container=Container("img", "docker"))
    world.supervisor.serve(world.engine, Submitted((job,)))
    assert world.supervisor.ledger.state == "failed"


class SparingEngine(FakeEngine):
    """Refuses cards at first, as other launchers of the user hold all that they may."""

    def __init__(self, world: World, times: int) -> None:
        super().__init__(world.supervisor.post)
        self._loop = world.loop
        self._times = times

    def carry_out(self, instruction: Instruction) -> None:
        if not isinstance(instruction, Acquire) or self._times == 0:
            super().carry_out(instruction)
            return
        self._times -= 1
        self.post(Refused(instruction.gpu, AllowanceSpent(1, "/etc/gpulaunch/config.yaml:3")))
        self._loop.call_after("freed", 0.0, lambda: self.post(AllowanceFreed()))


ALLOWED = (
    "waits for a card: your launchers may hold 1 at once (/etc/gpulaunch/config.yaml:3), and hold"
    " them, all of them in other launchers"
)


def test_a_run_notes_once_that_it_waits_for_its_user_s_allowance(world: World) -> None:
    world.engine = SparingEngine(world, 3)
    world.serve("a", "b")
    assert [f for f in world.record.facts if isinstance(f, Noted)] == [Noted(ALLOWED, "a")]
    assert world.supervisor.no_card_as == ""


def test_a_wait_that_ran_out_for_the_allowance_says_so() -> None:
    world = World(wait=0.0)
    world.engine = SparingEngine(world, 1)
    world.serve("a")
    assert world.supervisor.no_card_as == f"a {ALLOWED}"
    world.loop.close()


class RefusingEngine(FakeEngine):
    """Refuses every launch at once, and has this process sent a signal at the third."""

    def carry_out(self, instruction: Instruction) -> None:
        if not isinstance(instruction, Launch):
            super().carry_out(instruction)
            return
        self.seen.append(instruction)
        assert len(self.launched()) < 20, "the job is launched without end"
        if len(self.launched()) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        self.post(Ended(instruction.attempt, End(Interrupted(Because("worker_ended")))))


def test_a_run_whose_engine_refuses_every_launch_hears_a_signal(world: World) -> None:
    world.engine = RefusingEngine(world.supervisor.post)
    world.loop.on_signals([signal.SIGTERM], world.supervisor.on_signal)
    world.serve("a")
    assert world.supervisor.stopped_by == signal.SIGTERM
    assert world.supervisor.ledger.state == "stopped"
    assert world.engine.launched() == ["a"] * 5
