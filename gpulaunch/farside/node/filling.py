"""Fills in a command what only its node knows: cards, ports, CPUs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping

from ..ports import reserve_port
from ..wire import Any, coded, raw
from .grant import MASK, Grant
from .words import Problem

ORDER = b"CUDA_DEVICE_ORDER"


def filled(ticket: Mapping[str, Any], grant: Grant, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Return the child's part of the command, with the node's values and the mask filled in.

    INVARIANT: the values are plain (`plain`): harmless in JSON, in any quotes of a shell, in a
    pattern of file names. Ports stay reserved until `stack` is closed.
    """
    text = json.dumps(ticket["child"])
    for name, mark in ticket["node"]["slots"].items():
        if mark and mark in text:
            text = text.replace(mark, value_of(name, grant, stack))
    child: dict[str, Any] = json.loads(text)
    changes = child["env_set"]
    changes.pop(coded(MASK), None)
    child["env_unset"] = [name for name in child["env_unset"] if raw(name) != MASK]
    if ticket["node"]["gpus"]:
        changes[coded(ORDER)] = "PCI_BUS_ID"
    else:
        changes[coded(MASK)] = ""  # Slurm leaves the mask unset, which shows every card
    return child


def value_of(name: str, grant: Grant, stack: contextlib.ExitStack) -> str:
    if name == "gpu_index":
        return ",".join(str(card["index"]) for card in grant.gpus)
    if name == "gpu_uuid":
        return ",".join(card["uuid"] for card in grant.gpus)
    if name == "card":
        return "+".join(card["uuid"] for card in grant.gpus).replace("/", "_")
    if name == "threads":
        return str(cpus_granted(grant.environ))
    if name in ("port", "master_port"):
        return str(port_for(stack))
    raise Problem(f"its ticket has a slot {name!r}, which this program does not know")


def cpus_granted(environ: Mapping[bytes, bytes]) -> int:
    """Return how many CPUs Slurm granted, by its variable.

    Without a plugin that binds processes, the affinity mask would name all the node's CPUs.
    """
    try:
        return max(1, int(environ[b"SLURM_CPUS_ON_NODE"]))
    except (KeyError, ValueError):
        return len(os.sched_getaffinity(0))


def port_for(stack: contextlib.ExitStack) -> int:
    try:
        port, reservation = reserve_port()
    except OSError as problem:
        raise Problem(str(problem)) from None
    stack.callback(reservation.close)
    return port
