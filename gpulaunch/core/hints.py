"""Hints: what a person can do about a failure, as values; `diagnose.failure.advice` words them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gpulaunch.core.causes import Quoted


@dataclass(frozen=True, slots=True)
class Hint:
    """Advice that is known by name: a failure class, or a name of `diagnose.failure.advice`."""

    name: str


@dataclass(frozen=True, slots=True)
class DisksFull:
    """File systems, by a path on each, that have no room."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that a card's memory ran out of; None where the message does not say.

    `others`: of other processes, with their PIDs where these are known.
    """

    asked: int | None = None
    total: int | None = None
    own: int | None = None
    others: int | None = None
    pids: tuple[int, ...] = ()


Advice: TypeAlias = tuple[Hint | DisksFull | MemoryUse | Quoted, ...]
