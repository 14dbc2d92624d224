"""An attempt's processes at one moment: who they are, what they use, and whether they are in place.

Parents are read before their children: a child that ends in between is missed once, and counted
with its parent from the next look on, but never counted twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import psutil
from msgspec import Struct, field

from gpulaunch.containers.removing import process_of
from gpulaunch.core.model import AttemptId, PinState
from gpulaunch.observe.sampler.driver import DriverSample
from gpulaunch.observe.sampler.keeper import Keeper, spent_since

EVERY_THREAD = 5
"""At each so many-th look every thread is asked for children, else those that had some before."""


class ProcessTree(Struct, frozen=True):
    """`processes`: when each PID was created, which makes it out among those of its number.

    `cpu_seconds` are the attempt's since it began, those of processes that ended included.
    `stopped`: the PIDs of those that are stopped (Ctrl-Z, a debugger).
    """

    processes: dict[int, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    resident: int = 0
    stopped: frozenset[int] = frozenset()


_STOPPED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})


class Trees:
    """Keeps psutil's handles from look to look: making one costs three times its use."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._forked: dict[int, tuple[str, ...]] = {}
        self._looks = 0

    def look(
        self, keepers: Iterable[Keeper], containers: Mapping[Keeper, str] = MappingProxyType({})
    ) -> dict[Keeper, ProcessTree]:
        """Return a look at each keeper's tree; none of keepers that are gone.

        `containers`: the files that tell the first process of an attempt's container: what runs in
        there belongs to the tree.
        """
        self._looks += 1
        found = {
            keeper: tree
            for keeper in keepers
            if (tree := self._tree(keeper, containers.get(keeper, ""))) is not None
        }
        alive = {pid for tree in found.values() for pid in tree.processes}
        self._known = {pid: process for pid, process in self._known.items() if pid in alive}
        self._forked = {pid: tids for pid, tids in self._forked.items() if pid in alive}
        return found

    def _tree(self, keeper: Keeper, container: str) -> ProcessTree | None:
        cpu = spent_since(keeper)
        if cpu is None:
            return None
        processes: dict[int, float] = {}
        resident, stopped = 0, set()
        below = self._children(keeper.pid)
        if container and (first := process_of(container)) is not None:
            below.append(first)
        while below:
            pid = below.pop()
            if pid in processes:
                continue  # of a container whose processes are descendants as well
            with suppress(psutil.Error, OSError):
                process = self._process(pid)
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
                    if process.status() in _STOPPED:
                        stopped.add(pid)
                processes[pid] = process.create_time()
                cpu += times.user + times.system + times.children_user + times.children_system
                resident += memory.rss
                below += self._children(pid)
        return ProcessTree(processes, max(0.0, cpu), resident, frozenset(stopped))

    def _process(self, pid: int) -> psutil.Process:
        """Return a process by its PID. Raises psutil.NoSuchProcess."""
        known = self._known.get(pid)
        if known is None or not known.is_running():  # its number may be another's by now
            known = self._known[pid] = psutil.Process(pid)
        return known

    def _children(self, pid: int) -> list[int]:
        """Return a process's children, none of a gone one. The kernel lists them by thread."""
        try:
            if self._looks % EVERY_THREAD == 0 or pid not in self._forked:
                threads: Sequence[str] = os.listdir(f"/proc/{pid}/task")
            else:
                threads = self._forked[pid]
            by_thread = {tid: _children_of(pid, tid) for tid in threads}
        except FileNotFoundError:
            return self._children_elsewise(pid)
        except OSError:
            return []
        forked = (tid for tid, children in by_thread.items() if children)
        self._forked[pid] = tuple(dict.fromkeys([str(pid), *forked]))
        return [child for children in by_thread.values() for child in children]

    def _children_elsewise(self, pid: int) -> list[int]:
        """Return a process's children where a thread has ended, or the kernel has no such lists."""
        self._forked.pop(pid, None)
        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []


def _children_of(pid: int, tid: str) -> list[int]:
    with open(f"/proc/{pid}/task/{tid}/children", "rb") as file:
        return [int(number) for number in file.read().split()]


# ── Pins ──────────────────────────────────────────────────────────────────────────────────────────

FOREIGN = "the driver's PIDs are those of another PID namespace (a container's are its own)"


class Pin(Struct, frozen=True):
    """`gpu` and `pid`: where what is misplaced is, and what."""

    state: PinState
    why: str = ""
    gpu: str = ""
    pid: int = 0


class Pins:
    """Are an attempt's processes on its own cards and no other? Proved, disproved, or not told.

    `host`: our PIDs are the driver's. `same`: whether a PID is the one that the driver means: a
    look into /proc, all else is pure. The driver's PIDs are the host's: inside a PID namespace of
    one's own the same number may be anybody, so nothing is ever disproved there, and proved only
    where each PID is seen to be the one (`gpus.probe.is_the_same_here`).
    """

    def __init__(self, host: bool, same: Callable[[int], bool]) -> None:
        self.host = host
        self._same = same
        self._believed: dict[tuple[int, float], bool] = {}
        self._strange: dict[AttemptId, set[tuple[str, int, float]]] = {}

    @property
    def suspects(self) -> bool:
        """Something was seen where it should not be; the next look is to be a whole one."""
        return bool(self._strange)

    def known(self, processes: Mapping[int, float]) -> dict[int, float]:
        """Return the processes that go by the same number at the driver's."""
        if self.host:
            return dict(processes)
        return {pid: created for pid, created in processes.items() if self._is_same(pid, created)}

    def judge(
        self,
        attempt: AttemptId,
        own: frozenset[str],
        processes: Mapping[int, float],
        seen: DriverSample,
    ) -> Pin | None:
        """Return what is to be said of its place; None: nothing yet. `own`: its cards' UUIDs.

        Misplaced is what two looks in a row saw in the same wrong place, the same process each
        time: one alone may have met a number that had just passed from one process to another.
        """
        known = self.known(processes)
        where = {
            (gpu, pid, known[pid])
            for gpu, pids in seen.pids.items()
            for pid in pids
            if pid in known
        }
        strange = {found for found in where if found[0] not in own}
        again = strange & self._strange.get(attempt, set())
        self._strange.pop(attempt, None)
        if strange and self.host:
            self._strange[attempt] = strange
            if not again:
                return None
            gpu, pid, _ = min(again)
            return Pin("misplaced", gpu=gpu, pid=pid)
        if not self.host and (strange or not where):
            return Pin("unverified", FOREIGN) if own else None
        if not own or not seen.whole:
            return None
        if seen.silent and (where or own & seen.silent.keys()):
            return Pin("unverified", next(iter(seen.silent.values())))
        return Pin("verified") if where else None

    def forget(self, attempt: AttemptId) -> None:
        self._strange.pop(attempt, None)

    def tidy(self, alive: set[tuple[int, float]]) -> None:
        """Forget all processes but these, which are left."""
        self._believed = {who: same for who, same in self._believed.items() if who in alive}

    def _is_same(self, pid: int, created: float) -> bool:
        """Tell whether a process is the one that was seen: once it was, it stays so."""
        if not self._believed.get((pid, created)):
            self._believed[pid, created] = self._same(pid)
        return self._believed[pid, created]
