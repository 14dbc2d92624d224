"""What one call of `Run.handle` returns: facts, applied to the ledger at once, and instructions.

INVARIANT: the ledger changes by facts that are emitted here, and by nothing else.
"""

from __future__ import annotations

import zlib

from msgspec import Struct, field

from gpulaunch.core.events import Instruction
from gpulaunch.core.facts import Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant

_NEVER = Instant(0.0, 0.0)


class Effects(Struct):
    """The facts and instructions of the event in hand, in order. `now` is that event's time."""

    ledger: Ledger
    now: Instant = _NEVER
    out: list[Fact | Instruction] = field(default_factory=list)

    def fact(self, fact: Fact) -> None:
        self.ledger.apply(fact, self.now)
        self.out.append(fact)

    def emit(self, instruction: Instruction) -> None:
        self.out.append(instruction)

    def take(self) -> list[Fact | Instruction]:
        out, self.out = self.out, []
        return out

    def jitter(self, about: str) -> float:
        """Return 0 to 1, this run's own number for each `about`: runs then do not act in step."""
        own = f"{self.ledger.opening.run} {self.ledger.opening.pid} {about}"
        return zlib.crc32(own.encode()) / 2**32
