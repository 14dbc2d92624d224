"""Reasons: why a job waits or is over, why an attempt, a card or a run is as it is. Values only.

`gpulaunch.base.wording` makes sentences of them, for people; nothing branches on a sentence.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from gpulaunch.core.causes import Because, EndCause, Quoted
from gpulaunch.core.model import AttemptId, CardKind, ImageSource, JobState, Outcome, RunState
from gpulaunch.core.values import Seconds, Tagged, Value

# ── How an attempt ended ────────────────────────────────────────────────────────────────────────


class AttemptEnd(Tagged, frozen=True, tag="attempt_end"):
    """An attempt's outcome. `evidence` is the line that shows the failure, empty for none.

    `service`: the job is a service, so that any end by itself is too early.
    """

    outcome: Outcome
    evidence: str = ""
    service: bool = False


class RetryGranted(Tagged, frozen=True, tag="retry_granted"):
    """The attempt failed; the retry that follows is number `retry` of `of`."""

    end: AttemptEnd
    retry: int
    of: int


Pointless: TypeAlias = Literal["same", "no_other_kind", "no_larger"]


class RetryPointless(Tagged, frozen=True, tag="retry_pointless"):
    """The attempt failed, and would again: on the same card (`same`), on any that the run has."""

    end: AttemptEnd
    why: Pointless


class LostRepeatedly(Tagged, frozen=True, tag="lost_repeatedly"):
    """The attempt was lost, or lost its card, as the ones just before it: `times` in all."""

    end: AttemptEnd
    times: int


class ServiceOver(Tagged, frozen=True, tag="service_over"):
    """A service that the job needs has come to this state, by this end of its attempt, if any.

    `own`: how the job's own attempt had failed, None where it had not.
    """

    service: str
    state: JobState
    end: AttemptEnd | None = None
    own: AttemptEnd | None = None


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────


class LostByJobs(Tagged, frozen=True, tag="lost_by_jobs"):
    """Several jobs report that they lost the card, though the driver does not."""

    jobs: tuple[str, ...]


class JobsFailedThere(Tagged, frozen=True, tag="jobs_failed_there"):
    """Jobs failed on the card in a row, of which `cleared` succeeded on other cards."""

    jobs: tuple[str, ...]
    cleared: int


class OthersThere(Tagged, frozen=True, tag="others_there"):
    """Processes or memory that no launcher accounts for, as the driver names them.

    `free_below`: from so many bytes of it on, the card would count as free; 0: from none, but it
    could be shared.
    """

    by: str
    free_below: int = 0


CardReason: TypeAlias = Because | Quoted | OthersThere | LostByJobs | JobsFailedThere


class CardAside(Value, frozen=True):
    """A card (by its index) that the run has set aside, and why."""

    gpu: int
    why: CardReason


# ── Why a job is not run, or runs again ─────────────────────────────────────────────────────────


class NeedUnmet(Tagged, frozen=True, tag="need_unmet"):
    """A job that this one needs came to no success, or is not in the file, or is left out."""

    job: str
    state: Literal["failed", "cancelled", "skipped", "unknown", "excluded"]


class NeededBy(Tagged, frozen=True, tag="needed_by"):
    """A job that waits needs this service again."""

    job: str


class ImageUnavailable(Tagged, frozen=True, tag="image_unavailable"):
    """The image of the job's container cannot be had; `why` says what to do, in one line."""

    image: str
    why: str


class TokensShort(Tagged, frozen=True, tag="tokens_short"):
    """The job uses more of a token than there are."""

    token: str
    wanted: int
    limit: int


class CardsShort(Tagged, frozen=True, tag="cards_short"):
    """The job needs more cards at once than the run has; `aside`: cards that were set aside.

    `memory`: bytes that each card needs, where it is that which too few have; else 0. `of`: the
    kind of card, where too few are of it, and the models that are `there`.
    """

    wanted: int
    available: int
    memory: int = 0
    aside: tuple[CardAside, ...] = ()
    of: CardKind | None = None
    there: tuple[str, ...] = ()


class CardsCapped(Tagged, frozen=True, tag="cards_capped"):
    """The job needs more cards at once than the run may hold."""

    wanted: int
    limit: int


class MemoryShort(Tagged, frozen=True, tag="memory_short"):
    """The job reserves more bytes of the host's memory than the run may reserve in all."""

    wanted: int
    limit: int


class FailedOnCard(Tagged, frozen=True, tag="failed_on_card"):
    """The job failed on this card (by its index), as others did; it is tried on another one.

    `jobs`: how many failed there in a row; 0: the card was set aside.
    """

    gpu: int
    jobs: int


# ── The run ─────────────────────────────────────────────────────────────────────────────────────


class FailedAlike(Tagged, frozen=True, tag="failed_alike"):
    """So many jobs in a row failed within seconds of their start, all by this end."""

    jobs: int
    seconds: Seconds
    end: AttemptEnd


class TooManyFailed(Tagged, frozen=True, tag="too_many_failed"):
    """The last job that may fail has: `limit` of them; None: the first (`--fail-fast`)."""

    job: str
    limit: int | None


class SomeFailed(Tagged, frozen=True, tag="some_failed"):
    """This job and `more` others did not succeed."""

    job: str
    more: int


class RunOver(Tagged, frozen=True, tag="run_over"):
    """The run has come to this state, and nothing says why."""

    state: RunState


class LeftWaiting(Tagged, frozen=True, tag="left_waiting"):
    """So many waiting jobs were not among those to be run."""

    jobs: int


class LeftInQueue(Tagged, frozen=True, tag="left_in_queue"):
    """The run ended while a cluster still had so many attempts, whose ends it could not learn."""

    attempts: int


class LeftProcesses(Value, frozen=True):
    """Processes of an attempt that nothing could end, as far as they are known, and its cards."""

    attempt: AttemptId
    pids: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()


class LeftAlive(Tagged, frozen=True, tag="left_alive"):
    """The run ended as it was asked to, although processes of these attempts are still alive."""

    left: tuple[LeftProcesses, ...]


class OutsideHours(Tagged, frozen=True, tag="outside_hours"):
    """The run starts jobs within hours alone (`--between`), which begin again at `until`.

    `until` in seconds since 1970. `seconds`: how long that is from now, where it is told for a
    moment.
    """

    until: Seconds
    seconds: Seconds | None = None


PausedBy: TypeAlias = Literal["recorder", "breaker", "asked", "hours"]
"""Who keeps a run from starting jobs: what writes its journal, jobs that failed alike, a person,
the hours of `--between`. In the order in which people are told, of several the first."""
PlacementChange: TypeAlias = Literal["other_card", "other_kind", "more_memory", "alone"]
"""What will differ in the next attempt of a job."""
Impossible: TypeAlias = TokensShort | CardsShort | CardsCapped | MemoryShort
RunReason: TypeAlias = (
    EndCause
    | FailedAlike
    | TooManyFailed
    | SomeFailed
    | LeftWaiting
    | LeftInQueue
    | LeftAlive
    | RunOver
    | OutsideHours
)


# ── Why a job waits ─────────────────────────────────────────────────────────────────────────────


class InQueue(Tagged, frozen=True, tag="in_queue"):
    """The engine has the job's attempt in its queue. `id` is for people, empty while unknown.

    `needs`: jobs under way that must succeed before it starts.
    """

    id: str = ""
    needs: tuple[str, ...] = ()


class NextInWorker(Tagged, frozen=True, tag="next_in_worker"):
    """A worker has the job's attempt, and begins it when it is done with that of `job`."""

    job: str


class NothingStarts(Tagged, frozen=True, tag="nothing_starts"):
    """The run starts no job: it is `paused`, or ends.

    `again`: an attempt of the job has started before.
    """

    why: RunReason
    paused: bool = False
    again: bool = False


class RetryIn(Tagged, frozen=True, tag="retry_in"):
    """The job is tried again after so many seconds."""

    seconds: Seconds


class NotBefore(Tagged, frozen=True, tag="not_before"):
    """The job does not start before `utc` (seconds since 1970), so many seconds from now."""

    utc: Seconds
    seconds: Seconds


class NeedsImage(Tagged, frozen=True, tag="needs_image"):
    """The image of the job's container is not there yet.

    `pulled_for`: for how many seconds it has been pulled; None if that has not begun.
    """

    source: ImageSource
    pulled_for: float | None = None


class NeedsReady(Tagged, frozen=True, tag="needs_ready"):
    """The job waits for these services to be ready."""

    services: tuple[str, ...]


Nearness: TypeAlias = Literal["running", "queued", "waiting"]
"""How near to its end a job is that others wait for."""


class NeedsEnd(Tagged, frozen=True, tag="needs_end"):
    """The job waits for the end of this job, the nearest to it, and of `more` others.

    `after`: the others may end in any way.
    """

    job: str
    state: Nearness
    more: int = 0
    after: bool = False


class NeedsStart(Tagged, frozen=True, tag="needs_start"):
    """The job waits until this one has started, for which the run makes room."""

    job: str


class NeedsOthers(Tagged, frozen=True, tag="needs_others"):
    """So many jobs wait before this one."""

    jobs: int


class NeedsToken(Tagged, frozen=True, tag="needs_token"):
    """The job waits for a token, of which `used` of `limit` are taken by these jobs."""

    token: str
    used: int
    limit: int
    jobs: tuple[str, ...]


class NeedsCpus(Tagged, frozen=True, tag="needs_cpus"):
    """The job waits for CPUs, of which `used` of `limit` are taken."""

    cpus: int
    used: int
    limit: int


class NeedsMemory(Tagged, frozen=True, tag="needs_memory"):
    """The job waits for so many bytes of the host's memory.

    `used` of `limit` are reserved for the attempts or workers of `jobs`, of whom the most first.
    """

    memory: int
    used: int
    limit: int
    jobs: tuple[str, ...]


class NeedsTurn(Tagged, frozen=True, tag="needs_turn"):
    """The engine's queue holds as many attempts as it may."""

    attempts: int


class NeedsShare(Tagged, frozen=True, tag="needs_share"):
    """The run may take `limit` cards at once, and so many are taken, or queued for."""

    cards: int
    limit: int
    taken: int


class CardBusy(Tagged, frozen=True, tag="card_busy"):
    """Attempts of these jobs are on the card, or each on one of the cards, for so many seconds."""

    jobs: tuple[str, ...]
    least: Seconds
    most: Seconds


class CardShared(Tagged, frozen=True, tag="card_shared"):
    """Jobs share the card: so many bytes of the `memory` that it had free are promised to them."""

    jobs: tuple[str, ...]
    promised: int
    memory: int


class CardIs(Tagged, frozen=True, tag="card_is"):
    """What keeps the card from the job, or that it is free."""

    state: Literal["given_back", "draining", "asking", "avoided", "other_kind", "free"]


class CardKept(Tagged, frozen=True, tag="card_kept"):
    """The card is kept by the idle worker of this job, or reserved for this job."""

    job: str
    worker: bool


class CardAway(Tagged, frozen=True, tag="card_away"):
    """The card is not to be had: another launcher holds it, others use it, or it was set aside."""

    state: Literal["elsewhere", "occupied", "aside"]
    why: CardReason | None


class CardFree(Tagged, frozen=True, tag="card_free"):
    """The card has so many bytes free."""

    memory: int


CardNow: TypeAlias = CardBusy | CardShared | CardIs | CardKept | CardAway | CardFree


class CardsAre(Value, frozen=True):
    """Cards (by their indices) that are in the same state."""

    gpus: tuple[int, ...]
    state: CardNow


class NeedsCards(Tagged, frozen=True, tag="needs_cards"):
    """The job waits for so many cards, with so many bytes free on each; 0: any.

    `limit`: cards that the run may hold at once, if it holds them; else 0. `of`: of which it
    takes cards, None for any. `limited_by`: the place that sets the limit, where it is that of all
    launchers of the user.
    """

    wanted: int
    memory: int
    cards: tuple[CardsAre, ...]
    limit: int = 0
    of: CardKind | None = None
    limited_by: str = ""


class NeedsAllowance(Tagged, frozen=True, tag="needs_allowance"):
    """The job waits for cards, and all launchers of its user may hold `limit` of them at once.

    They hold that many, this run `here` of them. `source`: the place that sets the limit.
    """

    wanted: int
    limit: int
    here: int
    source: str


WaitReason: TypeAlias = (
    Because
    | Quoted
    | InQueue
    | NextInWorker
    | NothingStarts
    | RetryIn
    | NotBefore
    | NeedsImage
    | NeedsReady
    | NeedsEnd
    | NeedsStart
    | NeedsOthers
    | NeedsToken
    | NeedsCpus
    | NeedsMemory
    | NeedsTurn
    | NeedsShare
    | NeedsAllowance
    | NeedsCards
)


class NeverStarts(Tagged, frozen=True, tag="never_starts"):
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
    | ImageUnavailable
    | TokensShort
    | CardsShort
    | CardsCapped
    | MemoryShort
    | FailedOnCard
    | InQueue
    | NextInWorker
    | NeverStarts
)
"""Why a job is over, or waits again."""
