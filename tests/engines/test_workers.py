"""Workers in an engine: real processes that go from attempt to attempt, and end when told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from msgspec import field
from msgspec.structs import replace

from gpulaunch.base.loop import Loop
from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.events import (
    Ended,
    EndWorker,
    Event,
    Launch,
    Release,
    StopAttempt,
    TakeBack,
    WorkerEnded,
)
from gpulaunch.core.facts import AttemptStarted
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Demand,
    Exited,
    Gpu,
    Interrupted,
    Job,
    Lost,
    NotStarted,
    Worker,
)
from gpulaunch.core.template import Slot, Template
from gpulaunch.engines.pool import CardPool
from gpulaunch.gpus.discover import SimulatedProbe
from gpulaunch.gpus.machine import LookCallback
from tests.engines.bench import Bench, Make, fresh_pool, on_driver, run_directory
from tests.gpus.fake import FakeDriver
from tests.helpers import wait_until
from tests.process.support import children_of

pytestmark = pytest.mark.usefixtures("keeper")  # of both kinds

PROGRAM = """
import os, sys, time
def act(item):
    names = ("GPULAUNCH_JOB", "GPULAUNCH_ATTEMPT", "OUT", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
    print(os.getpid(), *(os.environ.get(name) for name in names), item.path, item.attempt)
    open(item.out + "/made", "w").write("x")
    sys.stdout.flush()
    exec(item.what)
"""


@pytest.fixture
def make(tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A bench on cards whose driver is asked before an end is told."""
    on_driver(driver, monkeypatch)
    with ExitStack() as stack:

        def build() -> Bench:
            made = Bench(run_directory(tmp_path / "run"), fresh_pool(), simulate=None)
            stack.callback(made.close)
            return made

        yield build


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "made.py"
    path.write_text(PROGRAM)
    return path


def item(program: Path, name: str, what: str = "pass", **fields: object) -> Job:
    return Job(
        name,
        ("python", str(program)),
        demand=Demand(worker="key"),
        env={"OUT": Template((Slot("out"),))},
        worker=Worker(f"{program}:act"),
        item={"path": f"/data/{name}", "what": what},
        **fields,  # type: ignore[arg-type]
    )


def go(bench: Bench, job: Job, *gpus: Gpu, worker: AttemptId | None = None) -> Ended:
    attempt = AttemptId(job.name, 1)
    bench.engine.carry_out(Launch(attempt, job, gpus, worker))
    ended = bench.expect(Ended)
    assert ended.attempt == attempt
    return ended


def words(bench: Bench, name: str) -> list[str]:
    return (bench.run.path / "logs" / f"{name}.1.log").read_text().split()


def keepers_of(pid: int) -> tuple[int, int]:
    """The guardian and the monitor of a worker."""
    monitor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    guardian = int(Path(f"/proc/{monitor}/stat").read_text().rpartition(")")[2].split()[1])
    return guardian, monitor


A, B, C = (AttemptId(name, 1) for name in "abc")


def test_the_next_attempt_goes_on_in_it_with_its_own_variables(bench: Bench, program: Path) -> None:
    gpu = bench.gpus[1]
    bench.hold(gpu)
    assert go(bench, item(program, "a"), gpu).kept
    assert go(bench, item(program, "b"), gpu, worker=A).kept
    first, second = words(bench, "a"), words(bench, "b")
    assert first[0] == second[0]
    assert second[1:3] == ["b", "1"]
    assert second[3] == str(bench.run.out(B))
    assert (second[5], second[6]) == ("1", "/data/b")
    assert (bench.run.out(B) / "made").exists()
    assert first[4] == second[4], "its port stays reserved for it"


def test_it_ends_when_told_and_its_keeper_is_used_again(bench: Bench, program: Path) -> None:
    go(bench, item(program, "a"))
    pid = int(words(bench, "a")[0])
    bench.engine.carry_out(EndWorker(A))
    assert bench.expect(WorkerEnded) == WorkerEnded(A)
    assert not Path(f"/proc/{pid}").exists()
    assert go(bench, item(program, "b")).end.outcome == Exited(0)
    assert int(words(bench, "b")[0]) != pid


def test_one_that_is_not_there_has_ended(bench: Bench) -> None:
    bench.engine.carry_out(EndWorker(A))
    assert bench.expect(WorkerEnded) == WorkerEnded(A)


def test_an_attempt_that_cannot_begin_leaves_it_as_it_was(bench: Bench, program: Path) -> None:
    go(bench, item(program, "a"))
    ended = go(bench, item(program, "b", cwd="/nowhere"), worker=A)
    assert isinstance(ended.end.outcome, NotStarted)
    assert ended.kept
    assert go(bench, item(program, "c"), worker=A).kept
    assert words(bench, "a")[0] == words(bench, "c")[0]


def test_a_stopped_attempt_takes_it_along(bench: Bench, program: Path) -> None:
    go(bench, item(program, "a"))
    bench.engine.carry_out(Launch(B, item(program, "b", "time.sleep(600)"), (), A))
    bench.expect(AttemptStarted)
    bench.engine.carry_out(StopAttempt(B, "cancelled", Quoted("a person")))
    ended = bench.expect(Ended)
    assert isinstance(ended.end.outcome, Cancelled)
    assert not ended.kept


def test_one_whose_keepers_are_killed_has_ended(bench: Bench, program: Path) -> None:
    go(bench, item(program, "a"))
    pid = int(words(bench, "a")[0])
    inner = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(inner, signal.SIGKILL)
    assert bench.expect(WorkerEnded) == WorkerEnded(A)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert go(bench, item(program, "b"), worker=A).end.outcome == Exited(0)


def test_an_attempt_in_it_whose_keepers_are_killed_is_lost(bench: Bench, program: Path) -> None:
    go(bench, item(program, "a"))
    pid = int(words(bench, "a")[0])
    inner = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    outer = int(Path(f"/proc/{inner}/stat").read_text().rpartition(")")[2].split()[1])
    bench.engine.carry_out(Launch(B, item(program, "b", "time.sleep(600)"), (), A))
    bench.expect(AttemptStarted)
    wait_until(lambda: inner in children_of(outer))
    os.kill(outer, signal.SIGKILL)
    os.kill(inner, signal.SIGKILL)
    assert isinstance(bench.expect(Ended).end.outcome, Lost)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_idle_workers_end_with_the_engine(make: Make, program: Path) -> None:
    bench = make()
    go(bench, item(program, "a"))
    pid = int(words(bench, "a")[0])
    bench.engine.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_card_goes_back_after_its_worker(bench: Bench, program: Path) -> None:
    gpu = bench.gpus[0]
    bench.hold(gpu)
    go(bench, item(program, "a"), gpu)
    bench.engine.carry_out(EndWorker(A))
    bench.expect(WorkerEnded)
    bench.engine.carry_out(Release(gpu.uuid))
    bench.hold(gpu)


def test_a_program_that_reads_lines_works_alike(bench: Bench, tmp_path: Path) -> None:
    loop = tmp_path / "loop.sh"
    loop.write_text('while read -r line; do echo "$$ $line"; echo ${#line} >&2; echo 0 >&3; done')
    job = replace(item(loop, "a"), run=("sh", str(loop)), worker=Worker(run=("sh", str(loop))))
    assert go(bench, job).kept
    assert go(bench, replace(job, name="b"), worker=A).kept
    assert words(bench, "a")[0] == words(bench, "b")[0]
    assert '"job": "b"' in (bench.run.path / "logs" / "b.1.log").read_text()


def test_a_worker_that_ends_with_status_0_before_it_answers_is_no_bare_status_1(
    bench: Bench, tmp_path: Path
) -> None:
    program = tmp_path / "leaves.py"
    program.write_text("import os\ndef act(item): os._exit(0)\n")
    ended = go(bench, item(program, "a"))
    assert ended.end.outcome == Exited(1)
    assert ended.end.failure is not None
    assert ended.end.failure.evidence == "its worker ended, with status 0, before it answered"


# ── One ahead ───────────────────────────────────────────────────────────────────────────────────


class Line:
    """Two attempts on one card: `a` runs until `go`, with `b` behind it (`follows`)."""

    def __init__(
        self,
        bench: Bench,
        program: Path,
        ends: str = "pass",
        follows: bool = True,
        timeout: float | None = None,
    ) -> None:
        self.bench, self.gpu = bench, bench.gpus[0]
        self.file = program.with_name("go")
        self.program = program
        bench.hold(self.gpu)
        waits = f"while not os.path.exists({str(self.file)!r}): time.sleep(0.001)\n{ends}"
        first = item(program, "a", waits, timeout=timeout)
        self.bench.engine.carry_out(Launch(A, first, (self.gpu,)))
        assert bench.expect(AttemptStarted).attempt == A
        if follows:
            self.follow(B, A)

    def follow(self, attempt: AttemptId, behind: AttemptId, what: str = "pass") -> None:
        job = item(self.program, attempt.job, what)
        self.bench.engine.carry_out(Launch(attempt, job, (self.gpu,), A, behind=behind))

    def next(self) -> Event:
        """The next event of an attempt."""
        return self.bench.expect((AttemptStarted, Ended, WorkerEnded))

    def ended(self, attempt: AttemptId, kept: bool) -> Ended:
        event = self.next()
        assert isinstance(event, Ended)
        assert (event.attempt, event.kept) == (attempt, kept)
        return event


@pytest.mark.parametrize("ends", ["pass", "raise ValueError"])
def test_what_is_behind_an_attempt_begins_in_its_worker_and_is_told_after_it(
    bench: Bench, program: Path, ends: str
) -> None:
    line = Line(bench, program, ends)
    line.file.touch()
    # The card is looked at after a failure; until that is done, nothing is told of the next one.
    assert line.ended(A, kept=True).end.outcome == Exited(int(ends != "pass"))
    started = line.next()
    assert isinstance(started, AttemptStarted)
    assert started.attempt == B
    assert line.ended(B, kept=True).end.outcome == Exited(0)
    assert words(bench, "a")[0] == words(bench, "b")[0]
    assert words(bench, "a")[4] == words(bench, "b")[4], "it has the worker's port"
    bench.engine.carry_out(EndWorker(A))
    assert line.next() == WorkerEnded(A)


ENDS = {
    "exit": "sys.exit(3)",
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "lost card": "print('CUDA error: an illegal memory access was encountered'); os._exit(1)",
    "timeout": "time.sleep(600)",
}
"""Ways in which an item ends its worker: what it does, by name."""


@pytest.mark.parametrize("ends", ENDS)
def test_what_is_behind_an_item_that_ends_its_worker_is_given_back_after_that_items_end(
    bench: Bench, program: Path, ends: str
) -> None:
    line = Line(bench, program, ENDS[ends], timeout=0.5 if ends == "timeout" else None)
    line.file.touch()
    line.ended(A, kept=False)
    assert line.ended(B, kept=False).end.outcome == Interrupted(Because("worker_ended"))
    bench.engine.carry_out(Launch(C, item(program, "c"), (line.gpu,)))
    assert isinstance(line.next(), AttemptStarted)
    assert line.ended(C, kept=True).end.outcome == Exited(0)


class HeldProbe:
    """Answers once it is told to."""

    def __init__(self) -> None:
        self.probe: SimulatedProbe | None = None
        self.asked: list[tuple[Gpu, LookCallback]] = []
        self.holds = False

    def look(self, gpu: Gpu, then: LookCallback) -> None:
        self.asked.append((gpu, then))
        if not self.holds:
            self.answer()

    def answer(self) -> None:
        self.holds, asked, self.asked = False, self.asked, []
        for gpu, then in asked:
            assert self.probe is not None
            self.probe.look(gpu, then)

    def close(self) -> None:
        """Give back nothing."""


class HeldPool(CardPool, frozen=True):
    """Cards that are looked at by `held`."""

    held: HeldProbe = field(default_factory=HeldProbe)

    def probe(self, loop: Loop) -> HeldProbe:
        self.held.probe = SimulatedProbe(loop)
        return self.held


class HeldBench(Bench):
    """An engine that is told of its cards when the test lets it."""

    def begin(self) -> None:
        fields = {name: getattr(self.pool, name) for name in CardPool.__struct_fields__}
        self.pool = self.held_pool = HeldPool(**fields)
        super().begin()


@pytest.mark.parametrize("stays", [True, False])
def test_what_is_launched_behind_an_end_that_is_not_told_yet_is_told_after_it(
    tmp_path: Path, program: Path, stays: bool
) -> None:
    bench = HeldBench(run_directory(tmp_path / "run"), fresh_pool())
    with closing(bench):
        line = Line(bench, program, "raise ValueError" if stays else "os._exit(3)", follows=False)
        probe = bench.held_pool.held
        probe.holds = True
        line.file.touch()
        while not probe.asked:  # as the end of `a` makes the engine do
            bench.loop.turn()
        for attempt in (B, C) if stays else (B,):
            line.follow(attempt, A if attempt == B else B)
        if stays:
            wait_until((bench.run.out(C) / "made").exists)
        bench.loop.turn(block=False)
        assert not bench.events, "the end of `a` comes first"
        probe.answer()
        line.ended(A, kept=stays)
        if not stays:
            assert line.ended(B, kept=False).end.outcome == Interrupted(Because("worker_ended"))
            return
        for attempt in (B, C):
            started = line.next()
            assert isinstance(started, AttemptStarted)
            assert started.attempt == attempt
            assert line.ended(attempt, kept=True).end.outcome == Exited(0)


def test_a_worker_whose_keepers_die_before_its_items_end_is_told_has_ended_after_that(
    tmp_path: Path, program: Path
) -> None:
    bench = HeldBench(run_directory(tmp_path / "run"), fresh_pool())
    with closing(bench):
        line = Line(bench, program, "raise ValueError", follows=False)
        probe = bench.held_pool.held
        probe.holds = True
        line.file.touch()
        while not probe.asked:
            bench.loop.turn()
        for keeper in keepers_of(int(words(bench, "a")[0])):
            os.kill(keeper, signal.SIGKILL)
        bench.loop.turn()  # they hang up
        assert not bench.events
        probe.answer()
        line.ended(A, kept=True)
        assert line.next() == WorkerEnded(A)


def test_what_is_behind_another_is_taken_back_and_stopped(bench: Bench, program: Path) -> None:
    line = Line(bench, program)
    bench.engine.carry_out(TakeBack(B))
    assert line.ended(B, kept=False).end.outcome == Interrupted(Because("taken_back"))
    line.follow(C, A)
    bench.engine.carry_out(StopAttempt(C, "cancelled", Quoted("a person")))
    assert line.ended(C, kept=False).end.outcome == Interrupted(Quoted("a person"))
    line.file.touch()
    line.ended(A, kept=True)
    bench.engine.carry_out(TakeBack(A))  # has crossed with its end
    assert go(bench, item(program, "d"), line.gpu, worker=A).kept


@pytest.mark.parametrize("stays", [True, False])
def test_a_launch_behind_what_is_over_begins_if_the_worker_is_there(
    bench: Bench, program: Path, stays: bool
) -> None:
    line = Line(bench, program, "pass" if stays else "os._exit(3)")
    line.file.touch()
    line.ended(A, kept=stays)
    if stays:
        assert isinstance(line.next(), AttemptStarted)
    line.ended(B, kept=stays)
    line.follow(C, B)
    if stays:
        assert isinstance(line.next(), AttemptStarted)
        assert line.ended(C, kept=True).end.outcome == Exited(0)
    else:
        assert line.ended(C, kept=False).end.outcome == Interrupted(Because("worker_ended"))


def test_what_is_behind_an_attempt_whose_keepers_are_killed_never_ran(
    bench: Bench, program: Path
) -> None:
    line = Line(bench, program)
    wait_until(lambda: (bench.run.path / "logs" / "a.1.log").exists() and words(bench, "a"))
    pid = int(words(bench, "a")[0])
    for keeper in keepers_of(pid):
        os.kill(keeper, signal.SIGKILL)
    assert isinstance(line.ended(A, kept=False).end.outcome, Lost)
    assert line.ended(B, kept=False).end.outcome == Interrupted(Because("worker_ended"))
