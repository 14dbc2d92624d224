"""The core's language: events (what happened, past tense), instructions (what to do, imperative).

    outside world ── Event ──▶ Run.handle(event, now) ──▶ [Fact | Instruction, ...]

The facts that a decision makes true (`core.facts`) come out in the same list, before the
instructions that rest on them: the supervisor writes the facts first and then carries out.

A card's life inside one run (GpuState):

    free ──Acquire──▶ (asking) ──Granted──▶ leased ──Drain──▶ draining ──Drained──▶ leased
      ▲                  │ Refused                │ Release         │ Refused(Sick)
      │                  ▼                        ▼                 ▼
      └──Freed/Timer── elsewhere | occupied     free              aside
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpulaunch.core.model import AttemptId, Failure, Gpu, Instant, Job, Outcome

# ── Events ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Submitted:
    """The jobs of the run (again, after a resume). Comes once, first.

    `again` names settled jobs that are to run once more; other settled ones stay as they are.
    `left` names jobs that this round does not touch, whatever their state.
    """

    jobs: tuple[Job, ...]
    again: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another launcher holds the card's lease; `Freed` will come when it lets go."""

    holder: str


@dataclass(frozen=True, slots=True)
class Occupied:
    """Processes that no launcher accounts for are on the card; nothing announces their end."""

    by: str


@dataclass(frozen=True, slots=True)
class Sick:
    """The driver says that the card is unfit, or does not answer for it."""

    why: str


Refusal: TypeAlias = Elsewhere | Occupied | Sick


@dataclass(frozen=True, slots=True)
class Granted:
    """The card is leased to this run, was looked at, and is free. `memory_free` in bytes."""

    gpu: str
    memory_free: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to Acquire, or to Drain: the run does not hold the card."""

    gpu: str
    why: Refusal


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease of a card was given back while this launcher was stopped, and is not to be had now.

    Nothing of the run was on the card then.
    """

    gpu: str
    why: Refusal


@dataclass(frozen=True, slots=True)
class HolderChanged:
    """Of a card that is elsewhere: another has its lease by now, or its holder was stopped, or goes
    on after a stop. `holder` in words, as Elsewhere has it."""

    gpu: str
    holder: str


@dataclass(frozen=True, slots=True)
class Freed:
    """The launcher that held the card's lease let go of it."""

    gpu: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A launcher waits for this card, which we hold (`wanted`), or gave up waiting.

    One that holds no card, or one that gathers cards for a wide job and runs nothing on its own.
    """

    gpu: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class GangGranted:
    """This run alone, of all on the machine, may now hold cards idle to make up a wide job."""


@dataclass(frozen=True, slots=True)
class Drained:
    """After an attempt: the card's memory is back to what it was. `memory_free` in bytes."""

    gpu: str
    memory_free: int


@dataclass(frozen=True, slots=True)
class GpuEvent:
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


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A process of the attempt (`pid`) computes on a card (`gpu`) that is not the attempt's own.

    Comes once for an attempt, and perhaps after its end. `text` is one line for people: the
    process, its command, the card; `advice` what can be done about it.
    """

    attempt: AttemptId
    gpu: str
    pid: int
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    """An engine that places by itself has the attempt in its queue; `id` is for people."""

    attempt: AttemptId
    id: str


@dataclass(frozen=True, slots=True)
class Started:
    """`gpus` and `node`: where, as told by an engine that places by itself."""

    attempt: AttemptId
    pid: int
    gpus: tuple[Gpu, ...] = ()
    node: str = ""


@dataclass(frozen=True, slots=True)
class BecameReady:
    """A service's probe was answered."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Ended:
    """The attempt's whole process tree is gone. `leftovers` were still alive at its main's end.

    `kept`: but for its worker, which is idle on the attempt's cards until it is launched with
    another one, or ended by EndWorker. `started` and `ended` are its keeper's own times, None where
    it told none. `failure` is what was recognised of its end, None where nothing was: its status
    then says all.
    """

    attempt: AttemptId
    outcome: Outcome
    leftovers: int = 0
    started: Instant | None = None
    ended: Instant | None = None
    failure: Failure | None = None
    kept: bool = False


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """Nothing is left of the worker that `worker` began (the attempt it was started with)."""

    worker: AttemptId


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """The engine can neither end nor account for what it has still, which goes on without a
    supervisor: the run is to be left so. `why` in words."""

    why: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    key: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop these jobs for good; None: all of them."""

    jobs: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Retry:
    """Requeue these jobs, or all that failed, with what was skipped because of them.

    `as_filed`: as the job file defines them now, which RetriedAnew then brings; else as they are.
    """

    jobs: tuple[str, ...] | None
    as_filed: bool = False


@dataclass(frozen=True, slots=True)
class DrainGpus:
    """No new starts on these cards (None: all); `now` interrupts what runs there; `off` undoes."""

    gpus: tuple[str, ...] | None
    now: bool = False
    off: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is launched until `off`, nor started that an engine has in its queue."""

    why: str
    off: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run: no new jobs, running ones are interrupted; a second time (`now`) at once."""

    why: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class GoOn:
    """Start jobs again, although so many failed alike that none was started any more."""


Request: TypeAlias = Cancel | Retry | DrainGpus | Pause | GoOn | Stop


@dataclass(frozen=True, slots=True)
class Asked:
    """A person (a signal, another terminal) or the supervisor itself asked for this."""

    request: Request


@dataclass(frozen=True, slots=True)
class RetriedAnew:
    """Requeue as Retry does, after the job file was read again: `jobs` of it as they are now.

    Only jobs that have ended, or wait for another try, are taken from there; what they need and
    come after stays. `gone`: the file has these no more; they are kept, and not run.
    """

    names: tuple[str, ...] | None
    jobs: tuple[Job, ...]
    gone: frozenset[str] = frozenset()


LeaseEvent: TypeAlias = Granted | Refused | LeaseLost | HolderChanged | Freed | Wanted | Drained

Event: TypeAlias = (
    Submitted
    | RetriedAnew
    | LeaseEvent
    | GangGranted
    | GpuEvent
    | Misplaced
    | Queued
    | Started
    | BecameReady
    | Ended
    | WorkerEnded
    | OutOfReach
    | TimerFired
    | Asked
)

# ── Instructions ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Acquire:
    """Take the card's lease and look at the card. Answered by Granted or Refused."""

    gpu: str


@dataclass(frozen=True, slots=True)
class Release:
    """Give the lease back (to the launcher that waits for it, if one does)."""

    gpu: str


@dataclass(frozen=True, slots=True)
class ReserveGang:
    """Ask for (answered by GangGranted), or with `on` false give up, the right to gather."""

    on: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """`worker`: the idle one that takes it, by the attempt that it was started with; None: none.

    `after`: attempts that are under way, and have to succeed before it starts: one of an engine
    that queues. Where one of them does not, the engine answers with Ended(Interrupted).

    `share`: a token and a number. Of all that are launched with that token, the engine lets no more
    than so many run at once: one that queues is then handed them together.
    """

    attempt: AttemptId
    job: Job
    gpus: tuple[Gpu, ...]
    worker: AttemptId | None = None
    after: tuple[AttemptId, ...] = ()
    share: tuple[str, int] | None = None


StopReason: TypeAlias = Literal["cancelled", "interrupted", "stopped"]


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """TERM, the job's grace, KILL (`now`: KILL at once). Answered by Ended with `outcome`'s kind.

    `reason` decides that kind. May come again for one attempt, with a stronger reason (in the
    order stopped, interrupted, cancelled) or with `now`, and while its `Ended` is on the way.
    """

    attempt: AttemptId
    reason: StopReason
    by: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class HoldQueue:
    """What is in the queue of an engine that queues is not to start (`on`), or may again.

    Not answered; what starts before the engine's word has reached its queue goes on.
    """

    on: bool


@dataclass(frozen=True, slots=True)
class EndWorker:
    """End an idle worker: its input, TERM, KILL (`now`: KILL at once). Answered by WorkerEnded.

    May come again with `now`, and while its `WorkerEnded` is on the way.
    """

    worker: AttemptId
    now: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait until the card's memory is what it was before; answered by Drained or Refused(Sick)."""

    gpu: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send TimerFired(key) at `at` (monotonic); the newest of one key counts."""

    key: str
    at: float


Instruction: TypeAlias = (
    Acquire
    | Release
    | ReserveGang
    | Launch
    | HoldQueue
    | StopAttempt
    | EndWorker
    | Drain
    | SetTimer
)
