"""Makes the JSON of `gpulaunch gpus --json`: the cards of this machine, and who is on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulaunch.contracts import SCHEMA, CardsDocument, CardUser, MachineCard


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process on a card. `user`, `command` and `memory` (bytes) are None where not known."""

    pid: int
    user: str | None = None
    command: str | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A card as the machine shows it now. Memory in bytes; None is not known.

    `lease`: who holds it, in words; None: nobody. `health`: `ok`, else what is wrong, in words.
    `state`: what keeps a launcher off though nobody holds it, in words; None: nothing does.
    `outside`: the inherited mask that leaves the card out of the pool; empty: it is in.
    """

    index: int
    uuid: str
    name: str
    memory: int | None = None
    used: int | None = None
    users: tuple[GpuUser, ...] = ()
    lease: str | None = None
    health: str = "ok"
    simulated: bool = False
    state: str | None = None
    outside: str = ""


def gpus_json(rows: Sequence[GpuRow]) -> CardsDocument:
    """Return what `gpus --json` prints."""
    return {"schema": SCHEMA, "gpus": [_card(row) for row in rows]}


def _card(row: GpuRow) -> MachineCard:
    return {
        "index": row.index,
        "uuid": row.uuid,
        "name": row.name,
        "memory": row.memory,
        "used": row.used,
        "users": [_user(user) for user in row.users],
        "lease": row.lease,
        "health": row.health,
        "simulated": row.simulated,
        "state": row.state,
        "outside": row.outside,
    }


def _user(user: GpuUser) -> CardUser:
    return {
        "pid": user.pid,
        "user": user.user,
        "command": user.command,
        "memory": user.memory,
    }
