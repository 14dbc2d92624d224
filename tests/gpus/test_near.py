"""What is near a card, by the kernel and by the driver: NUMA node, CPUs, NVLinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.gpus.discover import find
from gpulaunch.gpus.doctor import places
from gpulaunch.gpus.machine import Machine
from tests.gpus.fake import FakeDriver

FIRST, SECOND, THIRD = (f"00000000:{n:02X}:00.0" for n in (1, 2, 3))


def links(machine: Machine) -> list[list[int]]:
    index = {gpu.uuid: gpu.index for gpu in machine.gpus}
    return [[index[uuid] for uuid in gpu.links] for gpu in machine.gpus]


def test_the_kernel_s_word_goes_before_the_driver_s(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, affinity=0xFF)
    fake_driver.card(1, affinity=0xF0000000F)
    fake_driver.card(2)
    fake_driver.near(0, 1, "16-31,48-63")
    machine = find(fake_driver.environ)
    assert [(gpu.numa, gpu.cpus) for gpu in machine.gpus] == [
        (1, "16-31,48-63"),
        (None, "0-3,32-35"),
        (None, ""),
    ]
    assert not machine.faults


def test_a_node_below_zero_is_none(fake_driver: FakeDriver) -> None:
    fake_driver.card(0)
    fake_driver.near(0, -1, "0-7")
    (gpu,) = find(fake_driver.environ).gpus
    assert (gpu.numa, gpu.cpus) == (None, "0-7")


@pytest.mark.parametrize("call", ["capability", "affinity", "links"])
def test_what_the_driver_does_not_say_is_left_out_alone(fake_driver: FakeDriver, call: str) -> None:
    fake_driver.card(0, **{"affinity": 3, "links": SECOND, f"error_{call}": 999})
    fake_driver.card(1)
    machine = find(fake_driver.environ)
    known = {
        "capability": machine.gpus[0].compute == (8, 0),
        "affinity": machine.gpus[0].cpus == "0-1",
        "links": links(machine) == [[1], [0]],
    }
    assert [name for name, is_known in known.items() if not is_known] == [call]
    assert not machine.faults


def test_the_compute_capability_is_the_driver_s(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, capability="12.1")
    assert find(fake_driver.environ).gpus[0].compute == (12, 1)


def test_links_join_the_cards_at_their_ends_whichever_names_the_other(
    fake_driver: FakeDriver,
) -> None:
    fake_driver.card(0, links=f"{SECOND},{SECOND},down")
    fake_driver.card(1, links=None)
    fake_driver.card(2, links="down,down")
    fake_driver.card(3, links="00000000:C1:00.0")
    assert links(find(fake_driver.environ)) == [[1], [0], [], []]


def test_switches_join_all_cards_that_are_at_them(fake_driver: FakeDriver) -> None:
    for n in range(4):
        fake_driver.card(n, links="switch,switch" if n != 2 else None)
    assert links(find(fake_driver.environ)) == [[1, 3], [0, 3], [], [0, 1]]


def test_an_old_driver_tells_of_a_switch_by_its_bus_id(tmp_path: Path) -> None:
    old = FakeDriver(tmp_path, old=True)
    for n in range(3):
        old.card(n, links="switch")
    assert links(find(old.environ)) == [[1, 2], [0, 2], [0, 1]]


def test_two_cards_that_are_linked_with_a_third_are_not_linked_by_that(
    fake_driver: FakeDriver,
) -> None:
    fake_driver.card(0, links=SECOND)
    fake_driver.card(1, links=f"{FIRST},{THIRD}")
    fake_driver.card(2, links=SECOND)
    assert links(find(fake_driver.environ)) == [[1], [0, 2], [1]]


def test_instances_have_what_is_near_their_card_and_no_links(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, links=SECOND)
    fake_driver.near(0, 0, "0-3")
    fake_driver.mig(0, 0)
    fake_driver.mig(0, 1)
    fake_driver.card(1, links=FIRST)
    machine = find(fake_driver.environ)
    assert [gpu.cpus for gpu in machine.gpus] == ["0-3", "0-3", ""]
    assert {gpu.compute for gpu in machine.gpus} == {(8, 0)}
    assert links(machine) == [[], [], []]


def test_a_card_that_does_not_open_is_linked_with_none(fake_driver: FakeDriver) -> None:
    fake_driver.card(0, links=f"{SECOND},{THIRD}")
    fake_driver.card(1, links=FIRST, error_open=15)
    fake_driver.card(2, links=FIRST)
    assert links(find(fake_driver.environ)) == [[1 + 1], [0]]


# ── doctor ──────────────────────────────────────────────────────────────────────────────────────


def told(driver: FakeDriver) -> list[tuple[str, str]]:
    machine = find(driver.environ)
    return [(one.level, one.what) for one in places(machine, driver.environ)]


def test_the_doctor_says_where_nobody_knows_what_is_near(fake_driver: FakeDriver) -> None:
    for n in range(3):
        fake_driver.card(n)
    fake_driver.near(1, 1, "4-7")
    assert told(fake_driver) == [], "one node: nothing is near"
    fake_driver.nodes("0-1")
    assert told(fake_driver) == [
        (
            "note",
            "2 NUMA nodes, and neither the kernel nor the driver says which is near GPUs 0 and 2",
        )
    ]
    for n in (0, 2):
        fake_driver.near(n, 0, "0-3")
    assert told(fake_driver) == [
        ("ok", "2 NUMA nodes; jobs run on the CPUs near their card (affinity)")
    ]
