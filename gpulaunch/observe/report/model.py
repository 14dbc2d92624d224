"""What a report is made of, and what its page says, as plain values. Pure.

The page's text is visible, and nothing of it is markup.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from gpulaunch.core.model import AttemptId
from gpulaunch.observe.metrics.model import AttemptUse
from gpulaunch.observe.report.cards import Curve, Fit, Sharing
from gpulaunch.observe.report.fold import Period, RunHistory
from gpulaunch.observe.report.idle import Cause, Span
from gpulaunch.observe.results.table import ResultTable


class ResultsOfRun(Struct, frozen=True):
    """What jobs came to, for the page. `names`: the jobs of the rows; `notes`: what is left out."""

    table: ResultTable
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


class ReportData(Struct, frozen=True):
    """What a report is made of. `spans` and `curves` by card (UUID), the latter where measured.

    `tails` are the ends of logs, of those attempts whose end is shown. `energy`: the joules of all
    attempts; `untouched`: the jobs that succeeded and were never seen on their card.
    """

    history: RunHistory
    when: Period
    spans: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    uses: Mapping[AttemptId, AttemptUse] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    tails: Mapping[AttemptId, tuple[str, ...]] = field(default_factory=dict)
    energy: float | None = None
    untouched: tuple[str, ...] = ()
    results: ResultsOfRun | None = None


class Tile(Struct, frozen=True):
    """One number of the head, with what it is and what else belongs to it."""

    label: str
    value: str
    note: str = ""


class Part(Struct, frozen=True):
    """A cause's share of a card's time (0 to 1), and its seconds."""

    cause: Cause
    seconds: float
    share: float


class CardRow(Struct, frozen=True):
    """One card's time; `parts` are of the causes that are shown, in their order."""

    name: str
    model: str
    parts: tuple[Part, ...]

    def part(self, cause: Cause) -> Part | None:
        """Return the part of a cause; None where it took no time."""
        return next((part for part in self.parts if part.cause == cause), None)


class FailedJob(Struct, frozen=True):
    """A job of which an attempt failed. `log` is its address, `keep` that of its `{{keep}}`,
    None where there is none."""

    name: str
    attempt: int
    cards: str
    seconds: float
    how: str
    evidence: str
    lines: tuple[str, ...]
    log: str | None
    keep: str | None
    mended: bool


class FailureGroup(Struct, frozen=True):
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


class Slow(Struct, frozen=True):
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


class Page(Struct, frozen=True):
    """What the template shows.

    `causes` with a short and a long wording; `remarks` as moment (UTC), card or job, text.
    """

    name: str
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
    sharing: tuple[Sharing, ...]
    remarks: tuple[tuple[float, str, str], ...]
    more_remarks: int
    results: ResultsOfRun | None
    measured: bool
    manifest: tuple[tuple[str, str], ...]
    next_command: str | None
