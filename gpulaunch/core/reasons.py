"""Reasons: why a job waits or is over, why an attempt, a card or a run is as it is. Values only.

`gpulaunch.wording` makes sentences of them, for people; nothing branches on a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gpulaunch.core.causes import Because, EndCause, Quoted
from gpulaunch.core.model import SPARSE, JobState, Outcome, RunState

# ── How an attempt ended ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """An attempt's outcome. `evidence` is the line that shows the failure, empty for none.

    `service`: the job is a service, so that any end by itself is too early.
    """

    outcome: Outcome
    evidence: str = field(default="", metadata=SPARSE)
    service: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class RetryGranted:
    """The attempt failed; the retry that follows is number `retry` of `of`."""

    end: AttemptEnd
    retry: int
    of: int


Pointless: TypeAlias = Literal["same", "no_other_kind", "no_larger"]


@dataclass(frozen=True, slots=True)
class RetryPointless:
    """The attempt failed, and would again: on the same card (`same`), on any that the run has."""

    end: AttemptEnd
    why: Pointless


@dataclass(frozen=True, slots=True)
class LostRepeatedly:
    """The attempt was lost, or lost its card, as the ones just before it: `times` in all."""

    end: AttemptEnd
    times: int


@dataclass(frozen=True, slots=True)
class ServiceOver:
    """A service that the job needs has come to this state, by this end of its attempt, if any.

    `own`: how the job's own attempt had failed, None where it had not.
    """

    service: str
    state: JobState
    end: AttemptEnd | None = None
    own: AttemptEnd | None = field(default=None, metadata=SPARSE)


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LostByJobs:
    """Several jobs report that they lost the card, though the driver does not."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobsFailedThere:
    """Jobs failed on the card in a row, of which `cleared` succeeded on other cards."""

    jobs: tuple[str, ...]
    cleared: int


CardReason: TypeAlias = Because | Quoted | LostByJobs | JobsFailedThere


@dataclass(frozen=True, slots=True)
class CardAside:
    """A card (by its index) that the run has set aside, and why."""

    gpu: int
    why: CardReason


# ── Why a job is not run, or runs again ─────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class NeedUnmet:
    """A job that this one needs came to no success, or is not in the file, or is left out."""

    job: str
    state: Literal["failed", "cancelled", "skipped", "unknown", "excluded"]


@dataclass(frozen=True, slots=True)
class NeededBy:
    """A job that waits needs this service again."""

    job: str


@dataclass(frozen=True, slots=True)
class TokensShort:
    """The job uses more of a token than there are."""

    token: str
    wanted: int
    limit: int


@dataclass(frozen=True, slots=True)
class CardsShort:
    """The job needs more cards at once than the run has; `aside`: cards that were set aside.

    `memory`: bytes that each card needs, where it is that which too few have; else 0.
    """

    wanted: int
    available: int
    memory: int = field(default=0, metadata=SPARSE)
    aside: tuple[CardAside, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class CardsCapped:
    """The job needs more cards at once than the run may hold."""

    wanted: int
    limit: int


@dataclass(frozen=True, slots=True)
class FailedOnCard:
    """The job failed on this card (by its index), as others did; it is tried on another one.

    `jobs`: how many failed there in a row; 0: the card was set aside.
    """

    gpu: int
    jobs: int


# ── The run ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FailedAlike:
    """So many jobs in a row failed within seconds of their start, all by this end."""

    jobs: int
    seconds: float
    end: AttemptEnd


@dataclass(frozen=True, slots=True)
class TooManyFailed:
    """The last job that may fail has: `limit` of them; None: the first (`--fail-fast`)."""

    job: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class SomeFailed:
    """This job and `more` others did not succeed."""

    job: str
    more: int


@dataclass(frozen=True, slots=True)
class RunOver:
    """The run has come to this state, and nothing says why."""

    state: RunState


@dataclass(frozen=True, slots=True)
class LeftWaiting:
    """So many waiting jobs were not among those to be run."""

    jobs: int


@dataclass(frozen=True, slots=True)
class LeftInQueue:
    """The run ended while a cluster still had so many attempts, whose ends it could not learn."""

    attempts: int


PlacementChange: TypeAlias = Literal["other_card", "other_kind", "more_memory", "alone"]
"""What will differ in the next attempt of a job."""
Impossible: TypeAlias = TokensShort | CardsShort | CardsCapped
RunReason: TypeAlias = (
    EndCause | FailedAlike | TooManyFailed | SomeFailed | LeftWaiting | LeftInQueue | RunOver
)


# ── Why a job waits ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class InQueue:
    """The engine has the job's attempt in its queue. `id` is for people, empty while unknown.

    `needs`: jobs under way that must succeed before it starts.
    """

    id: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NothingStarts:
    """The run starts no job: it is `paused`, or ends."""

    why: RunReason
    paused: bool = False


@dataclass(frozen=True, slots=True)
class RetryIn:
    """The job is tried again after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NeedsReady:
    """The job waits for these services to be ready."""

    services: tuple[str, ...]


Nearness: TypeAlias = Literal["running", "queued", "waiting"]
"""How near to its end a job is that others wait for."""


@dataclass(frozen=True, slots=True)
class NeedsEnd:
    """The job waits for the end of this job, the nearest to it, and of `more` others.

    `after`: the others may end in any way.
    """

    job: str
    state: Nearness
    more: int = 0
    after: bool = False


@dataclass(frozen=True, slots=True)
class NeedsStart:
    """The job waits until this one has started, for which the run makes room."""

    job: str


@dataclass(frozen=True, slots=True)
class NeedsOthers:
    """So many jobs wait before this one."""

    jobs: int


@dataclass(frozen=True, slots=True)
class NeedsToken:
    """The job waits for a token, of which `used` of `limit` are taken by these jobs."""

    token: str
    used: int
    limit: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NeedsCpus:
    """The job waits for CPUs, of which `used` of `limit` are taken."""

    cpus: int
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class NeedsTurn:
    """The engine's queue holds as many attempts as it may."""

    attempts: int


@dataclass(frozen=True, slots=True)
class NeedsShare:
    """The run may take `limit` cards at once, and so many are taken, or queued for."""

    cards: int
    limit: int
    taken: int


@dataclass(frozen=True, slots=True)
class CardBusy:
    """Attempts of these jobs are on the card, or each on one of the cards, for so many seconds."""

    jobs: tuple[str, ...]
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class CardIs:
    """What keeps the card from the job, or that it is free."""

    state: Literal["given_back", "draining", "asking", "avoided", "free"]


@dataclass(frozen=True, slots=True)
class CardKept:
    """The card is kept by the idle worker of this job, or reserved for this job."""

    job: str
    worker: bool


@dataclass(frozen=True, slots=True)
class CardAway:
    """The card is not to be had: another launcher holds it, others use it, or it was set aside."""

    state: Literal["elsewhere", "occupied", "aside"]
    why: CardReason | None


@dataclass(frozen=True, slots=True)
class CardFree:
    """The card has so many bytes free."""

    memory: int


CardNow: TypeAlias = CardBusy | CardIs | CardKept | CardAway | CardFree


@dataclass(frozen=True, slots=True)
class CardsAre:
    """Cards (by their indices) that are in the same state."""

    gpus: tuple[int, ...]
    state: CardNow


@dataclass(frozen=True, slots=True)
class NeedsCards:
    """The job waits for so many cards, with so many bytes free on each; 0: any.

    `limit`: cards that the run may hold at once, if it holds them; else 0.
    """

    wanted: int
    memory: int
    cards: tuple[CardsAre, ...]
    limit: int = 0


WaitReason: TypeAlias = (
    Because
    | Quoted
    | InQueue
    | NothingStarts
    | RetryIn
    | NeedsReady
    | NeedsEnd
    | NeedsStart
    | NeedsOthers
    | NeedsToken
    | NeedsCpus
    | NeedsTurn
    | NeedsShare
    | NeedsCards
)


@dataclass(frozen=True, slots=True)
class NeverStarts:
    """Nothing that the run still does lets the job start: it would wait in this way for ever."""

    why: WaitReason


JobReason: TypeAlias = (
    Because
    | Quoted
    | AttemptEnd
    | RetryGranted
    | RetryPointless
    | LostRepeatedly
    | ServiceOver
    | NeedUnmet
    | NeededBy
    | TokensShort
    | CardsShort
    | CardsCapped
    | FailedOnCard
    | InQueue
    | NeverStarts
)
"""Why a job is over, or waits again."""
