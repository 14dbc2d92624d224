"""How often the sampler looks: so often that its looks cost less than a share of one core."""

from __future__ import annotations

import time

from gpulaunch.farside.proc import stat_fields
from gpulaunch.sampler.keeper import cpu_of

PERIOD, LONGEST_PERIOD = 1.0, 10.0
SHARE = 0.008
MEASURED = 10  # looks after which the cost is reckoned anew


class SamplingPace:
    """How long to wait from look to look, from what the looks have cost: ours and the helper's."""

    def __init__(self) -> None:
        self.period = PERIOD
        self._looks = 0
        self._before: tuple[int | None, float] | None = None

    def spent(self, helper: int | None) -> None:
        """Count a look's cost, but not that of starting a helper, which does not come again."""
        self._looks += 1
        if self._before is not None and self._before[0] != helper:
            self._before = None
        if self._before is None:
            self._looks, self._before = 0, (helper, time.process_time() + _cpu_of(helper))
        elif self._looks == MEASURED:
            total = time.process_time() + _cpu_of(helper)
            cost = (total - self._before[1]) / MEASURED
            self.period = min(LONGEST_PERIOD, max(PERIOD, cost / SHARE))
            self._looks, self._before = 0, (helper, total)


def _cpu_of(pid: int | None) -> float:
    try:
        return cpu_of(stat_fields(str(pid)))
    except OSError:
        return 0.0
