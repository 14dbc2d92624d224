"""What to execute, as a plain value. It is data only: nothing here touches the system."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpulaunch.errors import UsageError


@dataclass(frozen=True, slots=True)
class Task:
    """An item for a worker. One that stayed after an item of the same `key` takes it; else the
    command's program is started, which is a worker's own side (`serve.py`).

    `env` and `values` are what differs from item to item: variables set, and what the item is. The
    worker is replaced after `items` of them, or when it holds more than `memory` bytes.
    `load_timeout`: seconds until it is ready for its first item; None: as long as an item may take.
    """

    key: str
    values: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    items: int | None = None
    memory: int | None = None
    load_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class NodeSlots:
    """Marks that stand in a command for what only the node it will run on can tell.

    They may be anywhere in `argv`, the values of `env_set` and `outputs`. `gpu_index` and
    `gpu_uuid` stand for the cards' numbers and identities, comma-separated, `card` for both in a
    file's name; they are empty where `gpus`, the number of cards, is 0. `port` and `master_port`
    are free ports; `threads` is how many CPUs were granted.
    """

    gpus: int
    gpu_index: str
    gpu_uuid: str
    card: str
    port: str
    master_port: str
    threads: str

    @classmethod
    def fresh(cls, gpus: int) -> NodeSlots:
        """Marks that no text holds by chance, and that need no quotes anywhere."""
        token = secrets.token_hex(8)

        def mark(name: str) -> str:
            return f"@gpulaunch:{name}:{token}@"

        index, uuid, card = map(mark, ("gpu_index", "gpu_uuid", "card")) if gpus else ("", "", "")
        return cls(gpus, index, uuid, card, mark("port"), mark("master_port"), mark("threads"))


@dataclass(frozen=True, slots=True)
class Main:
    """How a program of Python shows and finds itself that goes on in a server's interpreter.

    `argv` is its whole command line, the interpreter first; `args` are what of it comes behind the
    script. `name` is the process's. `env`: what the shell that is left out would have set.
    """

    argv: tuple[str, ...]
    args: tuple[str, ...] = ()
    name: str = "python"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Command:
    """One attempt's program and its limits.

    The environment is the spawner's, less `env_unset`, plus `env_set`; it is never shown. `log`
    and `end` are absolute paths of files that do not exist yet. `timeout` (from the start),
    `idle_timeout` (silence of the log) and `grace` are seconds. `outputs` are absolute paths or
    glob patterns, looked at after an exit with one of `success_codes`; a path that exists is
    itself, whatever characters are in it, so values put into a pattern want `glob.escape`.
    `hidden` are paths below /dev that are absent for it, in namespaces of its own; None: neither.
    `task`: the program is a worker, and this is its item.
    `main` counts on a pair of a preload server alone: there it takes the place of executing `argv`.
    """

    attempt: str
    argv: tuple[str, ...]
    log: str
    end: str
    cwd: str = "/"
    env_set: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_unset: tuple[str, ...] = ()
    timeout: float | None = None
    idle_timeout: float | None = None
    grace: float = 10.0
    outputs: tuple[str, ...] = ()
    success_codes: frozenset[int] = frozenset({0})
    hidden: tuple[str, ...] | None = None
    task: Task | None = None
    main: Main | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise UsageError(f"{self.attempt}: expected a program to run, found an empty list")
        words = (*self.argv, *self.env_set, *self.env_set.values(), *self.env_unset, self.cwd)
        words += (self.log, self.end, *self.outputs, *(self.hidden or ()))
        if "\0" in "".join(words):
            raise UsageError(f"{self.attempt}: a NUL character cannot be passed to a program")
        if any(not name or "=" in name for name in self.env_set):
            raise UsageError(f"{self.attempt}: a variable's name is empty or holds a = sign")
        for path in self.hidden or ():
            if not path.startswith("/dev/"):
                raise UsageError(f"{self.attempt}: only what is below /dev can be hidden: {path}")
