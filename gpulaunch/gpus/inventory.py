"""Gathers the table of `gpulaunch gpus`: the cards, their users, their leases, their health.

Gathers; never prints and never decides whether a run may take a card (`free`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulaunch.core.events import Occupied
from gpulaunch.gpus import machine
from gpulaunch.gpus.discover import ProbeClient, looks
from gpulaunch.gpus.lease import holders
from gpulaunch.gpus.machine import CardReading, Machine, Process
from gpulaunch.gpus.mask import InheritedPool
from gpulaunch.gpus.names import Holder


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """One card. Sizes in bytes; None: unknown. `uuid` is empty where NVML gave none.

    `health` is "ok", or what is wrong. `occupied` says what keeps a launcher off, None where
    nothing does; `outside` which inherited mask leaves the card out of the pool, empty where it is
    in.
    """

    index: int | None
    uuid: str
    name: str
    memory: int | None
    used: int | None
    processes: tuple[Process, ...]
    holder: Holder | None
    health: str
    mig: bool = False
    simulated: bool = False
    occupied: str | None = None
    outside: str = ""


def inventory(
    machine: Machine, client: ProbeClient, scope: str = "", pool: InheritedPool | None = None
) -> list[InventoryRow]:
    """Return a row for each card of the machine, the unusable ones last. Blocks as `looks` does.

    `scope`: that of the job in which this process runs, whose leases are below the machine's.
    `pool`: what the inherited mask leaves of the machine; None: all of it.
    """
    ours = {gpu.uuid for gpu in (pool.gpus if pool else machine.gpus)}
    seen = looks(client, [gpu for gpu in machine.gpus if not gpu.simulated])
    leased = holders() | holders(scope)
    rows = []
    for gpu in machine.gpus:
        look = seen.get(gpu.uuid, CardReading(gpu.uuid))
        rows.append(
            InventoryRow(
                gpu.index,
                gpu.uuid,
                gpu.name,
                gpu.memory,
                look.used,
                look.processes,
                leased.get(gpu.key),
                health(look),
                gpu.mig,
                gpu.simulated,
                occupied(look),
                outside=pool.why if pool and gpu.uuid not in ours else "",
            )
        )
    return rows + [
        InventoryRow(fault.index, "", fault.card, None, None, (), None, fault.advised)
        for fault in machine.faults
        if fault.card
    ]


def occupied(look: CardReading) -> str | None:
    why = machine.is_free(look)
    return why.by if isinstance(why, Occupied) else None


def health(look: CardReading) -> str:
    said = ([look.sick] if look.sick else []) + list(look.notes)
    return "; ".join(said) or "ok"
