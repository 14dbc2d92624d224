from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.core.model import Gpu
from gpulaunch.gpus.machine import Machine
from gpulaunch.gpus.simulated import pool_name, simulated
from gpulaunch.gpus.visible import count_cards, style_for, visible


def card(index: int, mig: bool = False) -> Gpu:
    kind = "MIG" if mig else "GPU"
    return Gpu(f"{kind}-{index}", index, f"0000:0{index}:00.0", "NVIDIA A100", 2**30, mig=mig)


def test_the_mask_by_index_carries_the_order_that_makes_the_index_true() -> None:
    assert visible([card(3), card(1)], "index") == {
        "CUDA_VISIBLE_DEVICES": "3,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_the_mask_by_uuid() -> None:
    assert visible([card(3), card(1)], "uuid") == {"CUDA_VISIBLE_DEVICES": "GPU-3,GPU-1"}


@pytest.mark.parametrize(
    ("indices", "mask"), [((3,), "0"), ((1, 3), "0,1"), ((3, 1), "1,0"), ((5, 0, 7), "1,0,2")]
)
def test_where_no_other_card_opens_the_own_ones_are_counted(
    indices: tuple[int, ...], mask: str
) -> None:
    assert visible([card(index) for index in indices], "own") == {
        "CUDA_VISIBLE_DEVICES": mask,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_a_set_with_a_mig_instance_is_named_by_uuid_even_where_no_other_card_opens() -> None:
    cards = [card(1), card(3, mig=True)]
    assert visible(cards, "own") == {"CUDA_VISIBLE_DEVICES": "GPU-1,MIG-3"}
    assert visible(simulated(2, "run"), "own", 8)["CUDA_VISIBLE_DEVICES"] == "8,9"


def test_a_mig_instance_is_never_named_by_index() -> None:
    assert visible([card(3, mig=True)], "index") == {"CUDA_VISIBLE_DEVICES": "MIG-3"}


def test_no_cards_are_an_empty_mask_and_not_an_absent_one() -> None:
    assert visible([], "index") == visible([], "uuid") == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(("real", "mask"), [(0, "0,2"), (8, "8,10")])
def test_a_pretend_cards_number_is_no_real_cards_number(real: int, mask: str) -> None:
    cards = simulated(3, "run")
    assert visible([cards[0], cards[2]], "index", real)["CUDA_VISIBLE_DEVICES"] == mask


def test_cards_are_counted_where_the_kernel_lists_them(tmp_path: Path) -> None:
    assert count_cards(str(tmp_path)) == 0
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert count_cards(str(tmp_path)) == 64
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
    assert count_cards(str(tmp_path)) == 2


def test_cards_are_named_by_index_only_where_every_index_opens() -> None:
    cards = (card(0), card(1))
    assert style_for(Machine(cards)) == ("index", "")
    style, why = style_for(Machine(cards, unopened=("card 2",)))
    assert style == "uuid"
    assert "card 2 cannot be opened" in why
    assert style_for(Machine((card(0), card(1, mig=True))))[0] == "uuid"


def test_pretend_cards_are_shared_within_a_user_and_a_pool() -> None:
    cards = simulated(2, "mine")
    assert [gpu.uuid for gpu in cards] == ["SIM-0", "SIM-1"]
    assert all(gpu.simulated and gpu.memory == 80 * 2**30 for gpu in cards)
    assert cards[0].key != cards[1].key != simulated(2, "yours")[1].key
    assert len(simulated(1, "x" * 500)[0].key) < 60
    assert pool_name("run", {}) == "run"
    assert pool_name("run", {"GPULAUNCH_SIM_POOL": "ours"}) == "ours"
