"""The core's language: events (what happened, past tense), instructions (what to do, imperative).

    outside world ── Event ──▶ Run.handle(events, now) ──▶ [Fact | Instruction, ...]

The facts that a decision makes true (`core.facts`) come out in the same list, before the
instructions that rest on them: the supervisor writes the facts first and then carries out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct, field

from gpulaunch.core.causes import Advice, EndCause
from gpulaunch.core.facts import (
    AttemptQueued,
    AttemptStarted,
    AttemptWarned,
    PullBegun,
    ServiceReady,
)
from gpulaunch.core.model import AttemptId, ContainerEngine, End, Gpu, ImageSource, Job, LadderStep
from gpulaunch.core.reasons import PausedBy, RunReason
from gpulaunch.core.values import Happening, Seconds, Tagged, Value

# ── Timers ──────────────────────────────────────────────────────────────────────────────────────

TimerKind: TypeAlias = Literal[
    "retry",  # the job's delay before its next attempt is over
    "hold_out",  # the job has waited HOLD_OUT seconds for a card that it does not avoid
    "card",  # what was last seen of the card is out of date: look at it again
    "gang",  # the gang reservation, or the pause after one, has reached its time limit
    "deadlock",  # the time to look for a deadlock again has come
    "due",  # a job may be due: the clock on the wall is to be looked at
    "worker",  # the idle worker has waited LINGER seconds for another attempt
    "verdict",  # no end of a service came that could explain the attempt's failure
]


class Timer(Value, frozen=True):
    """What a timer is for. `of`: the job, the card's UUID or the worker; empty for the run."""

    kind: TimerKind
    of: str = ""


# ── Events ──────────────────────────────────────────────────────────────────────────────────────


class Submitted(Struct, frozen=True):
    """The jobs of the run. Comes once for each supervisor, before all other events.

    `again` names settled jobs that are to run once more; other settled ones stay as they are.
    `left` names jobs that this supervisor does not touch, whatever their state.
    """

    jobs: tuple[Job, ...]
    again: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


class Elsewhere(Tagged, frozen=True, tag="elsewhere"):
    """Another launcher holds the card's lease; `Freed` will come when it lets go."""

    holder: str


class Occupied(Tagged, frozen=True, tag="occupied"):
    """Processes that no launcher accounts for are on the card; nothing announces their end.

    `free_below`: from so many bytes of it on, the card would count as free; 0: from none, but it
    could be shared; None: no option would have it taken.
    """

    by: str
    free_below: int | None = None


class Sick(Tagged, frozen=True, tag="sick"):
    """The driver says that the card is unfit, or does not answer for it."""

    why: str


class AllowanceSpent(Tagged, frozen=True, tag="allowance_spent"):
    """This user's launchers together hold as many cards as they may; `AllowanceFreed` will come.

    Nothing is known of the card itself. `limit`: how many they may hold; `source`: what says so.
    """

    limit: int
    source: str


Refusal: TypeAlias = Elsewhere | Occupied | Sick | AllowanceSpent


class Granted(Happening, frozen=True, tag="granted"):
    """The card is leased to this run, was looked at, and is free. `memory_free` in bytes."""

    gpu: str
    memory_free: int


class Refused(Happening, frozen=True, tag="refused"):
    """The answer to Acquire, or to Drain: the run does not hold the card."""

    gpu: str
    why: Refusal


class HolderChanged(Happening, frozen=True, tag="holder_changed"):
    """A card that is elsewhere has another holder now, or its holder has stopped or continued.

    `holder` in words, as in Elsewhere.
    """

    gpu: str
    holder: str


class Freed(Happening, frozen=True, tag="freed"):
    """The launcher that held the card's lease has given it back."""

    gpu: str


class AllowanceFreed(Happening, frozen=True, tag="allowance_freed"):
    """Another launcher of this user has given a card back: this run may perhaps take one more."""


class Wanted(Happening, frozen=True, tag="wanted"):
    """Another launcher waits for this card, which this run holds (`wanted`), or gave up waiting.

    That launcher holds no card, or reserves a gang for a wide job and runs nothing on its cards.
    It has a job for the card that is not preemptible.
    """

    gpu: str
    wanted: bool


class GangGranted(Happening, frozen=True, tag="gang_granted"):
    """This run may now keep cards idle until they are enough for a wide job; no other run may."""


class Drained(Happening, frozen=True, tag="drained"):
    """The answer to Drain: the card's memory is back to what it was. `memory_free` in bytes."""

    gpu: str
    memory_free: int


class GpuEvent(Happening, frozen=True, tag="gpu_event"):
    """The driver reported something of the card (an Xid) while the run lasts.

    `code` is the Xid's number, None for another kind of event or a card that no events come from
    any more. `verdict`: "lost" is a card that is unfit from now on, "app" a program's own fault,
    "note" all else. `stops`: what runs there will not come to an end by itself. `text` is one
    line for people.
    """

    gpu: str
    code: int | None
    text: str
    verdict: Literal["lost", "app", "note"]
    stops: bool = False


class Misplaced(Happening, frozen=True, tag="misplaced"):
    """A process of the attempt (`pid`) computes on a card (`gpu`) that is not the attempt's own.

    Comes once for an attempt, and perhaps after its end. `text` is one line for people: the
    process, its command, the card; `advice` what can be done about it.
    """

    attempt: AttemptId
    gpu: str
    pid: int
    text: str
    advice: Advice = ()


class HeldIdle(Happening, frozen=True, tag="held_idle"):
    """The attempt has held its cards' memory for long, and computed nothing on any of them.

    Comes once for an attempt, and perhaps after its end. `ends`: its job's `gpu_idle` is reached.
    `seconds` it has been so, with `memory` bytes held; `text` is that as one line for people, to
    follow the job's name; `advice` what can be done about it.
    """

    attempt: AttemptId
    seconds: Seconds
    memory: int
    text: str
    ends: bool
    advice: Advice = ()


class Unanswered(Happening, frozen=True, tag="unanswered"):
    """The attempt's service did not answer within its `ready_within`.

    `text` is one line for people: the address, and for how long it was asked.
    """

    attempt: AttemptId
    text: str


class Ended(Happening, frozen=True, tag="ended"):
    """The attempt's whole process tree is gone.

    The end's `failure` is None where nothing was recognised: the status then says all. `kept`:
    only the worker is left, idle on the attempt's cards until another attempt is launched in it,
    or EndWorker ends it. `memory_free`: bytes by card, of those whose memory is known to
    be back already; none of these needs a Drain.
    """

    attempt: AttemptId
    end: End
    kept: bool = False
    memory_free: Mapping[str, int] = field(default_factory=dict)


class MemoryPeaked(Happening, frozen=True, tag="memory_peaked"):
    """The attempt's processes were seen to take so many bytes of its card, more than ever before.

    Told of attempts whose jobs' memory is learned, while they run.
    """

    attempt: AttemptId
    memory: int


class WorkerEnded(Happening, frozen=True, tag="worker_ended"):
    """Nothing is left of a worker. `worker` is the attempt that the worker was started with."""

    worker: AttemptId


class ImageReady(Happening, frozen=True, tag="image_ready"):
    """The answer to PullImage: the image is there, pulled just now (`pulled`) or before.

    `id` is what command lines of `engine` name: a digest, or a file's path. `digest` is for people,
    and may be empty.
    """

    source: ImageSource
    id: str
    digest: str
    engine: ContainerEngine
    pulled: bool


class ImageDigest(Happening, frozen=True, tag="image_digest"):
    """The digest of an image that is there: of a large file it is known a while later."""

    source: ImageSource
    digest: str


class ImageFailed(Happening, frozen=True, tag="image_failed"):
    """The answer to PullImage: the image cannot be had. `why`: what is wrong and what to do."""

    source: ImageSource
    why: str


class OutOfReach(Happening, frozen=True, tag="out_of_reach"):
    """The engine can neither end its remaining attempts nor tell their state, and why.

    They go on without a supervisor, and the run is given up.
    """

    why: RunReason


class Unending(Happening, frozen=True, tag="unending"):
    """The attempt, or the idle worker of that id, does not end, whatever the engine does.

    `pids`: the processes that cannot be killed, as far as they are known. `Ended` or `WorkerEnded`
    may still come, once they are gone.
    """

    attempt: AttemptId
    pids: tuple[int, ...] = ()


class TimerFired(Happening, frozen=True, tag="timer_fired"):
    """The timer that SetTimer set is due."""

    timer: Timer


class Cancel(Tagged, frozen=True, tag="cancel"):
    """Request: stop these jobs for good; None: all of them."""

    jobs: tuple[str, ...] | None


class Retry(Tagged, frozen=True, tag="retry"):
    """Request: requeue these jobs, or all that failed, and what was skipped because of them.

    `as_filed`: as the job file defines them now, which Relisted then brings; else as they are.
    """

    jobs: tuple[str, ...] | None
    as_filed: bool = False


class DrainGpus(Tagged, frozen=True, tag="drain_gpus"):
    """Request: start nothing on these cards (None: all); `now` also interrupts; `off` undoes."""

    gpus: tuple[str, ...] | None
    now: bool = False
    off: bool = False


class Pause(Tagged, frozen=True, tag="pause"):
    """Request: launch nothing, and start nothing in the engine's queue; `why` None undoes that.

    Pauses by several (`by`) hold independently: the run goes on once each of them has ended.
    """

    why: RunReason | None
    by: PausedBy = "asked"


class Stop(Tagged, frozen=True, tag="stop"):
    """Request: end the run. No job starts, running ones are interrupted; `now`: killed at once."""

    why: EndCause
    now: bool = False


class GoOn(Tagged, frozen=True, tag="go_on"):
    """Request: start jobs again, after so many failed alike that none was started any more."""


class Finish(Tagged, frozen=True, tag="finish"):
    """Request: no more jobs come; a standing run ends once all that it has are over."""


Request: TypeAlias = Cancel | Retry | DrainGpus | Pause | GoOn | Stop | Finish


class Asked(Happening, frozen=True, tag="asked"):
    """A person (a signal, another terminal) or the supervisor itself made this request."""

    request: Request


class Relisted(Struct, frozen=True):
    """The list has changed while the run lives: a reload, an addition, a setting.

    `jobs`: new ones, and known ones as they are now; all others stay as they are. `gone`: jobs that
    the list has no more.
    """

    jobs: tuple[Job, ...]
    gone: tuple[str, ...] = ()


Observed: TypeAlias = AttemptQueued | AttemptStarted | AttemptWarned | ServiceReady | PullBegun
"""What the engine saw of an attempt or an image: recorded as it is, where it is news."""
ImageEvent: TypeAlias = ImageReady | ImageDigest | ImageFailed
LeaseEvent: TypeAlias = Granted | Refused | HolderChanged | Freed | Wanted | Drained

Event: TypeAlias = (
    Submitted
    | Relisted
    | LeaseEvent
    | AllowanceFreed
    | GangGranted
    | GpuEvent
    | Misplaced
    | HeldIdle
    | Unanswered
    | Observed
    | Ended
    | WorkerEnded
    | MemoryPeaked
    | ImageEvent
    | OutOfReach
    | Unending
    | TimerFired
    | Asked
)

# ── Instructions ────────────────────────────────────────────────────────────────────────────────


class Acquire(Happening, frozen=True, tag="acquire"):
    """Take the card's lease, then look at the card. Answered by Granted or Refused."""

    gpu: str


class Release(Happening, frozen=True, tag="release"):
    """Give the lease back (to the launcher that waits for it, if one does)."""

    gpu: str


class ReserveGang(Happening, frozen=True, tag="reserve_gang"):
    """Ask for the right to keep cards idle for a wide job (`on`), or give it up.

    Asking is answered by GangGranted.
    """

    on: bool


class WantCards(Happening, frozen=True, tag="want_cards"):
    """Ask the holders of other cards to give one to this run while it holds none, or stop asking.

    Not answered. At first it is on.
    """

    on: bool


class PullImage(Happening, frozen=True, tag="pull_image"):
    """See to it that the image is there, pulled where its source says so.

    `known`: the id that it had for this run before, empty where it had none. Answered by
    ImageReady or ImageFailed, perhaps after PullBegun.
    """

    source: ImageSource
    known: str


class Launch(Struct, frozen=True):
    """Start the attempt on these cards. Answered by AttemptStarted and Ended, or by Ended alone.

    `worker`: the worker that runs it, named by the attempt that the worker was started with. It is
    idle, or `behind` names the attempt that it still runs: this one then begins as soon as that has
    ended and the worker stays. Where it does not stay, the answer is Ended(Interrupted), not begun.

    `after`, only for an engine that queues: attempts under way that must succeed before this one
    starts. Where one of them does not, the engine answers with Ended(Interrupted).

    `step`: that of the job's ladder whose values it gets. `promised`: bytes of its card's memory
    that others there leave to it; 0 where none are promised.

    `share`, only for an engine that queues: a token and a number. Of all attempts launched with
    that token, the engine lets no more than that number run at once.
    """

    attempt: AttemptId
    job: Job
    gpus: tuple[Gpu, ...]
    worker: AttemptId | None = None
    after: tuple[AttemptId, ...] = ()
    share: tuple[str, int] | None = None
    behind: AttemptId | None = None
    step: LadderStep | None = None
    promised: int = 0


StopReason: TypeAlias = Literal["cancelled", "interrupted", "stopped"]


class StopAttempt(Happening, frozen=True, tag="stop_attempt"):
    """End an attempt: TERM, the job's grace, KILL (`now`: KILL at once). Answered by Ended.

    `gently`: the job's `warn` comes first, if it has one, and TERM as long after it as that says.
    `reason` decides the kind of that event's outcome. May come again for one attempt, with a
    stronger reason (in the order stopped, interrupted, cancelled), with `now` or no more `gently`,
    and while its
    `Ended` is on the way.
    """

    attempt: AttemptId
    reason: StopReason
    by: EndCause
    now: bool = False
    gently: bool = False


class TakeBack(Happening, frozen=True, tag="take_back"):
    """Withdraw an attempt that was launched behind another, unless it has begun.

    Answered by Ended(Interrupted) where it has not, else by nothing.
    """

    attempt: AttemptId


class HoldQueue(Happening, frozen=True, tag="hold_queue"):
    """Let no attempt in the engine's queue start (`on`), or let them start again.

    Not answered. An attempt that starts before the hold has reached the queue goes on.
    """

    on: bool


class EndWorker(Happening, frozen=True, tag="end_worker"):
    """End an idle worker: close its input, TERM, KILL (`now`: KILL at once).

    Answered by WorkerEnded.

    May come again with `now`, and while its `WorkerEnded` is on the way.
    """

    worker: AttemptId
    now: bool = False


class Drain(Happening, frozen=True, tag="drain"):
    """Wait until the card's memory is what it was before; answered by Drained or Refused(Sick)."""

    gpu: str


class SetTimer(Happening, frozen=True, tag="set_timer"):
    """Send TimerFired(timer) at `at` (monotonic seconds); of equal timers the newest counts."""

    timer: Timer
    at: float


Instruction: TypeAlias = (
    Acquire
    | Release
    | ReserveGang
    | WantCards
    | PullImage
    | Launch
    | HoldQueue
    | StopAttempt
    | TakeBack
    | EndWorker
    | Drain
    | SetTimer
)
