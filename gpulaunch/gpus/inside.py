"""How each engine is told which cards a container sees. Pure: cards in, options and variables out.

    engine       cards                                        mask inside
    docker       --gpus "device=UUID,UUID"                    none: only these devices are there
    podman       --device nvidia.com/gpu=UUID, one for each   none, likewise
    apptainer    --nv, which shows all devices                CUDA_VISIBLE_DEVICES=UUID,UUID
    any          no card                                      CUDA_VISIBLE_DEVICES= (empty)
    any          pretend cards: as without a card             as outside of a container

Devices that are there alone are numbered from 0, so a mask of numbers from outside would name
others, or none: it is not applied a second time. CUDA's images ask for all cards by themselves
(NVIDIA_VISIBLE_DEVICES=all), which counts where NVIDIA's runtime is docker's default one: each
container of docker and podman says otherwise.

Sources: the NVIDIA Container Toolkit's documentation ("Specialized Configurations with Docker",
"Support for Container Device Interface"), Apptainer's "GPU Support".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from gpulaunch.core.model import ContainerEngine, Gpu
from gpulaunch.gpus.visible import MASK, ORDER, PCI_ORDER, visible

SHOWN = "NVIDIA_VISIBLE_DEVICES"
"""Names the devices that NVIDIA's runtime shows; `void` for none."""


class CardsInside(Struct, frozen=True):
    """What shows a container its cards: options of the engine, and variables of the program."""

    options: tuple[str, ...] = ()
    inside: Mapping[str, str] = field(default_factory=dict)


def cards_inside(engine: ContainerEngine, gpus: Sequence[Gpu], mark: str = "") -> CardsInside:
    """Return what shows a container of this engine exactly these cards, numbered from 0.

    `mark`: stands for the UUIDs, comma-separated, where only a cluster's node will know the cards.
    """
    pretend = any(gpu.simulated for gpu in gpus)
    uuids = mark.split(",") if mark else [gpu.named for gpu in gpus if not gpu.simulated]
    if not uuids:
        mask = visible(gpus, "index") if pretend else {MASK: ""}
        none = (f"--env={SHOWN}=void",) if engine in ("docker", "podman") else ()
        return CardsInside(none, inside=mask)
    listed = ",".join(uuids)
    if engine == "docker":
        # The option's value is read as a line of CSV: the quotes keep the commas in one field.
        options: tuple[str, ...] = ("--gpus", f'"device={listed}"')
        return CardsInside(options, inside={ORDER: PCI_ORDER})
    if engine == "podman":
        options = tuple(f"--device=nvidia.com/gpu={uuid}" for uuid in uuids)
        return CardsInside((*options, f"--env={SHOWN}=void"), inside={ORDER: PCI_ORDER})
    return CardsInside(("--nv",), inside={MASK: listed})
