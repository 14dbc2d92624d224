"""Samples and what they come to, as values. Memory in bytes, times in seconds since 1970 (UTC).

None stands for what was not measured: on pretend cards all of a card's, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from gpulaunch.core.model import AttemptId, PinState

SAMPLE_MAX_AGE = 15.0
"""Seconds after which a sample no longer says what a card does: its driver may hang."""


class CardSample(Struct, frozen=True):
    """One card (UUID) at one moment. `utilization` in per cent, `temperature` in degrees Celsius,
    `power` in watts; `throttled` names why its clocks are held down. `energy`: its counter of
    joules, since the driver was loaded."""

    gpu: str
    at: float
    utilization: int | None = None
    memory: int | None = None
    power: float | None = None
    temperature: int | None = None
    throttled: tuple[str, ...] = ()
    energy: float | None = None


class AttemptSample(Struct, frozen=True):
    """An attempt's whole process tree at one moment, and its cards' means and sums.

    `cpu_seconds` count from its start, as `seconds` do; it stood as it is for `span` seconds.
    `gpus`: how many cards it has, None on pretend ones. `utilization` is the mean over them, and
    `card_memory` what is used of them, by whomever.
    """

    attempt: AttemptId
    at: float
    gpu_memory: int | None
    cpu_seconds: float | None
    resident: int | None
    gpus: int | None
    seconds: float
    span: float
    utilization: float | None = None
    card_memory: int | None = None


class AttemptUse(Struct, frozen=True):
    """What an attempt came to, or has so far. Seconds; utilization in per cent, of its cards.

    `gpu_seconds`: seconds times cards. `*_gpu_memory` is that of its own processes, and
    `peak_card_memory` what was used of its cards by whomever: known where no PID can be matched.
    `cpu_seconds` of the whole tree, processes that have ended included. `peak_resident` adds the
    resident sets up: what several processes share counts for each of them. `energy`: joules of its
    cards while it ran, its own share where others were there. `seconds`: how long it ran; in `told`
    of them the driver said which processes were on its cards.
    """

    attempt: AttemptId
    peak_gpu_memory: int | None = None
    mean_gpu_memory: int | None = None
    peak_gpu_utilization: float | None = None
    mean_gpu_utilization: float | None = None
    gpu_seconds: float | None = None
    cpu_seconds: float | None = None
    peak_resident: int | None = None
    peak_card_memory: int | None = None
    energy: float | None = None
    seconds: float = 0.0
    told: float = 0.0


class Measured(Struct, frozen=True):
    """What is known of a run's attempts; `pins` with why, in words. Those not in it: nothing.

    `seen`: when the run was last seen alive, in seconds since 1970 (UTC). `energy`: the joules of
    all its attempts, also of those that are not in `uses`. `names_processes`: the driver has named
    a process of it.
    """

    uses: Mapping[AttemptId, AttemptUse] = field(default_factory=dict)
    pins: Mapping[AttemptId, tuple[PinState, str]] = field(default_factory=dict)
    seen: float | None = None
    energy: float | None = None
    names_processes: bool = False


NOTHING = Measured()
