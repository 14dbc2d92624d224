"""Which cards a job takes: a model's name, the least compute capability, or a single card. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from gpulaunch.core.model import CardKind, Demand, Gpu


def is_kind(gpu: Gpu, demand: Demand) -> bool:
    """Tell whether the card is one of those that the demand names.

    A simulated card is of any model, and a card whose compute capability is not known is none that
    a job with `compute` may have.
    """
    if not (demand.card or demand.compute or demand.own_gpu):
        return True
    if demand.own_gpu and gpu.uuid != demand.own_gpu:
        return False
    if gpu.simulated:
        return True
    if gpu.compute < demand.compute:
        return False
    return not demand.card or fits_name(gpu.name, demand.card)


def reserved_on(gpus: Iterable[Gpu], demand: Demand) -> int:
    """Return the bytes of the host's memory that the demand reserves on any of these cards.

    Its `gpu_memory` counts where all cards that it may have are unified.
    """
    fit = [gpu for gpu in gpus if is_kind(gpu, demand)]
    unified = bool(fit) and all(gpu.unified for gpu in fit)
    return demand.memory + (demand.gpus * demand.gpu_memory if unified else 0)


def fits_name(name: str, glob: str) -> bool:
    """Tell whether a card's name fits the glob, in capital letters or small ones."""
    return fnmatchcase(name.casefold(), glob.casefold())


def models(gpus: Sequence[Gpu], kind: CardKind) -> tuple[str, ...]:
    """Return the names of these cards, each once, with what the job asked for and they lack.

    Compute capabilities are told where the job asks for one.
    """
    return tuple(dict.fromkeys(_told(gpu, kind) for gpu in gpus))


def _told(gpu: Gpu, kind: CardKind) -> str:
    if not kind.compute:
        return gpu.name
    return f"{gpu.name} ({capability(gpu.compute) or 'compute capability not known'})"


def capability(compute: tuple[int, ...]) -> str:
    """Return a compute capability as people write it: `8.0`; empty for none."""
    return ".".join(map(str, compute))
