"""Merges several samples of one card or attempt into one. Pure.

A mean where the mean is what matters (utilisation, power), the highest where peaks do (memory,
temperature), all of the reasons; CPU seconds, which only grow, are those at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

from gpulaunch.metrics.model import AttemptSample, CardSample

CardRow: TypeAlias = tuple[float, float | None, int | None, float | None, int | None, str]
"""A row of `card_sample` without its card."""
AttemptRow: TypeAlias = tuple[float, int | None, float | None, int | None]
"""A row of `attempt_sample` without its attempt."""


def merge_cards(rows: Sequence[CardRow]) -> CardRow:
    at, utilization, memory, power, temperature, throttled = zip(*rows, strict=True)
    reasons = dict.fromkeys(chain.from_iterable(names.split(",") for names in throttled if names))
    return (
        math.fsum(at) / len(rows),
        _mean(utilization),
        _highest(memory),
        _mean(power),
        _highest(temperature),
        ",".join(reasons),
    )


def merge_attempts(rows: Sequence[AttemptRow]) -> AttemptRow:
    at, gpu_memory, cpu_seconds, resident = zip(*rows, strict=True)
    cpu = [seconds for seconds in cpu_seconds if seconds is not None]
    return (
        math.fsum(at) / len(rows),
        _highest(gpu_memory),
        max(cpu) if cpu else None,
        _highest(resident),
    )


def card_sample(gpu: str, row: CardRow) -> CardSample:
    at, utilization, memory, power, temperature, throttled = row
    return CardSample(
        gpu=gpu,
        at=at,
        utilization=None if utilization is None else round(utilization),
        memory=memory,
        power=power,
        temperature=temperature,
        throttled=tuple(throttled.split(",")) if throttled else (),
    )


def card_row(sample: CardSample) -> CardRow:
    return (
        sample.at,
        sample.utilization,
        sample.memory,
        sample.power,
        sample.temperature,
        ",".join(sample.throttled),
    )


def attempt_row(sample: AttemptSample) -> AttemptRow:
    return sample.at, sample.gpu_memory, sample.cpu_seconds, sample.resident


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _highest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
