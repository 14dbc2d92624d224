"""The client's side of `agent/node`: the files by which they talk on the shared file system.

    client ─tickets/ batches/ stops/─▶ node ─starts/─▶ client       (ends/: see `journal.ends`)
       └──────withdraws─▶ starts/ ◀─claims──┘

Each side writes a file under another name in the same directory and renames it: a reader sees a
whole file or none. Names of attempts are written as their bytes, one character each, so that a
file has the same name on both sides, whatever their locales.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.agent.launch import launch_message, ticket
from gpulaunch.agent.node.status import SLURM_ENDED_IT
from gpulaunch.agent.shared import claim, look_anew
from gpulaunch.agent.wire import coded_all, coded_dict
from gpulaunch.base.files import regular
from gpulaunch.base.files import replace as replace_file
from gpulaunch.core.model import Gpu, Instant
from gpulaunch.engines.client import for_the_child, for_the_keeper
from gpulaunch.engines.command import Command, NodeSlots
from gpulaunch.journal.ends import count, instant, record_bytes, record_of, text

MASK = "CUDA_VISIBLE_DEVICES"

Reason: TypeAlias = Literal["cancelled", "interrupted"]


class NodeStart(Struct, frozen=True):
    """A node's claim of an attempt: the attempt runs there, and never again elsewhere.

    `job` is Slurm's id (`12_3` for a task of an array), `pid` its process there, on `host` (whose
    name may differ from Slurm's `node`). `restart` is how often Slurm had requeued the job, `mask`
    the mask that Slurm set, None for none; `boot` identifies the node's boot, to which the clock of
    `started.mono` belongs. `awaits_cards`: only the cards' numbers are known; their driver's names
    follow, unless the node fails.
    """

    attempt: str
    job: str
    node: str
    host: str
    pid: int
    restart: int
    mask: str | None
    gpus: tuple[Gpu, ...]
    boot: str
    started: Instant
    awaits_cards: bool = False


class Withdrawn(Struct, frozen=True):
    """A client's claim of an attempt before any node's: it never runs. Why, and for whom."""

    reason: Reason
    by: str


def read_start(path: str | os.PathLike[str]) -> NodeStart | Withdrawn | None:
    """Return who claimed the attempt, and where; None if no claim is visible here.

    Raises OSError if the file exists and cannot be read.
    """
    look_anew(os.path.dirname(path))
    try:
        claim, *more = record_bytes(path).split(b"\n")
        start = _claim(record_of(claim))
    except (FileNotFoundError, ValueError, LookupError, TypeError):  # torn, or not by a node
        return None
    if isinstance(start, NodeStart):
        with suppress(ValueError, LookupError, TypeError):  # not there, or not whole
            if len(more) > 1:  # what follows the last whole line is empty, or a part of one
                gpus = _granted(record_of(more[0]), start.node)
                return replace(start, gpus=gpus, awaits_cards=False)
    return start


def _claim(record: Mapping[str, Any]) -> NodeStart | Withdrawn:
    """Return the claim from its record. Raises ValueError, LookupError or TypeError if invalid."""
    if "withdrawn" in record:
        return Withdrawn(_reason(record["withdrawn"]), text(record["by"]))
    mask, node = record["mask"], text(record["node"])
    return NodeStart(
        attempt=text(record["attempt"]),
        job=text(record["job"]),
        node=node,
        host=text(record["host"]),
        pid=count(record["pid"]),
        restart=count(record["restart"]),
        mask=None if mask is None else text(mask),
        gpus=_granted(record, node),
        boot=text(record["boot"]),
        started=instant(record["started"]),
        awaits_cards=bool(record.get("awaits_cards", False)),
    )


def _granted(record: Mapping[str, Any], node: str) -> tuple[Gpu, ...]:
    """Return the cards that Slurm granted; `uuid` is the driver's, or `NODE/INDEX`."""
    cards = [(text(c["uuid"]), count(c["index"]), text(c["name"])) for c in record["gpus"]]
    return tuple(Gpu(uuid, n, f"{node}/{n}", name, 0, node=node) for uuid, n, name in cards)


def last_beat(path: str | os.PathLike[str]) -> float | None:
    """Return the time of the node's last sign of life on an attempt, by its start file; or None.

    The file server's clock sets it: compare it only with another such time. Opening the file makes
    an NFS client ask its server. None if the file cannot be read.
    """
    look_anew(os.path.dirname(path))
    try:
        with open(path, "rb", opener=regular) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def withdraw(
    paths: Sequence[str | os.PathLike[str]],
    reason: Reason,
    by: str,
    link: Callable[[bytes, bytes], None] = os.link,
) -> list[bool]:
    """Claim attempts, by their files in `starts/`, so that no node starts them any more.

    Returns for each if that came before a node's claim. Durable when it returns. Raises OSError;
    some may be claimed then.
    """
    return claim(list(map(os.fsencode, paths)), {"withdrawn": reason, "by": by}, link)


def write_ticket(
    path: str | os.PathLike[str], command: Command, slots: NodeSlots, after: Sequence[str] = ()
) -> None:
    """Write what a node is to run; `after`: attempts that will have succeeded by then.

    Only its owner may read the file: it holds values of variables. Raises OSError.
    """
    marks = {**asdict(slots), "oom_kills": f"@gpulaunch:oom_kills:{os.urandom(8).hex()}@"}
    keeper, child = for_the_keeper(command), for_the_child(command)
    keeper |= {"oom_kills": marks["oom_kills"], "term_by": SLURM_ENDED_IT}
    child |= _with_slurms_mask(command, slots.gpus)
    launch = launch_message(keeper, child)
    replace_file(path, ticket(launch, slots.gpus, marks, coded_all(after)))


def _with_slurms_mask(command: Command, gpus: int) -> dict[str, object]:
    """Return the changes of a job's environment that leave the mask as Slurm set it.

    Slurm sets none for a job without cards, which would see every card.
    """
    added = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus else {MASK: ""}
    changes = {name: value for name, value in command.env_set.items() if name != MASK}
    unset = [name for name in command.env_unset if name != MASK]
    return {"env_set": coded_dict({**changes, **added}), "env_unset": coded_all(unset)}


def write_stop(
    path: str | os.PathLike[str], reason: Reason, by: str = "", now: bool = False
) -> None:
    """Write why the attempt is to stop, `now`: without its grace. Raises OSError.

    The node reads the file by itself after a while, at once on its signal. A stronger wish may
    replace it. The node does not start an attempt that has such a file.
    """
    _write(path, {"reason": reason, "by": by, "now": now})


def _reason(word: object) -> Reason:
    return "cancelled" if word == "cancelled" else "interrupted"


def _write(path: str | os.PathLike[str], value: object) -> None:
    replace_file(path, json.dumps(value).encode() + b"\n")
