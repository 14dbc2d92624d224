"""The engine of one machine: cards by leases and NVML, attempts by keepers.

Posts what the driver reports of the run's cards (`Health`), and adopts an earlier supervisor's
attempts. Decides nothing about a card.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from gpulaunch.agent.proc import hindrance
from gpulaunch.base.text import listing
from gpulaunch.core.causes import Because
from gpulaunch.core.events import (
    Acquire,
    Drain,
    Ended,
    EndWorker,
    Event,
    GpuEvent,
    Instruction,
    Launch,
    PullImage,
    Release,
    StopAttempt,
    TakeBack,
    Unending,
)
from gpulaunch.core.model import AttemptId, End, Gpu, ImageSource, Job, Lost
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.diagnosis import EndDiagnosis
from gpulaunch.engines.images import Images
from gpulaunch.engines.local.attempts import LocalAttempts
from gpulaunch.engines.local.containers import LeftContainers, end_stragglers, left_below
from gpulaunch.engines.local.leases import CardLeases, LeaseUser
from gpulaunch.engines.local.metering import Metering
from gpulaunch.engines.pool import CardPool
from gpulaunch.gpus.lease import Waiter
from gpulaunch.gpus.socket_locks import listening
from gpulaunch.gpus.xid import EventsClient
from gpulaunch.journal.ends import Ends, EndSlots

MAX_XIDS_REMEMBERED = 100
"""Xids that are remembered of each card, the newest: a faulty program makes thousands."""


class Health:
    """Posts what the driver reports of the cards, from `begin` on; simulated cards have no events.

    `held` returns whether the run holds a card's lease now. Of a card whose lease another launcher
    holds, only the card's loss is posted: other reports are about that launcher's programs.
    """

    def __init__(
        self, context: RunContext, gpus: Sequence[Gpu], held: Callable[[str], bool]
    ) -> None:
        self._context = context
        self._gpus = [gpu for gpu in gpus if not gpu.simulated]
        self._held = held
        self._client: EventsClient | None = None
        self._xids: defaultdict[str, deque[tuple[float, int]]] = defaultdict(
            lambda: deque(maxlen=MAX_XIDS_REMEMBERED)
        )

    def begin(self) -> None:
        """Begin to listen. Idempotent."""
        if self._client is None and self._gpus:
            loop, environ = self._context.loop, self._context.base
            self._client = EventsClient(self._gpus, loop, self._report, environ)

    def _report(self, event: GpuEvent) -> None:
        if event.verdict != "lost" and not self._held(event.gpu):
            return
        if event.code is not None:
            self._xids[event.gpu].append((time.monotonic(), event.code))
        self._context.post(event)

    def xids(self, gpu: str, since: float) -> tuple[int, ...]:
        """Return a card's Xids since this monotonic time, at most the last MAX_XIDS_REMEMBERED."""
        if self._client is not None:
            self._client.read()  # what has come in since the loop waited
        return tuple(code for at, code in self._xids[gpu] if at >= since)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


ADOPTED_TIMEOUT = 3.0
"""Seconds after which a run says that it waits for attempts of an earlier supervisor."""


class Local(LeaseUser):
    """Carries instructions out on this machine; see `protocol` for what it promises."""

    def __init__(self, context: RunContext, pool: CardPool) -> None:
        self._context = context
        self._cards = CardLeases(pool, context.loop, context.post, context.base, self)
        self._health = Health(context, pool.gpus, self._cards.holds)
        rooms = (context.base.get("TMPDIR") or "/tmp", "/dev/shm")
        self._diagnosis = EndDiagnosis(
            context.run,
            context.warn,
            rooms,
            self._cards.look,
            self._health.xids,
            context.loop.later,
        )
        self._metering = Metering(context, pool.gpus)
        self._left = LeftContainers(context)
        heard = replace(context, post=self._posted)
        self._images = Images(heard, cluster=False)
        self._slots = EndSlots(context.run.ends)
        self._attempts = LocalAttempts(
            heard, self._cards, self._diagnosis, self._metering, self._slots
        )
        # Before the first launch: later some of these names would be this supervisor's own pairs.
        self._old_keepers = listening(f"keeper/{context.run_id}/")
        self._to_drain: set[str] = set()
        if pool.gpus and not pool.simulated:  # a server that lives on keeps its card, and the lease
            self._attempts.mps.clear_left()
        self._adopted: list[AttemptId] = []
        self._unrecorded: set[AttemptId] = set()
        self._keepers: dict[str, Waiter] = {}

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch():
                self._left.launched(instruction)
                self._attempts.launch(instruction)
                self._cards.say_want()
            case StopAttempt():
                self._attempts.stop(instruction)
            case TakeBack():
                self._attempts.take_back(instruction)
            case EndWorker():
                self._attempts.end_worker(instruction)
            case PullImage():
                self._images.pull(instruction)
            case Drain(gpu):  # what an MPS server has of the memory comes back once it is gone
                self._to_drain.add(gpu)
                self._attempts.mps.end_on(gpu, partial(self._drain, instruction))
            case Release(gpu):
                self._to_drain.discard(gpu)
                self._cards.carry_out(instruction)
            case _:
                self._cards.carry_out(instruction)
        if isinstance(instruction, Acquire):
            self._health.begin()

    def _drain(self, instruction: Drain) -> None:
        if instruction.gpu in self._to_drain:
            self._to_drain.discard(instruction.gpu)
            self._cards.carry_out(instruction)

    def working(self) -> bool:
        return self._attempts.on_cards

    def let_go(self, gpu: str) -> None:
        self._attempts.give_back(gpu)

    def _posted(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._cards.say_want()
        self._left.post(event)

    # ── Attempts of an earlier supervisor ───────────────────────────────────────────────────────

    def adopt(self, attempts: Sequence[AttemptId]) -> None:
        """Wait for the ends of an earlier supervisor's attempts, and post them.

        Their keepers end them by themselves, now that their supervisor is gone.
        """
        self._slots.forget_earlier({str(attempt) for attempt in attempts})
        self._left.clean(attempts)
        self._adopted = list(attempts)
        self._unrecorded = set(attempts)
        owners = os.geteuid(), os.stat(self._context.run.path).st_uid
        for name in self._old_keepers if attempts else ():
            waiter = Waiter.connect(name)
            if waiter and waiter.holder and waiter.holder[1] not in owners:
                waiter.close()  # another user's process took the name: no keeper of this run
            elif waiter:
                self._keepers[name] = waiter
                self._context.loop.watch(waiter.fileno(), partial(self._keeper_news, name))
        self._settle_adopted()
        if self._adopted:
            self._context.loop.call_after("adopted", ADOPTED_TIMEOUT, self._tell_adopted)

    def _tell_adopted(self) -> None:
        """Say which attempts of an earlier supervisor are waited for, and on which processes."""
        if not self._adopted:
            return
        pids = sorted({pid for name in self._keepers for pid in left_below(name)})
        them = listing([str(attempt) for attempt in self._adopted])
        text = f"waits for the end of {them}, which an earlier launcher started"
        if pids:
            shown = [f"{pid} ({why})" if (why := hindrance(pid)) else f"{pid}" for pid in pids]
            text += f": process {listing(shown)}"
        self._context.warn(None, f"{text}. A stop of this run does not wait for it")
        for attempt in self._adopted:
            self._context.post(Unending(attempt, tuple(pids)))

    def _keeper_news(self, name: str) -> None:
        if self._keepers[name].on_readable() == "still":
            return
        waiter = self._keepers.pop(name)
        self._context.loop.unwatch(waiter.fileno())
        waiter.close()
        self._settle_adopted()

    def _settle_adopted(self) -> None:
        """Post the recorded ends of adopted attempts; all others once no old keeper is alive."""
        ends = Ends(self._context.run.ends)
        for attempt in list(self._adopted):
            record = ends.of(str(attempt))  # None: also if killed between intent and launch
            if record is None and self._keepers:
                continue
            self._adopted.remove(attempt)
            if record is None:
                # Only this attempt's processes: new attempts of the run may be alive by now.
                end_stragglers(self._context, attempt)
                self._left.post(Ended(attempt, End(Lost(Because("unseen")))))
            else:
                ended = Ended(attempt, record.end)
                self._diagnosis.diagnose(ended, Job(attempt.job, ()), (), self._left.post)

    def recorded(self, attempts: Sequence[AttemptId]) -> None:
        for attempt in attempts:
            self._slots.give_back(str(attempt))
        self._unrecorded.difference_update(attempts)

    def why(self, attempt: AttemptId) -> str:
        """Return nothing: on this machine what is launched starts at once."""
        return ""

    def pulls(self) -> Mapping[ImageSource, float]:
        return self._images.pulls()

    def close(self) -> None:
        self._images.close()
        for waiter in self._keepers.values():
            self._context.loop.unwatch(waiter.fileno())
            waiter.close()
        self._metering.close()
        unended = self._attempts.unended
        self._attempts.close()
        if not self._unrecorded and not unended:
            self._slots.delete()
        self._left.close()
        self._health.close()
        self._cards.close()
