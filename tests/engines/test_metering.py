"""The sampler as the launcher has it: started late, restarted when it dies, gone with the launcher.

On the pretend driver's cards the jobs are real processes, and the driver says where they are.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Event, HeldIdle, Launch, Misplaced
from gpulaunch.core.model import AttemptId, Gpu, Job, Service
from gpulaunch.engines.client import AttemptOver, ProgramStarted, Spawner
from gpulaunch.engines.local.metering import BESIDE_MPS, Metering
from gpulaunch.observe.metrics.model import AttemptUse
from gpulaunch.observe.metrics.read import MetricsReader, open_metrics
from tests.engines.fakes import lone_context
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import goes_along, wait_until
from tests.process.conftest import spawner
from tests.process.support import Slot

__all__ = ["spawner"]

A, B = AttemptId("a", 1), AttemptId("b", 1)


@pytest.fixture
def fake(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path)


class Bench:
    """A Metering in a loop that turns until something is so."""

    def __init__(self, path: Path, fake: FakeDriver, gpus: int = 2, simulated: bool = False):
        self.path = path / "metrics.db"
        self.gpus = [
            Gpu(fake.card(n), n, f"key-{n}", "a card", 80 * GIB, simulated=simulated)
            for n in range(gpus)
        ]
        self.loop = Loop()
        self.events: list[Event] = []
        self.warned: list[str] = []
        context = lone_context(path, self.loop, fake.environ)
        context.post = self.events.append
        context.warn = lambda job, text: self.warned.append(text)
        self.metering = Metering(context, self.gpus, after=0.01)

    def turn(self, seconds: float = 0.05) -> None:
        self.loop.call_after("test", seconds, lambda: None)
        self.loop.turn()

    def begin(
        self, attempt: AttemptId, pid: int, gpus: Sequence[Gpu], mps: bool = False, **job: Any
    ) -> None:
        keeper = psutil.Process(pid).ppid()
        launch = Launch(attempt, Job(attempt.job, "", **job), tuple(gpus))
        self.metering.begin(launch, ProgramStarted(str(attempt), pid, keeper), mps=mps)

    def until_pid(self, other_than: int | None = None) -> int:
        def there() -> int | None:
            self.turn()
            pid = self.metering.pid
            return pid if pid != other_than else None

        return wait_until(there, what="a sampler") or 0

    def use(self, attempt: AttemptId = A) -> AttemptUse | None:
        with opened(self.path) as reader:
            return reader.use(attempt) if reader else None

    def until_use(self, attempt: AttemptId = A) -> AttemptUse:
        def there() -> AttemptUse | None:
            self.turn()
            use = self.use(attempt)
            return use if use and use.peak_resident is not None else None

        found = wait_until(there, what=f"a sample of {attempt}")
        assert found is not None
        return found

    def pin(self, attempt: AttemptId = A) -> str | None:
        self.turn()
        with opened(self.path) as reader:
            return reader.pins().get(attempt, (None, ""))[0] if reader else None


@contextmanager
def opened(path: Path) -> Iterator[MetricsReader | None]:
    reader = open_metrics(path)
    try:
        yield reader
    finally:
        if reader:
            reader.close()


@pytest.fixture
def bench(tmp_path: Path, fake: FakeDriver) -> Iterator[Bench]:
    yield from closing(Bench(tmp_path, fake))


def closing(bench: Bench) -> Iterator[Bench]:
    yield bench
    bench.metering.close()
    bench.loop.close()


@pytest.fixture
def slots(spawner: Spawner, tmp_path: Path) -> Iterator[list[Slot]]:
    """Two keepers' places for jobs."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with Slot(spawner, folders[0]) as one, Slot(spawner, folders[1]) as two:
        yield [one, two]


def launched(slot: Slot, *argv: str) -> int:
    slot.launch(*(argv or ("sleep", "60")))
    return slot.expect(ProgramStarted).pid


def test_an_attempt_is_measured_while_it_lives(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    pid = launched(slots[0])
    fake.process(0, pid, 3 * GIB)
    fake.card(0, utilization=40, used=4 * GIB)
    bench.begin(A, pid, bench.gpus[:1])
    use = bench.until_use()
    assert use.peak_gpu_memory == use.mean_gpu_memory == 3 * GIB
    assert use.peak_card_memory == 4 * GIB
    assert use.mean_gpu_utilization == use.peak_gpu_utilization == 40.0
    assert wait_until(bench.pin) == "verified"
    with opened(bench.path) as reader:
        assert reader is not None
        assert set(reader.latest()) == {gpu.uuid for gpu in bench.gpus}


def test_its_end_tells_the_exact_cpu_time(bench: Bench, slots: list[Slot]) -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    pid = launched(slots[0], sys.executable, "-S", "-c", burn)
    before = time.monotonic()
    bench.begin(A, pid, bench.gpus)
    began = time.monotonic()
    slots[0].expect(AttemptOver)
    least = time.monotonic() - began
    bench.metering.end(A)
    most = time.monotonic() - before
    bench.until_pid()
    bench.metering.close()
    use = bench.use()
    assert use is not None
    assert use.cpu_seconds is not None
    assert use.gpu_seconds is not None
    assert 0.45 <= use.cpu_seconds <= 2.0
    assert least * 2 - 0.01 <= use.gpu_seconds <= most * 2 + 0.01


def test_a_list_that_is_over_at_once_starts_no_sampler(
    tmp_path: Path, fake: FakeDriver, slots: list[Slot]
) -> None:
    bench = Bench(tmp_path, fake)
    bench.metering._after = 60.0
    bench.begin(A, launched(slots[0]), ())
    bench.metering.end(A)
    bench.turn()
    assert bench.metering.pid is None
    bench.metering.close()
    assert not bench.path.exists()
    bench.loop.close()


def test_on_pretend_cards_processes_are_measured_and_cards_are_not(
    tmp_path: Path, fake: FakeDriver, slots: list[Slot]
) -> None:
    for bench in closing(Bench(tmp_path, fake, simulated=True)):
        bench.begin(A, launched(slots[0]), bench.gpus[:1])
        use = bench.until_use()
        assert use.cpu_seconds is not None
        rest = {"peak_resident": use.peak_resident, "seconds": use.seconds}
        assert use == AttemptUse(A, cpu_seconds=use.cpu_seconds, **rest)
        with opened(bench.path) as reader:
            assert reader is not None
            assert (reader.latest(), reader.pins()) == ({}, {})
        assert helpers(bench.until_pid()) == []  # nobody asks a driver


def helpers(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_a_sampler_that_was_killed_is_followed_by_another(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    pid = launched(slots[0])
    fake.process(0, pid, 3 * GIB)
    bench.begin(A, pid, bench.gpus[:1])
    bench.until_use()
    first = bench.until_pid()
    os.kill(first, signal.SIGKILL)
    second = bench.until_pid(other_than=first)
    fake.no_processes()
    fake.process(0, pid, 5 * GIB)

    def grown() -> bool:
        bench.turn()
        use = bench.use()
        return use is not None and use.peak_gpu_memory == 5 * GIB

    wait_until(grown)
    assert second
    assert not bench.warned


def test_one_that_dies_at_once_each_time_is_given_up_quietly(
    bench: Bench, slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulaunch.base.helper_process.FIRST_PAUSE", 0.0)
    monkeypatch.setattr("gpulaunch.engines.local.metering.command", lambda *_, **__: ["false"])
    bench.begin(A, launched(slots[0]), ())

    def given_up() -> bool:
        bench.turn()
        return bench.metering._helper._restarts.pause is None

    wait_until(given_up)
    bench.turn()
    assert bench.metering.pid is None
    assert not bench.warned


def test_a_job_on_a_card_that_is_not_its_own_is_posted_once(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    mine, other = launched(slots[0]), launched(slots[1])
    fake.process(0, mine, GIB)
    fake.process(1, mine, GIB)
    fake.process(1, other, GIB)
    bench.begin(A, mine, bench.gpus[:1])
    bench.begin(B, other, bench.gpus[1:])
    wait_until(lambda: bench.turn() or bench.events)
    (event,) = bench.events
    assert isinstance(event, Misplaced)
    uuids = [gpu.uuid for gpu in bench.gpus]
    assert (event.attempt, event.gpu, event.pid) == (A, uuids[1], mine)
    assert event.text == (
        f"process {mine} (sleep 60) is on GPU 1 ({uuids[1]}); the job's own: GPU 0 ({uuids[0]})"
    )
    assert wait_until(bench.pin) == "misplaced"
    assert wait_until(lambda: bench.pin(B)) == "verified"
    os.kill(bench.until_pid(), signal.SIGKILL)  # the next one sees it anew
    bench.until_pid(other_than=bench.metering.pid)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        bench.turn()
    assert len(bench.events) == 1


def test_a_job_that_computes_beside_its_mps_server_is_told_of_and_a_client_is_not(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    client, stray = launched(slots[0]), launched(slots[1])
    fake.process(0, client, GIB)
    fake.process(0, client, GIB, kind="M")
    bench.begin(A, client, bench.gpus[:1], mps=True)
    bench.begin(B, stray, bench.gpus[:1], mps=True)
    bench.until_use(A)
    bench.until_use(B)
    assert not bench.warned
    fake.process(0, stray, GIB)
    wait_until(lambda: bench.turn() or bench.warned)
    assert bench.warned == [BESIDE_MPS]


def test_a_card_outside_of_the_run_is_not_its_own_either(
    tmp_path: Path, fake: FakeDriver, slots: list[Slot]
) -> None:
    for bench in closing(Bench(tmp_path, fake, gpus=1)):
        stranger = fake.card(1)
        pid = launched(slots[0])
        fake.process(1, pid, GIB)
        bench.begin(A, pid, bench.gpus)
        wait_until(lambda bench=bench: bench.turn() or bench.events)
        assert isinstance(bench.events[0], Misplaced)
        assert bench.events[0].gpu == stranger


def test_two_jobs_that_share_a_card_are_told_apart_by_their_memory(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    pids = [launched(slot) for slot in slots]
    for attempt, pid, memory in zip((A, B), pids, (2 * GIB, 5 * GIB), strict=True):
        fake.process(0, pid, memory)
        bench.begin(attempt, pid, bench.gpus[:1])
    assert bench.until_use(A).peak_gpu_memory == 2 * GIB
    assert bench.until_use(B).peak_gpu_memory == 5 * GIB
    assert {wait_until(lambda a=a: bench.pin(a)) for a in (A, B)} == {"verified"}
    assert not bench.events


def test_a_card_that_hangs_leaves_the_others_and_the_processes_measured(
    tmp_path: Path, fake: FakeDriver, slots: list[Slot]
) -> None:
    for bench in closing(Bench(tmp_path, fake)):
        fake.card(0, hang="power")
        bench.begin(A, launched(slots[0]), bench.gpus[1:])
        bench.until_use()
        with opened(bench.path) as reader:
            assert reader is not None
            assert set(reader.latest()) == {bench.gpus[1].uuid}
        assert bench.pin() is None  # nothing is on a card, and not all of them can be seen


def test_a_database_that_is_held_is_said_once_and_costs_nothing_else(
    bench: Bench, slots: list[Slot]
) -> None:
    bench.begin(A, launched(slots[0]), bench.gpus[:1])
    bench.until_use()
    holder = sqlite3.connect(bench.path, isolation_level=None, timeout=20.0)
    holder.execute("BEGIN EXCLUSIVE")
    wait_until(lambda: bench.turn() or bench.warned)
    holder.execute("ROLLBACK")
    holder.close()
    assert len(bench.warned) == 1
    assert "metrics.db: database is locked" in bench.warned[0]


LAUNCHER = """
import os, sys
from pathlib import Path
from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId, Job
from gpulaunch.engines.local.metering import Metering
from gpulaunch.core.model import Gpu
from gpulaunch.base.loop import Loop
from gpulaunch.engines.client import ProgramStarted
from tests.engines.fakes import lone_context
loop = Loop()
gpus = [Gpu(sys.argv[2], 0, "key", "a card", 1 << 30)]
context = lone_context(Path(sys.argv[1]).parent, loop, os.environ)
metering = Metering(context, gpus, after=0.0)
launch = Launch(AttemptId("a", 1), Job("a", ""), tuple(gpus))
metering.begin(launch, ProgramStarted("a.1", os.getpid(), os.getppid()))
loop.turn()
print(metering.pid, flush=True)
while True:
    loop.turn()
"""


def test_a_launcher_that_is_killed_takes_the_sampler_and_its_helper_along(
    tmp_path: Path, fake: FakeDriver
) -> None:
    argv = [sys.executable, "-c", LAUNCHER, str(tmp_path / "metrics.db"), fake.card(0)]
    launcher = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env=fake.environ, preexec_fn=goes_along()
    )
    assert launcher.stdout is not None
    sampler = psutil.Process(int(launcher.stdout.readline()))
    (helper,) = wait_until(sampler.children)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    wait_until(lambda: gone(sampler) and gone(helper))


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_what_its_keeper_tells_of_an_attempts_cpu_time_is_what_is_recorded(bench: Bench) -> None:
    started = ProgramStarted(str(A), os.getpid(), os.getppid(), keeper_start=1, spent=4.0)
    bench.metering.begin(Launch(A, Job("a", ""), tuple(bench.gpus[:1])), started)
    bench.metering.end(A, cpu=1.25)

    def told() -> AttemptUse | None:
        bench.turn()
        return bench.use()

    use = wait_until(told, what="the end's record")
    assert use is not None
    assert use.cpu_seconds == 1.25


# ── Cards held and not used ─────────────────────────────────────────────────────────────────────


def until_event(bench: Bench) -> Event:
    found = wait_until(lambda: bench.turn() or bench.events, what="an event")
    assert found
    return bench.events[0]


def test_a_job_that_holds_memory_and_computes_nothing_is_posted_once(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    pid = launched(slots[0])
    fake.process(0, pid, 3 * GIB)
    bench.begin(A, pid, bench.gpus[:1], gpu_idle=2.0)
    event = until_event(bench)
    assert isinstance(event, HeldIdle)
    assert (event.attempt, event.memory, event.ends) == (A, 3 * GIB, True)
    assert event.seconds >= 2.0
    assert event.text.startswith("used 0 % of GPU 0 for ")
    assert event.text.endswith(" s with 3 GiB held")
    os.kill(bench.until_pid(), signal.SIGKILL)  # the next one counts anew, and is not believed
    bench.until_pid(other_than=bench.metering.pid)
    seen = samples(bench)
    wait_until(lambda: bench.turn() or samples(bench) >= seen + 4)
    assert len(bench.events) == 1


def samples(bench: Bench) -> int:
    with sqlite3.connect(bench.path) as database:
        (count,) = database.execute("SELECT count(*) FROM attempt_sample").fetchone()
    database.close()
    return int(count)


def test_a_job_without_a_limit_is_only_named(
    bench: Bench, fake: FakeDriver, slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulaunch.engines.local.metering.NOTED_AFTER", 2.0)
    pid, server = launched(slots[0]), launched(slots[1])
    fake.process(0, pid, 3 * GIB)
    fake.process(1, server, 3 * GIB)
    bench.begin(B, server, bench.gpus[1:], service=Service("tcp:1"))
    bench.begin(A, pid, bench.gpus[:1])
    event = until_event(bench)
    assert isinstance(event, HeldIdle)
    assert (event.attempt, event.ends) == (A, False)
    seen = samples(bench)
    wait_until(lambda: bench.turn() or samples(bench) >= seen + 6)
    assert len(bench.events) == 1  # the service waits to be asked


def test_of_two_on_a_card_the_one_that_computes_is_left_alone(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    works, hangs = (launched(slot) for slot in slots)
    fake.card(0, utilization=80)
    fake.process(0, works, GIB, sm=80)
    fake.process(0, hangs, 2 * GIB)
    for attempt, pid in ((A, works), (B, hangs)):
        bench.begin(attempt, pid, bench.gpus[:1], gpu_idle=2.0)
    event = until_event(bench)
    assert isinstance(event, HeldIdle)
    assert (event.attempt, event.memory) == (B, 2 * GIB)


def test_a_stopped_job_and_one_without_memory_are_not_idle(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    stopped, on_cpu = (launched(slot) for slot in slots)
    os.kill(stopped, signal.SIGSTOP)
    fake.process(0, stopped, GIB)
    bench.begin(A, stopped, bench.gpus[:1], gpu_idle=1.0)
    bench.begin(B, on_cpu, bench.gpus[1:], gpu_idle=1.0)
    bench.until_use(A)
    bench.until_use(B)
    wait_until(lambda: bench.turn() or samples(bench) >= 10)
    assert not bench.events
    assert not bench.warned


def test_where_the_driver_does_not_tell_the_limit_is_said_once_to_end_nothing(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    for number, slot in enumerate(slots):
        fake.card(number, error_utilization=3, error_work=3)
        pid = launched(slot)
        fake.process(number, pid, GIB)
        bench.begin((A, B)[number], pid, [bench.gpus[number]], gpu_idle=2.0)
    wait_until(lambda: bench.turn() or bench.warned)
    seen = samples(bench)
    wait_until(lambda: bench.turn() or samples(bench) >= seen + 4)
    assert bench.warned == [
        "gpu_idle ends no job here: the driver does not say how much its processes compute"
    ]
    assert not bench.events


# ── Energy ──────────────────────────────────────────────────────────────────────────────────────


def until_energy(bench: Bench, attempt: AttemptId, least: float) -> float:
    def there() -> float | None:
        bench.turn()
        use = bench.use(attempt)
        return use.energy if use and use.energy and use.energy >= least else None

    return wait_until(there, what=f"energy of {attempt}") or 0.0


def test_two_on_a_card_get_what_it_drew_by_what_they_did(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    pids = [launched(slot) for slot in slots]
    fake.card(0, utilization=80, energy=1_000_000)
    for attempt, pid, share in zip((A, B), pids, (60, 20), strict=True):
        fake.process(0, pid, GIB, sm=share)
        bench.begin(attempt, pid, bench.gpus[:1])
    bench.until_use(A)
    bench.until_use(B)
    fake.card(0, energy=1_400_000)  # 400 J more
    one, other = until_energy(bench, A, 1.0), until_energy(bench, B, 1.0)
    assert one + other == pytest.approx(400.0)
    assert one / other == pytest.approx(3.0)
    with opened(bench.path) as reader:
        assert reader is not None
        assert reader.totals() == (pytest.approx(400.0), True)


def test_a_sampler_that_was_killed_loses_nothing_of_a_counter(
    bench: Bench, fake: FakeDriver, slots: list[Slot]
) -> None:
    pid = launched(slots[0])
    fake.card(0, energy=1_000_000)
    fake.process(0, pid, GIB)
    bench.begin(A, pid, bench.gpus[:1])
    bench.until_use(A)
    first = bench.until_pid()
    os.kill(first, signal.SIGKILL)
    fake.card(0, energy=1_400_000)
    bench.until_pid(other_than=first)
    assert until_energy(bench, A, 1.0) == pytest.approx(400.0)


def test_without_a_counter_it_is_the_power_and_of_an_instance_it_is_unknown(
    tmp_path: Path, fake: FakeDriver, slots: list[Slot]
) -> None:
    instance = fake.mig(0, 0)
    for bench in closing(Bench(tmp_path, fake)):
        fake.card(0, mig_mode=1)
        part = Gpu(instance, 0, instance, "a part", 10 * GIB, mig=True)
        bench.gpus = [part, bench.gpus[1]]
        bench.metering._cards = [(gpu.index, gpu.uuid) for gpu in bench.gpus]
        fake.card(1, power=200_000)
        pids = [launched(slot) for slot in slots]
        for attempt, pid, gpu in zip((A, B), pids, bench.gpus, strict=True):
            bench.begin(attempt, pid, [gpu])
        assert until_energy(bench, B, 200.0) >= 200.0
        use = bench.until_use(A)
        assert use.energy is None
