"""What the report's page says, as plain values: text is visible, nothing of it is markup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpulaunch.core.model import AttemptId
from gpulaunch.metrics.model import AttemptUse
from gpulaunch.report.curves import Curve
from gpulaunch.report.fold import Period
from gpulaunch.report.groups import Fit
from gpulaunch.report.idle import Cause
from gpulaunch.report.wording import percent


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of the head, with what it is and what else belongs to it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A cause's share of a card's time (0 to 1), as a number and in words."""

    cause: Cause
    seconds: float
    share: float

    @property
    def said(self) -> str:
        return percent(self.share)


@dataclass(frozen=True, slots=True)
class CardRow:
    """One card's time; `parts` are of the causes that are shown, in their order."""

    name: str
    model: str
    parts: tuple[Part, ...]

    def part(self, cause: Cause) -> Part | None:
        """None where it took no time."""
        return next((part for part in self.parts if part.cause == cause), None)


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job of which an attempt failed. `log` is its address, None where there is none."""

    name: str
    attempt: int
    cards: str
    seconds: float
    how: str
    evidence: str
    lines: tuple[str, ...]
    log: str | None
    mended: bool


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """All of one class: `failed` jobs in the end, `mended` ones that came through afterwards."""

    title: str
    kind: str
    advice: str
    failed: int
    mended: int
    shown: tuple[FailedJob, ...]

    @property
    def more(self) -> int:
        return self.failed + self.mended - len(self.shown)


@dataclass(frozen=True, slots=True)
class Slow:
    """`part` of the slowest's time (0 to 1); `times` as long as the median of its group, None where
    too few have succeeded."""

    name: str
    seconds: float
    part: float
    cards: str
    state: str
    memory: int | None
    times: float | None
    group: str


@dataclass(frozen=True, slots=True)
class RemarkLine:
    """A remark with its moment, seconds since 1970 (UTC)."""

    at: float
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    run: str
    state: str
    sign: str
    simulated: bool
    when: Period
    headline: tuple[str, ...]
    tiles: tuple[Tile, ...]
    causes: tuple[tuple[Cause, str, str], ...]
    cards: tuple[CardRow, ...]
    failures: tuple[FailureGroup, ...]
    skipped: tuple[tuple[str, int], ...]
    slow: tuple[Slow, ...]
    fits: tuple[Fit, ...]
    lines: tuple[RemarkLine, ...]
    more_lines: int
    measured: bool
    manifest: tuple[tuple[str, str], ...]
    next_command: str | None


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured, where it was."""

    uses: Mapping[AttemptId, AttemptUse]
    curves: Mapping[str, Curve]
