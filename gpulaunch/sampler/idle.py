"""For how long an attempt has held its cards' memory and computed nothing: a fold over its samples.

Pure. Only seconds that samples stand for count: not those in which nobody looked (the sampler was
restarted or stopped, the machine slept), the driver did not answer, or the attempt was stopped.
After a minute of such seconds in a row the count begins anew: it may have computed meanwhile. So
it does with anything that the attempt computes, and where it holds no memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

MOST_UNKNOWN = 60.0
"""Seconds in a row of which nothing is known, after which idle time is counted anew."""


class IdleSample(Struct, frozen=True):
    """One look at an attempt. It stands for `span` seconds, before which nobody looked for `gap`.

    `memory`: bytes that its processes hold on its cards, None: not told. `work`: of each of its
    cards, what they did there, as `work.work_of` says. `stopped`: all its processes are (Ctrl-Z).
    """

    span: float
    gap: float
    memory: int | None
    work: Sequence[float | None]
    stopped: bool = False

    @property
    def computes(self) -> bool | None:
        """Whether it computes on any of its cards; None: it may."""
        if any(self.work):
            return True
        return None if None in self.work or not self.work else False

    @property
    def why(self) -> str:
        """What the driver does not tell, in words, where it cannot be told."""
        if self.memory is None:
            return "the driver does not say what its processes hold"
        return "the driver does not say how much its processes compute"


class IdleWatch(Struct, frozen=True):
    """`idle`: the seconds so far, `unknown`: those since the last sample that says something.

    `judged`: some sample said whether it computes; `lived`: seconds of all its samples.
    """

    idle: float = 0.0
    unknown: float = 0.0
    judged: bool = False
    lived: float = 0.0

    def after(self, sample: IdleSample) -> IdleWatch:
        """Return the count after one more sample."""
        unknown = self.unknown + sample.gap
        lived, computes = self.lived + sample.span, sample.computes
        if computes or sample.memory == 0:
            return IdleWatch(0.0, 0.0, True, lived)
        told = computes is not None and sample.memory is not None
        if sample.stopped or not told:
            unknown += sample.span
        before = self.idle if unknown <= MOST_UNKNOWN else 0.0
        if sample.stopped or not told:
            return IdleWatch(before, unknown, self.judged or told, lived)
        return replace(self, idle=before + sample.span, unknown=0.0, judged=True, lived=lived)
