from __future__ import annotations

import pytest

from gpulaunch.core.model import Gpu
from gpulaunch.errors import UsageError
from gpulaunch.gpus.machine import Machine
from gpulaunch.gpus.mask import InheritedPool, pool


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
