"""What to execute, as plain values. Nothing here touches the system."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpulaunch.base.errors import UsageError
from gpulaunch.core.model import WarnPolicy


@dataclass(frozen=True, slots=True)
class Task:
    """An item for a worker.

    A worker that stayed after an item of the same `key` takes it; else the command's program is
    started, which is a worker's own side (`agent/worker`).

    `env` and `values` differ from item to item: its variables, and the item itself. The worker is
    replaced after `items` items, or when it holds more than `memory` bytes. `load_timeout`: seconds
    until the worker is ready for its first item; None: as long as an item may take.
    """

    key: str
    values: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    items: int | None = None
    memory: int | None = None
    load_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class NodeSlots:
    """Marks in a command for values that only its node will know.

    They may be anywhere in `argv`, the values of `env_set` and `outputs`. `gpu_index` and
    `gpu_uuid` stand for the cards' numbers and identities, comma-separated, `card` for both in a
    file's name; they are empty where `gpus`, the number of cards, is 0. `port` and `master_port`
    are free ports; `threads` is how many CPUs were granted; `mask` is the mask as Slurm spells it,
    empty without cards.
    """

    gpus: int
    gpu_index: str
    gpu_uuid: str
    card: str
    port: str
    master_port: str
    threads: str
    mask: str

    @classmethod
    def fresh(cls, gpus: int) -> NodeSlots:
        """Return marks that no text holds by chance, and that need no quotes anywhere."""
        token = os.urandom(8).hex()

        def mark(name: str) -> str:
            return f"@gpulaunch:{name}:{token}@"

        of_cards = ("gpu_index", "gpu_uuid", "card", "mask")
        index, uuid, card, mask = map(mark, of_cards) if gpus else ("", "", "", "")
        ports = mark("port"), mark("master_port")
        return cls(gpus, index, uuid, card, *ports, mark("threads"), mask)


@dataclass(frozen=True, slots=True)
class Main:
    """What makes a job of a preload server look, to others and to itself, as if it was executed.

    `argv` is its whole command line, the interpreter first; `args` is the part after the script.
    `name` is the process's name. `env`: the variables that the skipped shell would have set.
    """

    argv: tuple[str, ...]
    args: tuple[str, ...] = ()
    name: str = "python"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Command:
    """One attempt's program and its limits.

    The environment is the spawner's, less `env_unset`, plus `env_set`; it is never shown. `log`
    and `end` are absolute paths of files that do not exist yet; with a `slot`, `end` is a file of
    many ends, which may exist, and the slot is free. `timeout` (from the start), `idle_timeout`
    (silence of the log) and `grace` are seconds; `warn` comes before the timeout. `outputs` are
    absolute paths or glob patterns, looked at after an exit with one of `success_codes`; of
    `kept_outputs` the age does not matter. A path that exists stands for itself, whatever
    characters it has, so values put into a pattern want `glob.escape`. `hidden` are paths below
    /dev that the job does not see, in namespaces of its own; None: no namespaces. `cgroup`: the
    list of processes of the one that the program enters before it begins; empty: it stays where it
    is. `cpus`: on which it runs; none: on those of the spawner. `task`: the program is a worker,
    and this is its item. `main`: on a pair of a preload server the job goes on in the server's
    interpreter instead of executing `argv`.
    """

    attempt: str
    argv: tuple[str, ...]
    log: str
    end: str
    slot: int | None = None
    cwd: str = "/"
    env_set: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_unset: tuple[str, ...] = ()
    timeout: float | None = None
    warn: WarnPolicy | None = None
    idle_timeout: float | None = None
    grace: float = 10.0
    outputs: tuple[str, ...] = ()
    kept_outputs: tuple[str, ...] = ()
    success_codes: frozenset[int] = frozenset({0})
    hidden: tuple[str, ...] | None = None
    cgroup: str = ""
    cpus: tuple[int, ...] = ()
    task: Task | None = None
    main: Main | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise UsageError(f"{self.attempt}: expected a program to run, found an empty list")
        words = (*self.argv, *self.env_set, *self.env_set.values(), *self.env_unset, self.cwd)
        words += (
            self.log,
            self.end,
            self.cgroup,
            *self.outputs,
            *self.kept_outputs,
            *(self.hidden or ()),
        )
        if "\0" in "".join(words):
            raise UsageError(f"{self.attempt}: a NUL character cannot be passed to a program")
        if "" in self.env_set or "=" in "".join(self.env_set):
            raise UsageError(f"{self.attempt}: a variable's name is empty or holds a = sign")
        for path in self.hidden or ():
            if not path.startswith("/dev/"):
                raise UsageError(f"{self.attempt}: only what is below /dev can be hidden: {path}")
