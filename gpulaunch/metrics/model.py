"""Samples and what they come to, as values. Memory in bytes, times in seconds since 1970 (UTC).

None stands for what was not measured: on pretend cards all of a card's, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulaunch.core.model import AttemptId


@dataclass(frozen=True, slots=True)
class CardSample:
    """One card (UUID) at one moment. `utilization` in per cent, `temperature` in degrees Celsius,
    `power` in watts; `throttled` names why its clocks are held down."""

    gpu: str
    at: float
    utilization: int | None = None
    memory: int | None = None
    power: float | None = None
    temperature: int | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptSample:
    """An attempt's whole process tree at one moment. `cpu_seconds` counts from its start."""

    attempt: AttemptId
    at: float
    gpu_memory: int | None = None
    cpu_seconds: float | None = None
    resident: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptUse:
    """What an attempt came to. `gpu_seconds`: seconds times cards; utilization in per cent."""

    attempt: AttemptId
    peak_gpu_memory: int | None = None
    mean_gpu_memory: int | None = None
    peak_gpu_utilization: float | None = None
    mean_gpu_utilization: float | None = None
    gpu_seconds: float | None = None
    cpu_seconds: float | None = None
    peak_resident: int | None = None
