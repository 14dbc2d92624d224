from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.core.model import Gpu
from gpulaunch.gpus.discover import pool_name, simulated
from gpulaunch.gpus.machine import Machine
from gpulaunch.gpus.mask import InheritedPool, count_cards, pool, style_for, visible


def machine(count: int = 4, *, names: tuple[str, ...] = (), mig: int = 0) -> Machine:
    cards = tuple(
        Gpu(
            f"GPU-{'abcd'[n] * 8}-0000",
            n,
            f"0000:0{n}:00.0",
            names[n] if names else "NVIDIA A100",
            2**30,
            minor=count - 1 - n,
        )
        for n in range(count)
    )
    instances = tuple(
        Gpu(f"MIG-{n}-0000", count, f"MIG-{n}", "A100 MIG 1g", 2**30, mig=True) for n in range(mig)
    )
    return Machine(cards + instances)


def indices(found: InheritedPool) -> list[int]:
    return [gpu.index for gpu in found.gpus]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("0,2", [0, 2]),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("0,2,-1,1", [0, 2]),
        ("0,9,1", [0]),
        ("9", []),
        ("1,1", []),
        ("0,1,0", []),
        ("cuda:1", []),
        ("all", []),
        ("NoDevFiles", []),
        ("0;1", [0]),
        ("0，1", [0]),
        ("1gpu2,2ampere", [1, 2]),
        ("+1", [1]),
        ("0,,1", [0]),
        ("٣", []),
        ("0,GPU-bbbb", [0]),
        ("GPU-bbbb", [1]),
        ("GPU-cccccccc-0000,GPU-a", [2, 0]),
        ("gpu-bbbb", []),
        ("GPU-bbbb,1", [1]),
        ("GPU-bbbb,GPU-zzzz,GPU-aaaa", [1]),
        ("GPU-", []),
        ("GPU-bbbb,GPU-bbbb", []),
        ("GPU-bbbb,GPU-bbb", [1]),
    ],
)
def test_the_mask_is_read_as_cuda_reads_it(mask: str, expected: list[int]) -> None:
    assert indices(pool(machine(), {"CUDA_VISIBLE_DEVICES": mask})) == expected


def test_without_a_mask_the_pool_is_the_machine() -> None:
    found = pool(machine(), {})
    assert (indices(found), found.why, found.notes) == ([0, 1, 2, 3], "", ())


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("0，1", "only an ASCII comma separates cards"),
        ("0;1", "'0;1' is read as 0 alone"),
        ("1,1", "names card 1 twice: CUDA then shows none"),
        ("0,9,1", "there is no card 9 (4 here)"),
        ("cuda:1", "'cuda:1' is no card's number"),
        ("GPU-zzzz", "GPU-zzzz fits no card here"),
        ("GPU-", "GPU- fits several cards"),
    ],
)
def test_what_looks_like_a_mistake_is_said(mask: str, said: str) -> None:
    (note,) = pool(machine(), {"CUDA_VISIBLE_DEVICES": mask}).notes
    assert said in note
    assert f"CUDA_VISIBLE_DEVICES={mask}" in note


@pytest.mark.parametrize("mask", ["", "-1", "0,1", "0,-1", "GPU-aaaa"])
def test_an_intended_mask_is_no_mistake(mask: str) -> None:
    assert pool(machine(), {"CUDA_VISIBLE_DEVICES": mask}).notes == ()


MIXED = ("NVIDIA A100", "NVIDIA L40S")


def test_numbers_on_mixed_models_are_refused_unless_the_order_is_said() -> None:
    mixed = machine(2, names=MIXED)
    with pytest.raises(UsageError, match=r"CUDA_VISIBLE_DEVICES=1: .*different models.*GPU-aaaa"):
        pool(mixed, {"CUDA_VISIBLE_DEVICES": "1"})
    with pytest.raises(UsageError):
        pool(mixed, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS"})
    said = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert indices(pool(mixed, said)) == [1]
    assert indices(pool(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"})) == [1]
    assert pool(mixed, {"CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    assert indices(pool(mixed, {})) == [0, 1]


def test_mig_instances_are_named_by_uuid_alone() -> None:
    parts = machine(1, mig=2)
    found = pool(parts, {"CUDA_VISIBLE_DEVICES": "MIG-1-0000,MIG-0-0000"})
    assert [gpu.uuid for gpu in found.gpus] == ["MIG-1-0000", "MIG-0-0000"]
    with pytest.raises(UsageError, match="MIG instances have no number"):
        pool(parts, {"CUDA_VISIBLE_DEVICES": "0"})


def test_in_a_cgroup_that_opens_some_cards_numbers_count_those_alone() -> None:
    whole = machine()
    opened = Machine(whole.gpus[1:3], unopened=("card 0", "card 3"))
    assert indices(pool(opened, {"CUDA_VISIBLE_DEVICES": "0"})) == [1]
    assert indices(pool(opened, {"CUDA_VISIBLE_DEVICES": "0,1"})) == [1, 2]


@pytest.mark.parametrize(
    ("own", "mask", "meant"),
    [
        ([1], "0", [1]),  # a strict job's own card, counted from 0
        ([0], "0", [0]),
        ([1, 2], "0,1", [1, 2]),
        ([1, 2], "1,0", [2, 1]),
        ([3], "3", [3]),  # any other job's, by the machine's index
        ([2, 3], "3", [3]),
    ],
)
def test_inside_a_job_numbers_mean_its_own_cards(
    own: list[int], mask: str, meant: list[int]
) -> None:
    here = machine()
    inside = {
        "GPULAUNCH_LEASED": "run/a.1",
        "GPULAUNCH_GPU_UUID": ",".join(here.gpus[n].uuid for n in own),
        "CUDA_VISIBLE_DEVICES": mask,
    }
    assert indices(pool(here, inside)) == meant


def test_a_strict_jobs_numbers_are_read_beside_mig_instances() -> None:
    here = machine(2, mig=1)
    inside = {"GPULAUNCH_LEASED": "r/a.1", "GPULAUNCH_GPU_UUID": here.gpus[1].uuid}
    assert indices(pool(here, {**inside, "CUDA_VISIBLE_DEVICES": "0"})) == [1]


def test_slurms_numbers_are_those_of_the_device_files() -> None:
    given = {"SLURM_JOB_GPUS": "0,3", "SLURM_STEP_GPUS": "0"}
    assert indices(pool(machine(), given)) == [3]
    assert indices(pool(machine(), given | {"CUDA_VISIBLE_DEVICES": "1"})) == [1]


# ── The mask that jobs are given ────────────────────────────────────────────────────────────────


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
