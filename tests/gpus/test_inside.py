"""How each engine is told which cards a container sees, as tables."""

from __future__ import annotations

import pytest

from gpulaunch.core.model import ContainerEngine, Gpu
from gpulaunch.gpus.inside import CardsInside, cards_inside
from gpulaunch.gpus.simulated import simulated

ONE = Gpu("GPU-aaaa", 3, "0000:03:00.0", "H100", 80 << 30)
TWO = Gpu("GPU-bbbb", 1, "0000:01:00.0", "H100", 80 << 30)
MIG = Gpu("MIG-cccc", 0, "MIG-cccc", "1g.10gb", 10 << 30, mig=True)
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
VOID = "--env=NVIDIA_VISIBLE_DEVICES=void"
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("engine", "gpus", "expected"),
    [
        ("docker", [ONE], CardsInside(("--gpus", '"device=GPU-aaaa"'), inside=PCI)),
        ("docker", [ONE, TWO], CardsInside(("--gpus", '"device=GPU-aaaa,GPU-bbbb"'), inside=PCI)),
        ("docker", [MIG], CardsInside(("--gpus", '"device=MIG-cccc"'), inside=PCI)),
        ("docker", [], CardsInside((VOID,), inside=HIDDEN)),
        ("podman", [ONE], CardsInside(("--device=nvidia.com/gpu=GPU-aaaa", VOID), inside=PCI)),
        (
            "podman",
            [ONE, TWO],
            CardsInside(
                ("--device=nvidia.com/gpu=GPU-aaaa", "--device=nvidia.com/gpu=GPU-bbbb", VOID),
                inside=PCI,
            ),
        ),
        ("podman", [MIG], CardsInside(("--device=nvidia.com/gpu=MIG-cccc", VOID), inside=PCI)),
        ("podman", [], CardsInside((VOID,), inside=HIDDEN)),
        ("apptainer", [ONE], CardsInside(("--nv",), inside={"CUDA_VISIBLE_DEVICES": "GPU-aaaa"})),
        (
            "singularity",
            [ONE, TWO],
            CardsInside(("--nv",), inside={"CUDA_VISIBLE_DEVICES": "GPU-aaaa,GPU-bbbb"}),
        ),
        ("apptainer", [MIG], CardsInside(("--nv",), inside={"CUDA_VISIBLE_DEVICES": "MIG-cccc"})),
        ("apptainer", [], CardsInside(inside=HIDDEN)),
    ],
)
def test_a_container_is_shown_exactly_its_cards(
    engine: ContainerEngine, gpus: list[Gpu], expected: CardsInside
) -> None:
    assert cards_inside(engine, gpus) == expected


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer", "singularity"])
def test_pretend_cards_are_shown_as_none_with_the_mask_as_outside(engine: ContainerEngine) -> None:
    made = cards_inside(engine, simulated(2, "run"))
    assert made.options == cards_inside(engine, []).options
    assert made.inside["CUDA_VISIBLE_DEVICES"].count(",") == 1


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer", "singularity"])
def test_a_mask_of_numbers_from_outside_never_gets_in(engine: ContainerEngine) -> None:
    mask = cards_inside(engine, [ONE, TWO]).inside.get("CUDA_VISIBLE_DEVICES", "")
    assert not {"3", "1"} & set(mask.split(","))


def test_a_node_of_a_cluster_fills_its_mask_in() -> None:
    made = cards_inside("apptainer", [], mark="@mask@")
    assert made == CardsInside(("--nv",), inside={"CUDA_VISIBLE_DEVICES": "@mask@"})
