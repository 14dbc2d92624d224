"""A paused run's attempts in Slurm's queue: held there, and released when the run goes on.

    pause ─▶ slurm/held, which names them ─▶ scontrol hold ┄▶ they wait, however free the cards
    go on, or a later launcher ─▶ scontrol release ─▶ slurm/held is gone

The file is written first: if this launcher dies, the next one releases the attempts that the file
names, and no others. A job that a person held in Slurm stays held.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeAlias

from gpulaunch.engines.slurm import commands
from gpulaunch.engines.slurm.attempt import MAX_NUMBERS_PER_CALL, SlurmAttempt, ranges
from gpulaunch.engines.slurm.reasons import HELD
from gpulaunch.farside.wire import coded
from gpulaunch.files import read_bytes
from gpulaunch.journal.rundir import RunDir
from gpulaunch.loop import Loop
from gpulaunch.process.nodeside import put

_Call: TypeAlias = Callable[[Sequence[str], Callable[[commands.CancelAnswer], object]], None]

GATHER_DELAY = 0.02


class QueueHold:
    """What this run holds in Slurm's queue. `attempts` returns the engine's attempts of now; `warn`
    takes one line for people."""

    def __init__(
        self,
        slurm: commands.Slurm,
        run: RunDir,
        loop: Loop,
        attempts: Callable[[], Collection[SlurmAttempt]],
        warn: Callable[[str], object],
    ) -> None:
        self._slurm = slurm
        self._run = run
        self._loop = loop
        self._attempts = attempts
        self._warn = warn
        self.on = False
        self._ours = _read(run)
        self._ever = set(self._ours)
        self._told: set[str] = set()
        self._busy = False
        self._refused = ""

    def want(self, on: bool) -> None:
        """Hold all attempts that wait, now and later, while `on`; else release them."""
        if on != self.on:
            self.on = on
            self._told.clear()
            self._loop.call_after("slurm:hold", GATHER_DELAY, self.look)

    def look(self) -> None:
        """Send the next hold or release for the attempts that no call has covered yet.

        Called after each look at the queue too. One call at a time, so that a release cannot
        overtake its hold.
        """
        if self._busy:
            return
        untold = [held for held in self._attempts() if _name(held) not in self._told]
        if self.on:
            self._hold([held for held in untold if _waits(held)])
        elif self._ours:
            self._release([held for held in untold if _name(held) in self._ours])

    def holds(self, held: SlurmAttempt) -> bool:
        return self.on and _name(held) in self._ours

    def _hold(self, waiting: Sequence[SlurmAttempt]) -> None:
        some = [held for held in waiting if _name(held) in self._ever or not _is_held(held)]
        if not some:
            return
        names = {_name(held) for held in some}
        self._ours |= names
        self._ever |= names
        if self._write():
            self._tell(self._slurm.hold, some)

    def _release(self, some: Sequence[SlurmAttempt]) -> None:
        """Release these; delete the file if none is left. One without a number waits for it."""
        known = [held for held in some if held.id]
        if known:
            self._tell(self._slurm.release, known)
        elif not some:
            self._ours.clear()
            self._write()

    def _tell(self, call: _Call, some: Sequence[SlurmAttempt]) -> None:
        """Call for as many of these as one call takes; the rest follows its answer."""
        terms = ranges(held.id for held in some)[:MAX_NUMBERS_PER_CALL]
        ids = {id for _, members in terms for id in members}
        names = {_name(held) for held in some if held.id in ids}
        self._busy, on = True, self.on

        def answered(answer: commands.CancelAnswer) -> None:
            self._busy = False
            if isinstance(answer, commands.SubmissionRefused):
                self._say(answer.text, on)
            if isinstance(answer, commands.Unreachable):
                return  # again after the next look
            if on == self.on:
                self._told |= names
            self.look()

        call([term for term, _ in terms], answered)

    def _say(self, why: str, on: bool) -> None:
        if why != self._refused:
            what = "hold back what is in its queue" if on else "release what was held back"
            self._warn(f"Slurm does not {what}: {why}")
        self._refused = why

    def _write(self) -> bool:
        """Write the file of held attempts; return True if a later launcher can rely on it."""
        try:
            if self._ours:
                put(self._run.held, json.dumps(sorted(self._ours)).encode(), durable=True)
            else:
                os.unlink(self._run.held)
        except FileNotFoundError:
            return not self._ours
        except OSError:
            return False
        return True


def _waits(held: SlurmAttempt) -> bool:
    return bool(held.id) and held.row is not None and held.row.phase == "queued"


def _is_held(held: SlurmAttempt) -> bool:
    return held.row is not None and held.row.reason in HELD


def _name(held: SlurmAttempt) -> str:
    return coded(str(held.attempt))


def _read(run: RunDir) -> set[str]:
    with suppress(OSError, ValueError, TypeError):
        return set(map(str, json.loads(read_bytes(run.held))))
    return set()
