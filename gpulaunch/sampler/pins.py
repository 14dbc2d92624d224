"""Are an attempt's processes on its own cards and no other? Proved, disproved, or not to be told.

Pure but for one look into /proc, which it is handed. The driver's PIDs are the host's: inside a
PID namespace of one's own the same number may be anybody, so that nothing is ever disproved there,
and proved only where each PID is seen to be the one (`gpus.probe.is_the_same_here`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from gpulaunch.core.model import AttemptId
from gpulaunch.metrics.model import PinState
from gpulaunch.sampler.driver import DriverSample

FOREIGN = "the driver's PIDs are those of another PID namespace (a container's are its own)"


class Pin(Struct, frozen=True):
    """`gpu` and `pid`: where what is misplaced is, and what."""

    state: PinState
    why: str = ""
    gpu: str = ""
    pid: int = 0


class Pins:
    """`host`: our PIDs are the driver's. `same`: whether a PID is the one that the driver means."""

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
