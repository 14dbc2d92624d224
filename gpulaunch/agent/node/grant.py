"""What Slurm granted, as the node sees it, and the command that is filled with it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping

from ..launch import SLOTS, Ticket
from ..ports import reserve_port
from ..wire import Any, shown

MASK = b"CUDA_VISIBLE_DEVICES"
NO_CARD = "NoDevFiles"  # what Slurm 20.11 and older put into the mask of a job without cards
DRIVER_TIMEOUT = 5.0  # seconds for nvidia-smi to list the cards


class Problem(Exception):
    """The attempt cannot be started here; the text says why."""


def plain(text: str) -> str:
    """Return the text with `_` for characters that JSON, shells, paths or patterns interpret."""
    return re.sub(r"[^A-Za-z0-9._:/-]", "_", text)


class Grant:
    """The cards that Slurm gave this job, by the job's environment, which it never changes."""

    def __init__(self, environ: dict[bytes, bytes]) -> None:
        self.environ = environ
        self.node = node_name(environ)
        mask = environ.get(MASK)
        self.mask = None if mask is None else shown(mask)
        words = [word.strip() for word in (self.mask or "").split(",")]
        self.visible = [word for word in words if word and word != NO_CARD]
        self.gpus = self.named({})

    def check(self, gpus: int) -> None:
        """Raise Problem if Slurm granted another number of cards; a job without cards sees none."""
        if gpus and len(self.visible) != gpus:
            mask = "not set" if self.mask is None else repr(self.mask)
            raise Problem(
                f"Slurm granted {cards(len(self.visible))} on node {self.node} ({shown(MASK)} is"
                f" {mask}), {cards(gpus)} {'was' if gpus == 1 else 'were'} asked for"
            )

    def ask_driver(self) -> None:
        """Set the cards' names from the node's driver, which may take seconds if it is faulty."""
        self.gpus = self.named(driver_says())

    def named(self, known: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
        """Return each card's number, identity and name; the latter two from `known`.

        Under device cgroups every job's first card is 0 in the mask, and for the driver; the node's
        own numbers are in SLURM_JOB_GPUS.
        """
        numbers = spread(shown(self.environ.get(b"SLURM_JOB_GPUS", b"")))
        found = []
        for place, word in enumerate(self.visible):
            uuid, name = known.get(word, ("", ""))
            if not word.isdigit():
                uuid = word
            number = int(word) if word.isdigit() else place
            if len(numbers) == len(self.visible):
                number = numbers[place]
            uuid = plain(uuid or f"{self.node}/{number}")
            found.append({"index": number, "uuid": uuid, "name": name})
        return found

    def record(self, attempt: str) -> dict[str, Any]:
        """Return the start record; `awaits_cards`: the driver's names of the cards will follow."""
        return {
            "attempt": attempt,
            "job": slurm_id(self.environ),
            "node": self.node,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "restart": int(self.environ.get(b"SLURM_RESTART_COUNT", b"0")),
            "mask": self.mask,
            "gpus": self.gpus,
            "awaits_cards": bool(self.visible),
            "boot": boot(),
            "started": (time.monotonic(), time.time()),
        }


def cards(count: int) -> str:
    return f"{count} card{'' if count == 1 else 's'}"


def node_name(environ: Mapping[bytes, bytes]) -> str:
    return plain(shown(environ.get(b"SLURMD_NODENAME", b"")) or socket.gethostname())


def slurm_id(environ: Mapping[bytes, bytes]) -> str:
    """Return Slurm's job number as squeue shows it: `12`, or `12_3` for a task of an array."""
    task = environ.get(b"SLURM_ARRAY_TASK_ID")
    if task is None:
        return shown(environ.get(b"SLURM_JOB_ID", b""))
    return shown(environ.get(b"SLURM_ARRAY_JOB_ID", b"") + b"_" + task)


def memory_counter(
    environ: Mapping[bytes, bytes],
    own: bytes = b"/proc/self/cgroup",
    mounted: bytes = b"/sys/fs/cgroup",
) -> bytes | None:
    """Return the file that counts the kernel's kills for memory in this Slurm job's own cgroup.

    None if Slurm makes no such cgroup. As in cgroups(7), of either version.
    """
    job = b"job_" + environ.get(b"SLURM_JOB_ID", b"")
    with contextlib.suppress(OSError), open(own, "rb") as file:
        for line in file:
            _, controllers, path = line.rstrip(b"\n").split(b":", 2)
            folders = path.split(b"/")
            place = [mounted, b"memory"] if controllers else [mounted]
            name = b"memory.oom_control" if controllers else b"memory.events"
            while job in folders and (not controllers or b"memory" in controllers.split(b",")):
                counter = b"/".join((*place, *filter(None, folders), name))
                if os.path.exists(counter):
                    return counter
                folders.pop()
    return None


def boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def spread(text: str) -> list[int]:
    """Return the numbers of a text like `0,2-3`; empty for any other text."""
    numbers: list[int] = []
    for word in filter(None, text.split(",")):
        match = re.match(r"([0-9]+)(?:-([0-9]+))?$", word.strip())
        if match is None:
            return []
        first = int(match.group(1))
        numbers.extend(range(first, int(match.group(2) or first) + 1))
    return numbers


def driver_says() -> dict[str, tuple[str, str]]:
    """Return each card's identity and name by its number, and by its identity (`nvidia-smi -L`).

    Empty if there is no nvidia-smi, or it takes too long: a faulty driver never answers.
    """
    try:
        process = subprocess.Popen(
            ["nvidia-smi", "-L"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return {}
    try:
        said = process.communicate(timeout=DRIVER_TIMEOUT)[0]
    except subprocess.TimeoutExpired:
        process.kill()  # without waiting: inside the driver, SIGKILL may have no effect
        return {}
    return parsed_listing(said.decode("utf-8", "replace"))


def parsed_listing(text: str) -> dict[str, tuple[str, str]]:
    """Parse `nvidia-smi -L`: `GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5f3c...)`, a line a card."""
    known = {}
    for number, name, uuid in re.findall(r"^GPU (\d+): (.*) \(UUID: (\S+)\)", text, re.MULTILINE):
        known[number] = known[uuid] = (uuid, name)
    return known


# ── The command ──────────────────────────────────────────────────────────────────────────────────


def filled(ticket: Ticket, grant: Grant, stack: contextlib.ExitStack) -> bytes:
    """Return the ticket's launch with the node's values in the place of its marks.

    INVARIANT: the values are plain (`plain`): harmless in any quotes of a shell and in a pattern of
    file names; but for the name of the counter, a field of its own. Ports stay reserved until
    `stack` is closed.
    """
    message = ticket.message
    for place, mark in enumerate(ticket.marks):
        if mark and mark in message:
            message = message.replace(mark, value_of(SLOTS[place], grant, stack))
    return message


def value_of(name: str, grant: Grant, stack: contextlib.ExitStack) -> bytes:
    if name == "gpu_index":
        return ",".join(str(card["index"]) for card in grant.gpus).encode()
    if name == "gpu_uuid":
        return ",".join(card["uuid"] for card in grant.gpus).encode()
    if name == "card":
        return "+".join(card["uuid"] for card in grant.gpus).replace("/", "_").encode()
    if name == "threads":
        return b"%d" % cpus_granted(grant.environ)
    if name == "mask":  # for a container, as Slurm spells it
        return ",".join(map(plain, grant.visible)).encode()
    if name == "oom_kills":
        return memory_counter(grant.environ) or b""
    return b"%d" % port_for(stack)


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
        lease = stack.enter_context(reserve_port())
    except OSError as problem:
        raise Problem(str(problem)) from None
    return lease.port
