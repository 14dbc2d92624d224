"""The client's side of `node.py`: the files by which they talk on the shared file system.

    client ─tickets/ batches/ stops/─▶ node.py ─starts/─▶ client       (ends/: see `ends.py`)
       └──────withdraws─▶ starts/ ◀─claims──┘

Each side writes a file under another name in the same directory and renames it: a reader sees a
whole file or none. Names of attempts are written as their bytes, one character each, so that a
file has the same name on both sides, whatever their locales.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gpulaunch.core.model import Instant
from gpulaunch.files import regular
from gpulaunch.process.checked import count, instant, record_bytes, record_of, text
from gpulaunch.process.client import KEEPER, code, for_the_child, for_the_keeper
from gpulaunch.process.command import Command, NodeSlots

NODE = Path(__file__).with_name("node.py")
"""The shim. It looks for the other programs beside itself, so all are copied."""
CACHED = Path(__file__).with_name("cached.py")
"""The program that starts the shim and the keepers."""

PROGRAMS = (CACHED, KEEPER, NODE)

Reason: TypeAlias = Literal["cancelled", "interrupted"]


@dataclass(frozen=True, slots=True)
class GrantedGpu:
    """A card that Slurm granted.

    `index` is its number on the node; `uuid` is the driver's, or `NODE/INDEX`; `name` is empty if
    the driver did not answer.
    """

    index: int
    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class NodeStart:
    """A node's claim of an attempt: the attempt runs there, and never again elsewhere.

    `job` is Slurm's id (`12_3` for a task of an array), `pid` is node.py's, on `host` (whose name
    may differ from Slurm's `node`). `restart` is how often Slurm had requeued the job, `mask` the
    mask that Slurm set, None for none; `boot` identifies the node's boot, to which the clock of
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
    gpus: tuple[GrantedGpu, ...]
    boot: str
    started: Instant
    awaits_cards: bool = False


@dataclass(frozen=True, slots=True)
class Withdrawn:
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
    except (FileNotFoundError, ValueError, LookupError, TypeError):  # torn, or not by node.py
        return None
    if isinstance(start, NodeStart):
        with suppress(ValueError, LookupError, TypeError):  # not there, or not whole
            if len(more) > 1:  # what follows the last whole line is empty, or a part of one
                return replace(start, gpus=_granted(record_of(more[0])), awaits_cards=False)
    return start


def _claim(record: Mapping[str, Any]) -> NodeStart | Withdrawn:
    """Return the claim from its record. Raises ValueError, LookupError or TypeError if invalid."""
    if "withdrawn" in record:
        return Withdrawn(_reason(record["withdrawn"]), text(record["by"]))
    mask = record["mask"]
    return NodeStart(
        attempt=text(record["attempt"]),
        job=text(record["job"]),
        node=text(record["node"]),
        host=text(record["host"]),
        pid=count(record["pid"]),
        restart=count(record["restart"]),
        mask=None if mask is None else text(mask),
        gpus=_granted(record),
        boot=text(record["boot"]),
        started=instant(record["started"]),
        awaits_cards=bool(record.get("awaits_cards", False)),
    )


def _granted(record: Mapping[str, Any]) -> tuple[GrantedGpu, ...]:
    return tuple(
        GrantedGpu(count(c["index"]), text(c["uuid"]), text(c["name"])) for c in record["gpus"]
    )


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
    link: Callable[[str, str | os.PathLike[str]], None] = os.link,
) -> list[bool]:
    """Claim attempts, by their files in `starts/`, so that no node starts them any more.

    Returns for each if that came before a node's claim. Durable when it returns. Raises OSError;
    some may be claimed then.

    INVARIANT: as in `claim` of node.py, which is the same for one attempt: link(2) decides.
    """
    folder = os.path.dirname(paths[0])
    draft = os.path.join(folder, f".new-{secrets.token_hex(8)}")
    won: list[bool] = []
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(json.dumps({"withdrawn": reason, "by": by}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        for path in paths:
            won.append(_links(draft, path, 1 + sum(won), link))
        _sync_directory(folder)
    finally:
        os.unlink(draft)
    return won


def _links(
    draft: str,
    path: str | os.PathLike[str],
    names: int,
    link: Callable[[str, str | os.PathLike[str]], None],
) -> bool:
    """Link the draft, which has so many names, to `path`; return False if that is taken."""
    try:
        link(draft, path)
    except OSError as problem:
        # NFS repeats a request whose answer was lost, and then finds its own link: link(2).
        if os.stat(draft).st_nlink > names:
            return True
        if problem.errno == errno.EEXIST:
            return False
        raise
    return True


def write_ticket(
    path: str | os.PathLike[str], command: Command, slots: NodeSlots, after: Sequence[str] = ()
) -> None:
    """Write what node.py is to run; `after`: attempts that will have succeeded by then.

    Only its owner may read the file: it holds values of variables. Raises OSError.
    """
    marks = asdict(slots)
    gpus = marks.pop("gpus")
    ticket = {
        "keeper": for_the_keeper(command),
        "child": for_the_child(command),
        "node": {"gpus": gpus, "slots": marks, "after": [code(attempt) for attempt in after]},
    }
    _write(path, ticket)


def write_stop(
    path: str | os.PathLike[str], reason: Reason, by: str = "", now: bool = False
) -> None:
    """Write why the attempt is to stop, `now`: without its grace. Raises OSError.

    node.py reads the file by itself after a while, at once on its signal. A stronger wish may
    replace it. node.py does not start an attempt that has such a file.
    """
    _write(path, {"reason": reason, "by": by, "now": now})


def look_anew(folder: str | os.PathLike[str]) -> None:
    """Open a directory, which makes an NFS client ask its server for what is there now."""
    with suppress(OSError):
        os.close(os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def put(path: str | os.PathLike[str], data: bytes, durable: bool = False) -> None:
    """Write the file whole, or leave it as it was; mode 0600. Raises OSError."""
    draft = os.path.join(os.path.dirname(path), f".new-{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    if durable:
        _sync_directory(os.path.dirname(path))


def _reason(word: object) -> Reason:
    return "cancelled" if word == "cancelled" else "interrupted"


def _write(path: str | os.PathLike[str], value: object) -> None:
    put(path, json.dumps(value).encode() + b"\n")


def _sync_directory(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
