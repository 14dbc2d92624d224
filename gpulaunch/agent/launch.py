"""A command on its way to keepers: the two sides of one message, and the file that holds it.

On its way to a cluster's node the message is in a file, a ticket, with marks for what only the node
knows, behind a checksum of all that follows.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping, Sequence

from .wire import (
    PROTOCOL,
    Any,
    MessageFields,
    coded_text,
    counted,
    number_of,
    packed,
    seconds_of,
)

MAX_SIGNAL = 64

SLOTS = (
    "gpu_index", "gpu_uuid", "card", "port", "master_port", "threads", "mask", "oom_kills",
)  # fmt: skip
"""What a ticket has marks for, in this order."""


def launch_message(keeper: Mapping[str, Any], child: Mapping[str, Any]) -> bytes:
    """Return the message that starts an attempt, from the keeper's part and the child's."""
    hidden = child["hidden"]
    return packed(
        "launch",
        coded_text(keeper["attempt"]),
        keeper["end"],
        _number(keeper.get("slot")),
        child["log"],
        child["cwd"],
        _seconds(keeper["timeout"]),
        _seconds(keeper["idle_timeout"]),
        _seconds(keeper["grace"] or 0.0),
        keeper.get("oom_kills") or "",
        keeper.get("cgroup") or "",
        coded_text(keeper.get("term_by") or ""),
        _number(keeper.get("warn_signal")),
        _seconds(keeper.get("warn_before")),
        *counted([str(code) for code in keeper.get("success_codes", [0])]),
        *counted(child["outputs"]),
        *counted(child["kept_outputs"]),
        *counted(child["argv"]),
        *counted(list(map("=".join, child["env_set"].items()))),
        *counted(child["env_unset"]),
        _flag(hidden is not None),
        *counted(hidden or ()),
        *counted(child["cpus"]),
        *counted(_worker(child.get("worker"))),
        _json(child.get("main")),
    )


def behind_message(launch: bytes) -> bytes:
    """Return the message that has this launch follow the worker's present attempt."""
    return packed("behind") + launch.partition(b"\0")[2]


def stop_message(attempt: str, reason: str, by: str, now: bool, gently: bool = False) -> bytes:
    """Return the message that ends an attempt; `gently`: by its warning first, if it has one."""
    return packed("stop", coded_text(attempt), reason, coded_text(by), _flag(now), _flag(gently))


def retire_message(now: bool) -> bytes:
    return packed("retire", _flag(now))


def ticket(launch: bytes, gpus: int, marks: Mapping[str, str], after: Sequence[str]) -> bytes:
    """Return the file of a launch in which `marks` stand for the SLOTS, empty for none.

    `gpus`: how many cards the node is to be given. `after`: attempts that will have succeeded.
    """
    told = (
        packed(str(PROTOCOL), str(gpus), *counted([marks[name] for name in SLOTS]), *counted(after))
        + launch
    )
    return packed(f"{binascii.crc32(told):08x}") + told


class Ticket:
    """A launch as a node reads it: `message`, in which the `marks` of the SLOTS are to be replaced.

    `order` is the same with the marks in it.
    """

    def __init__(self, data: bytes) -> None:
        """Read a ticket's file. Raises ValueError if it is not whole, or of another version."""
        checksum, _, told = data.partition(b"\0")
        if checksum != b"%08x" % binascii.crc32(told):
            raise ValueError("its ticket is not whole")
        fields = MessageFields(told)
        if fields.next() != b"%d" % PROTOCOL:
            raise ValueError("its ticket is of another version of gpulaunch")
        self.gpus = number_of(fields.next())
        self.marks = fields.many()
        self.after = fields.many()
        self.message = fields.rest()
        fields = MessageFields(self.message)
        fields.next()
        self.order = LaunchOrder(fields)


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _json(value: object) -> str:
    return "" if value is None else json.dumps(value)


def _worker(task: Mapping[str, Any] | None) -> list[str]:
    """Return what keepers know of a worker's item, and the item, which only the worker reads."""
    if task is None:
        return []
    limits = ("" if task[name] is None else str(task[name]) for name in ("items", "memory"))
    loading = _seconds(task["load_timeout"])
    return [coded_text(task["key"]), *limits, loading, json.dumps(task["item"])]


class WorkerItem:
    """What a worker is handed; the limits are those of `engines.command.Task`.

    `item`: a JSON object. `loading`: its worker is. `keep`: that has answered, and may take another
    item.
    """

    def __init__(self, fields: list[bytes]) -> None:
        self.key, items, memory, load_timeout, self.item = fields
        self.items = number_of(items) if items else None
        self.memory = number_of(memory) if memory else None
        self.load_timeout = seconds_of(load_timeout) if load_timeout else None
        if not self.item.startswith(b"{"):
            raise ValueError(f"expected a JSON object, found {self.item!r}")
        self.loading = self.keep = False

    def numbered(self, number: int, fresh: bool) -> bytes:
        """Return the line that hands it to the worker; `fresh`: as the worker's first one."""
        return b'{"item": %d, "fresh": %s, %s\n' % (
            number,
            b"true" if fresh else b"false",
            self.item[1:],
        )


class LaunchOrder:
    """A command as keepers read it, once its first field is read; `message` is the whole of it.

    `success_codes`, `outputs` and, of whatever age, `kept_outputs`: what counts as a success.
    `oom_kills`: the file that counts them. `cgroup`: the list of processes of the cgroup that the
    job enters first; empty for none. `term_by`: who sends TERM to all processes here, if anybody
    does. `warn_signal`: sent `warn_before` seconds before the timeout. `hidden`:
    None without isolation. `cpus`: on which it runs; none: on those of its keeper. `item`: a
    worker's. `main`: how a job looks that does no exec.

    Raises ValueError for a message that is no launch. Whatever the compiled keepers refuse is none.
    """

    def __init__(self, fields: MessageFields) -> None:
        self.message = fields.data
        self.id = fields.text()
        self.end = fields.next()
        self.slot = fields.limit()
        self.log = fields.next()
        self.cwd = fields.next()
        self.timeout = fields.seconds()
        self.idle_timeout = fields.seconds()
        self.grace = fields.seconds() or 0.0
        self.oom_kills = fields.next()
        self.cgroup = fields.next()
        self.term_by = fields.text()
        self.warn_signal = fields.limit()
        self.warn_before = fields.seconds() or 0.0
        if self.warn_signal is not None and not 0 < self.warn_signal <= MAX_SIGNAL:
            raise ValueError(f"expected a signal, found {self.warn_signal}")
        self.success_codes = [number_of(code) for code in fields.many()]
        self.outputs = fields.many()
        self.kept_outputs = fields.many()
        self.argv = fields.many()
        self.env_set = dict(entry.split(b"=", 1) for entry in fields.many())
        self.env_unset = fields.many()
        isolated, hidden = fields.flag(), fields.many()
        self.hidden = hidden if isolated else None
        self.cpus = [number_of(cpu) for cpu in fields.many()]
        worker, main = fields.many(), fields.next()
        self.item = WorkerItem(worker) if worker else None
        if not (self.argv and fields.whole):
            raise ValueError("expected a launch, found a part of one, or more than that")
        self.main: dict[str, Any] | None = json.loads(main) if main else None

    @property
    def all_outputs(self) -> list[bytes]:
        return [*self.outputs, *self.kept_outputs]
