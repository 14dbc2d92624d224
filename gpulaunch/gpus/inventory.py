"""Gathers the table of `gpulaunch gpus`: the cards, their users, their leases, their health.

Gathers; never prints and never decides whether a run may take a card (`is_free`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpulaunch.base.free_below import FreeBelow
from gpulaunch.base.wording import option_to_take
from gpulaunch.core.events import Occupied, Sick
from gpulaunch.core.model import Gpu
from gpulaunch.core.placement import capability
from gpulaunch.gpus.discover import ProbeClient, looks
from gpulaunch.gpus.lease import holders
from gpulaunch.gpus.machine import CardReading, Fault, Machine, Process, is_free
from gpulaunch.gpus.mask import InheritedPool
from gpulaunch.gpus.socket_locks import Holder

if TYPE_CHECKING:
    from gpulaunch.base.documents import CardHold, CardUser, MachineCard


def inventory(
    machine: Machine,
    client: ProbeClient,
    scope: str = "",
    pool: InheritedPool | None = None,
    never: Mapping[str, str] = MappingProxyType({}),
    last: Mapping[str, str] = MappingProxyType({}),
    free_below: FreeBelow | None = None,
) -> list[MachineCard]:
    """Return a row for each card of the machine, the unusable ones last. Blocks as `looks` does.

    `scope`: that of the job in which this process runs, whose leases are below the machine's.
    `pool`: what the inherited mask leaves of the machine; None: all of it. `never` and `last`: what
    in the configuration keeps cards, by UUID, from being used, or from being used before others.
    `free_below`: as in `is_free`.
    """
    ours = {gpu.uuid for gpu in (pool.gpus if pool else machine.gpus)}
    seen = looks(client, [gpu for gpu in machine.gpus if not gpu.simulated])
    leased = holders() | holders(scope)
    rows: list[MachineCard] = []
    for gpu in machine.gpus:
        outside = pool.why if pool and gpu.uuid not in ours else never.get(gpu.uuid, "")
        look = seen.get(gpu.uuid, CardReading(gpu.uuid))
        row = usable(gpu, look, leased.get(gpu.key), outside, free_below)
        row["linked"] = [one.index for one in machine.gpus if one.uuid in gpu.links]
        rows.append({**row, "last": last.get(gpu.uuid, "")})
    return rows + [unusable(fault) for fault in machine.faults if fault.card]


def usable(
    gpu: Gpu,
    look: CardReading,
    holder: Holder | None = None,
    outside: str = "",
    free_below: FreeBelow | None = None,
) -> MachineCard:
    """Return a card's row. `outside`: what leaves it out, empty if it is in."""
    unfit = is_free(look, free_below=free_below)
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory": gpu.memory or None,
        "used": look.used,
        "free": look.free,
        "unified": gpu.unified,
        "users": users(look.processes),
        "lease": None if holder is None else str(holder),
        "hold": _hold(holder),
        "health": "; ".join(filter(None, (look.sick, *look.notes))) or "ok",
        "simulated": gpu.simulated,
        "compute": capability(gpu.compute),
        "numa": gpu.numa,
        "cpus": gpu.cpus,
        "linked": [],
        "state": unfit.by if isinstance(unfit, Occupied) else None,
        "option": _option(unfit),
        "outside": outside,
        "last": "",
    }


def _option(unfit: Occupied | Sick | None) -> str | None:
    if not isinstance(unfit, Occupied) or unfit.free_below is None:
        return None
    return option_to_take(unfit.free_below)


def _hold(holder: Holder | None) -> CardHold | None:
    if holder is None or holder.hold is None:
        return None
    name, until = holder.hold.name, holder.hold.until
    return {"user": holder.user, "pid": holder.pid, "name": name, "until": _iso(until)}


def _iso(utc: float | None) -> str | None:
    if utc is None:
        return None
    return datetime.fromtimestamp(utc, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def users(processes: Sequence[Process]) -> list[CardUser]:
    return [
        {"pid": one.pid, "user": one.user, "command": one.command, "memory": one.memory}
        for one in processes
    ]


def unusable(fault: Fault) -> MachineCard:
    """Return the row of a card that no job can use."""
    index = -1 if fault.index is None else fault.index
    gpu = Gpu("", index, "", fault.card, 0)
    return {**usable(gpu, CardReading("", sick=fault.advised)), "memory": None}
