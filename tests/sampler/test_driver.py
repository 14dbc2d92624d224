"""The driver's answers as samples, on the pretend driver: hung cards, absent fields, others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.observe.metrics.model import CardSample
from gpulaunch.observe.sampler import driver as module
from gpulaunch.observe.sampler.driver import EVERY, CardSampler, DriverSample
from tests.gpus.fake import GIB, FakeDriver


@pytest.fixture
def fake(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path)


class Bench:
    def __init__(self, fake: FakeDriver, *cards: tuple[int, str]) -> None:
        self.driver = CardSampler(cards, fake.environ)
        self.now = 1000.0

    def look(self, seconds: float = 1.0, whole: bool = False) -> DriverSample:
        self.now += seconds
        return self.driver.look(self.now + 1e9, self.now, whole)


@pytest.fixture
def bench(fake: FakeDriver) -> Iterator[Bench]:
    bench = Bench(fake, (0, fake.card(0)), (1, fake.card(1)))
    yield bench
    bench.driver.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.3)


def test_a_sample_has_what_the_driver_says_of_the_card(fake: FakeDriver, bench: Bench) -> None:
    fake.card(0, utilization=63, used=3 * GIB, power=311_500, temperature=61, throttled=0x1 | 0x44)
    seen = bench.look()
    uuid = fake.card(0)
    assert seen.cards[uuid] == CardSample(
        uuid,
        1001.0 + 1e9,
        utilization=63,
        memory=3 * GIB,
        power=311.5,
        temperature=61,
        throttled=("power cap", "hardware thermal slowdown"),
    )
    assert seen.cards[fake.card(1)].throttled == ()


def test_a_field_that_the_card_does_not_have_is_none(fake: FakeDriver, bench: Bench) -> None:
    uuid = fake.card(0, utilization=None, power=None, throttled=None)
    card = bench.look().cards[uuid]
    assert (card.utilization, card.power, card.throttled) == (None, None, ())
    assert card.memory is not None


def test_an_old_driver_will_do(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path, old=True)
    bench = Bench(fake, (0, fake.card(0, throttled=4)))
    fake.process(0, pid=42, memory=GIB)
    seen = bench.look()
    bench.driver.close()
    assert seen.cards[fake.card(0)].throttled == ("power cap",)
    assert seen.pids == {fake.card(0): {42: GIB}}


def test_memory_by_pid_of_programs_and_of_mps_but_not_of_a_desktop(
    fake: FakeDriver, bench: Bench
) -> None:
    fake.process(0, pid=11, memory=GIB)
    fake.process(0, pid=12, memory=None, kind="M")
    fake.process(0, pid=13, memory=GIB, kind="G")
    assert bench.look().pids[fake.card(0)] == {11: GIB, 12: None}


def test_a_card_that_hangs_costs_the_others_nothing(
    quick: None, fake: FakeDriver, bench: Bench
) -> None:
    hung, well = fake.card(0, hang="utilization"), fake.card(1)
    bench.driver._helper.limit = 0.3
    first = bench.look()
    assert set(first.cards) == {well}
    assert "did not answer" in first.silent[hung]
    for _ in range(20):  # it is not asked again for a while, so this takes no time
        seen = bench.look()
        assert set(seen.cards) == {well}
        assert seen.silent == {hung: f"GPU 0 ({hung}) does not answer"}
    fake.card(0, hang=None)
    assert set(bench.look(seconds=60).cards) == {hung, well}


def test_a_card_that_hangs_again_and_again_is_left_alone(
    quick: None, fake: FakeDriver, bench: Bench
) -> None:
    fake.card(0, hang="open")
    bench.driver._helper.limit = 0.3
    for pause in (*module.PAUSES, 3600.0):
        bench.look(pause + 1)
    fake.card(0, hang=None)
    assert set(bench.look(1e6).cards) == {fake.card(1)}


def test_a_crash_in_the_driver_is_a_card_that_does_not_answer(
    fake: FakeDriver, bench: Bench
) -> None:
    fake.card(0, crash="power")
    assert set(bench.look().cards) == {fake.card(1)}
    assert set(bench.look().cards) == {fake.card(1)}


def test_the_machines_other_cards_are_asked_for_their_pids_now_and_then(fake: FakeDriver) -> None:
    bench = Bench(fake, (0, fake.card(0)))
    other = fake.card(1)
    fake.process(1, pid=77, memory=GIB)
    seen = [bench.look() for _ in range(EVERY + 1)]
    assert [look.whole for look in seen] == [True, *[False] * (EVERY - 1), True]
    assert [other in look.pids for look in seen] == [look.whole for look in seen]
    assert other in bench.look(whole=True).pids
    assert other not in seen[0].cards
    bench.driver.close()


def test_of_a_card_in_instances_each_is_asked_and_the_card_is_not(fake: FakeDriver) -> None:
    ours, sibling = fake.mig(0, 0), fake.mig(0, 1)
    fake.process("0.0", pid=5, memory=GIB)
    fake.process(0, pid=5, memory=GIB)
    bench = Bench(fake, (0, ours))
    seen = bench.look()
    bench.driver.close()
    assert seen.pids == {ours: {5: GIB}, sibling: {}}
    assert seen.cards[ours].utilization is None  # the driver has none of an instance


def test_cards_that_changed_places_are_found_again(fake: FakeDriver, bench: Bench) -> None:
    assert len(bench.look().cards) == 2
    fake.swap(0, 1)
    assert bench.look().cards == {}
    bench.look(module.PAUSES[0])
    assert len(bench.look().cards) == 2


def test_a_card_that_was_never_heard_of_is_said_to_be_unknown(fake: FakeDriver) -> None:
    fake.card(1, error_open=15)
    bench = Bench(fake, (0, fake.card(0)))
    assert bench.look().silent == {"1": "GPU 1 does not answer"}
    bench.driver.close()


def test_without_cards_the_driver_is_not_touched(fake: FakeDriver) -> None:
    bench = Bench(fake)
    assert bench.look() == DriverSample()
    assert bench.driver.pid is None
    bench.driver.close()


def test_a_machine_without_a_driver_gives_no_samples(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path)
    fake.driver(error_init=9)
    bench = Bench(fake, (0, fake.card(0)))
    assert bench.look().cards == {}
    bench.driver.close()
