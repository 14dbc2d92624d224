"""Attempts that were withdrawn before they began: cancelled in Slurm, then over.

begin ─▶ scancel ─▶ answered ─▶ over
            └─ no answer in time, or an outage ─▶ over all the same; cancelled once Slurm answers

Whatever becomes of such a job in Slurm's queue, no node starts its attempt any more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import commands
from gpulaunch.engines.slurm.attempt import QueueSnapshot, SlurmAttempt, in_parts, ranges
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.loop import Loop

WITHDRAWAL_TIMEOUT = 5.0
"""Seconds to wait for scancel's answer before an attempt is over without it."""
MAX_NUMBERS_SHOWN = 8
"""Slurm's job numbers, and ranges of them, in a line for people."""


class Withdrawals:
    """The attempts that were withdrawn and that Slurm may still have.

    `over` is called once with each attempt; `away` with the reason when Slurm does not answer.
    """

    def __init__(
        self,
        slurm: commands.Slurm,
        loop: Loop,
        over: Callable[[SlurmAttempt], None],
        away: Callable[[str], None],
    ) -> None:
        self._slurm = slurm
        self._loop = loop
        self._over = over
        self._away = away
        self._waiting: dict[AttemptId, SlurmAttempt] = {}
        self._untold: dict[AttemptId, SlurmAttempt] = {}
        self._count = count()

    @property
    def any_untold(self) -> bool:
        """True while Slurm may still have a withdrawn attempt."""
        return bool(self._untold)

    def get(self, attempt: AttemptId) -> SlurmAttempt | None:
        """Return a withdrawn attempt that Slurm may still have; else None."""
        return self._untold.get(attempt)

    def begin(self, some: Sequence[SlurmAttempt], away: bool) -> None:
        """Cancel these attempts in Slurm. `away`: an outage is known, and `let_go` follows."""
        for held in some:
            self._waiting[held.attempt] = self._untold[held.attempt] = held
        if not away:
            self._tell(some)
        late = f"no answer within {WITHDRAWAL_TIMEOUT:g} s"
        self._loop.call_after(
            f"slurm:leaving {next(self._count)}",
            WITHDRAWAL_TIMEOUT,
            lambda: self._away(late) if any(h.attempt in self._waiting for h in some) else None,
        )

    def let_go(self) -> None:
        """End all attempts that wait for Slurm's answer, without it."""
        some, self._waiting = self._waiting, {}
        for held in some.values():
            self._over(held)

    def found(self, some: Iterable[SlurmAttempt]) -> None:
        """Add attempts that are already over while Slurm still has their jobs."""
        self._untold.update({held.attempt: held for held in some})

    def numbered(self, some: Sequence[SlurmAttempt]) -> None:
        """Cancel attempts that Slurm has just given a number."""
        self._tell(some)

    def told(self, some: Sequence[SlurmAttempt]) -> None:
        """Forget attempts that Slurm will not start, and end those that waited for that."""
        for held in some:
            self._untold.pop(held.attempt, None)
            if self._waiting.pop(held.attempt, None):
                self._over(held)

    def look(
        self,
        rows: Sequence[QueueRow],
        asked_at: float,
        on_its_way: Callable[[AttemptId], bool],
        whole: bool = True,
    ) -> None:
        """Cancel again what the queue, read at that monotonic time, still shows of them.

        `whole`: Slurm does not have a job that `rows` lack.
        """
        sight = QueueSnapshot(rows)
        there = []
        for held in list(self._untold.values()):
            if not held.id:
                if whole and not on_its_way(held.attempt):
                    self.told([held])
            elif held.known_at < asked_at:
                held.row = sight.row_of(held)
                if held.row is not None and held.row.phase != "over":
                    there.append(held)
                elif whole:
                    self.told([held])
        self._tell(there)

    def removed_by(self) -> str:
        """Return the commands by which a person can cancel those that wait for Slurm's answer."""
        waiting = self._waiting.values()
        words = [term for term, _ in ranges(held.id for held in waiting if held.id)]
        if len(words) > MAX_NUMBERS_SHOWN:
            words[MAX_NUMBERS_SHOWN:] = ["..."]
        titles = dict.fromkeys(held.title for held in waiting if not held.id and held.title)
        lines = [f"scancel {' '.join(words)}"] if words else []
        return ", ".join([*lines, *(f"scancel --name={shlex.quote(title)}" for title in titles)])

    def _tell(self, some: Sequence[SlurmAttempt]) -> None:
        for part in in_parts([held for held in some if held.id and held.reachable]):

            def answered(
                answer: commands.CancelAnswer, part: Sequence[SlurmAttempt] = part
            ) -> None:
                if isinstance(answer, commands.Unreachable):
                    self._away(answer.text)
                else:
                    self._answered(part)

            self._slurm.cancel([held.id for held in part], answered)

    def _answered(self, some: Sequence[SlurmAttempt]) -> None:
        """End attempts that scancel has taken. `look` cancels again until the queue shows it."""
        for held in some:
            if self._waiting.pop(held.attempt, None):
                self._over(held)
