"""Local on the pretend driver: what the driver reports of a card becomes an event of the run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Acquire, Event, GpuEvent, Granted, Occupied, Release
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import EnvironmentMaker
from gpulaunch.engines.local.engine import Health, Local
from gpulaunch.engines.pool import open_pool
from gpulaunch.gpus.discover import ProbeClient, find
from gpulaunch.gpus.machine import CardReading, drained, is_free
from gpulaunch.journal.rundir import RunDir
from tests.engines.fakes import lone_context
from tests.gpus.fake import FakeDriver, own_leases
from tests.helpers import descriptors_left, wait_until

UNAVAILABLE = 0x4000


@pytest.fixture
def driver(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The pretend driver is this process's own, and so are the leases of its cards."""
    for name, value in own_leases(driver).items():
        monkeypatch.setenv(name, value)
    return driver


class Bench:
    """An engine on the pretend driver's cards, with its loop and what it posted."""

    def __init__(self, path: Path, simulate: int | None = None) -> None:
        self.loop = Loop()
        self.events: list[Event] = []
        pool = open_pool(None, simulate, dict(os.environ), "run")
        post = self.events.append
        context = RunContext(
            RunDir(path),
            "run",
            1,
            EnvironmentMaker(pool.machine, dict(os.environ)),
            self.loop,
            post,
        )
        self.engine = Local(context, pool)

    def until(self, *kinds: type[Event], count: int = 1, seconds: float = 60.0) -> list[Event]:
        """The first `count` events of these kinds."""
        late: list[bool] = []
        self.loop.call_after("late", seconds, lambda: late.append(True))
        while len(found := [event for event in self.events if isinstance(event, kinds)]) < count:
            assert not late, f"{self.events} within {seconds} s"
            self.loop.turn()
        self.loop.forget("late")
        return found

    def listens(self) -> None:
        """Turn the loop until the helper hears every card."""
        client = self.engine._health._client
        assert client is not None
        self.loop.call_after("late", 60.0, lambda: pytest.fail("the helper does not come up"))
        while not client.coverage:
            self.loop.turn()
        self.loop.forget("late")

    def close(self) -> None:
        self.engine.close()
        self.loop.close()


@pytest.fixture
def bench(driver: FakeDriver, tmp_path: Path) -> Iterator[Bench]:
    driver.card(0)
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_an_xid_on_a_held_card_is_posted_with_its_meaning(bench: Bench, driver: FakeDriver) -> None:
    uuid = driver.card(0)
    bench.engine.carry_out(Acquire(uuid))
    bench.until(Granted)
    bench.listens()
    driver.event(0, 31)
    driver.event(0, 79)
    driver.event(0, 0, kind=UNAVAILABLE)
    fault, gone, unavailable = bench.until(GpuEvent, count=3)
    assert isinstance(fault, GpuEvent)
    assert (fault.gpu, fault.code, fault.verdict, fault.stops) == (uuid, 31, "app", False)
    assert isinstance(gone, GpuEvent)
    assert (gone.gpu, gone.code, gone.verdict, gone.stops) == (uuid, 79, "lost", True)
    assert isinstance(unavailable, GpuEvent)
    assert (unavailable.code, unavailable.verdict) == (None, "lost")


def test_the_xids_of_a_card_are_remembered_from_a_time_on(bench: Bench, driver: FakeDriver) -> None:
    uuid = driver.card(0)
    bench.engine.carry_out(Acquire(uuid))
    bench.until(Granted)
    bench.listens()
    xids = bench.engine._health.xids
    before = time.monotonic()
    driver.event(0, 31)
    assert wait_until(lambda: xids(uuid, before)) == (31,)  # without a turn of the loop
    assert xids(uuid, time.monotonic()) == ()
    assert len([event for event in bench.events if isinstance(event, GpuEvent)]) == 1


def test_of_a_card_that_others_hold_only_its_loss_is_posted(
    bench: Bench, driver: FakeDriver
) -> None:
    uuid = driver.card(0)
    bench.engine.carry_out(Acquire(uuid))
    bench.until(Granted)
    bench.engine.carry_out(Release(uuid))
    bench.listens()
    driver.event(0, 31)
    driver.event(0, 79)
    (event,) = bench.until(GpuEvent)
    assert isinstance(event, GpuEvent)
    assert event.code == 79


def test_nothing_listens_before_a_card_is_wanted(bench: Bench) -> None:
    assert bench.engine._health._client is None


def test_pretend_cards_start_no_helper(driver: FakeDriver, tmp_path: Path) -> None:
    bench = Bench(tmp_path, simulate=2)
    bench.engine.carry_out(Acquire("SIM-0"))
    bench.until(Granted)
    assert bench.engine._health._client is None
    bench.close()


def test_a_driver_without_events_disturbs_nothing(driver: FakeDriver, tmp_path: Path) -> None:
    uuid = driver.card(0, events=0)
    bench = Bench(tmp_path)
    bench.engine.carry_out(Acquire(uuid))
    bench.until(Granted)
    bench.listens()
    assert not [event for event in bench.events if isinstance(event, GpuEvent)]
    bench.close()


def test_closing_leaves_no_helper_and_no_descriptor(driver: FakeDriver, tmp_path: Path) -> None:
    driver.card(0)
    gpus = find(os.environ).gpus
    before = sorted(os.listdir("/proc/self/fd"))
    loop = Loop()
    health = Health(lone_context(tmp_path, loop, os.environ), gpus, lambda gpu: True)
    health.begin()
    health.begin()
    assert health._client is not None
    pid = health._client.pid
    health.close()
    loop.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert not os.path.exists(f"/proc/{pid}")


def test_a_card_that_cannot_be_asked_about_now_is_occupied_and_not_sick(bench: Bench) -> None:
    (gpu,) = find(os.environ).gpus
    seen: list[CardReading] = []
    probe = ProbeClient(loop=bench.loop)
    with descriptors_left(1):
        probe.look(gpu, seen.append)
        bench.loop.turn()
    (look,) = seen
    assert isinstance(is_free(look), Occupied)
    assert not drained(look, look)
    probe.close()
