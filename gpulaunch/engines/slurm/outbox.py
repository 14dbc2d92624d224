"""Attempts on their way to Slurm: gathered into batches, submitted one by one, never twice.

    add ─▶ (a moment, for others alike) ─▶ batch, written ─▶ sbatch ─▶ number, written
                                     ▲ fewer, or later ◀─ too many ┘ └ no answer, or a failure
                                                                       in words not Slurm's own:
                                                                       looked up, then again

A limit of the site delays only the batches to which it applies (`limits.py`).

Attempts that need one task each of the same array go as an array too, each task with the index of
the task that it needs (`aftercorr`).

The outbox knows nothing of a batch once Slurm has it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeAlias

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import batches, commands
from gpulaunch.engines.slurm.batches import (
    Batch,
    BatchDoubted,
    BatchHanded,
    BatchLeft,
    BatchReady,
    Terms,
)
from gpulaunch.engines.slurm.limits import Lane, Limits
from gpulaunch.engines.slurm.probe import Probe
from gpulaunch.engines.slurm.reading import QueueRow, is_about_arrays, spans
from gpulaunch.journal.rundir import RunDir
from gpulaunch.loop import Loop
from gpulaunch.process.nodeside import NodeStart, read_start

GATHERED = 0.05
"""Seconds for which attempts are gathered, so that those of one turn become one array."""
PLENTY, SHARE, LATEST = 64, 4, 10.0
"""With PLENTY attempts waiting in Slurm, new ones are gathered until they are 1/SHARE of these, for
LATEST seconds at most: Slurm's queue does not run dry, and sbatch is called seldom."""
MAX_ARRAY_TASKS = 1000
"""Tasks in one array, where the cluster allows as many."""
_Member: TypeAlias = tuple[int, AttemptId]
"""A place in a batch and its attempt. The place is kept only in a batch with `terms.each`."""
SUBMIT_RETRY_DELAY, OUTAGE_RETRY_DELAY = 1.0, 5.0
"""Seconds to the next submission after a passing refusal, and after no answer."""
RAREST = 300.0
"""Seconds, the longest delay between submissions of a batch that each ended in doubt."""
MAX_FOREIGN_FAILURES = 2
"""Failures in words that are not Slurm's own after which a batch counts as refused."""


class Sent(Protocol):
    """The engine as the outbox sees it: answers about attempts, and takes what became of a batch.

    `wanted`: False for an attempt that is to be left out. `id_of`: Slurm's number of an attempt;
    empty while it is on its way, or while Slurm has finished it and its end is unknown; None once
    it is over. `numbers`: the numbers of all attempts that are not over. `waiting`: how many
    attempts of a lane Slurm has and has not started.
    """

    def wanted(self, attempt: AttemptId) -> bool: ...
    def id_of(self, attempt: AttemptId) -> str | None: ...
    def numbers(self) -> set[str]: ...
    def waiting(self, lane: Lane) -> int: ...
    def sent(self, batch: Batch) -> None: ...
    def refused(self, batch: Batch, why: str) -> None: ...
    def doubtful(self) -> None: ...
    def waits(self, why: str) -> None: ...
    def full(self, lane: Lane, why: str) -> None: ...
    def away(self, why: str) -> None: ...


class Outbox:
    """The batches that Slurm does not have yet. `prefix` begins the title of each, its job name."""

    def __init__(
        self,
        slurm: commands.Slurm,
        run: RunDir,
        prefix: str,
        epoch: int,
        environ: Mapping[str, str],
        loop: Loop,
        to: Sent,
        probe: Probe,
    ) -> None:
        self._slurm = slurm
        self._run = run
        self._prefix = prefix
        self._epoch = epoch
        self._environ = environ
        self._loop = loop
        self._to = to
        self._probe = probe
        self._fresh: dict[AttemptId, tuple[Terms, tuple[AttemptId, ...]]] = {}
        self._fresh_since: float | None = None
        self._batches: list[Batch] = []
        self._again_at = 0.0
        self._count = 0
        self._most: int | None = None
        self._sharing: dict[str, Batch] = {}
        self._paused = False
        self._limits = Limits()

    @property
    def in_doubt(self) -> bool:
        """True while it is unknown whether Slurm has the batch that was submitted last."""
        return self._sending is not None and isinstance(self._sending.state, BatchDoubted)

    @property
    def _sending(self) -> Batch | None:
        """Return the batch that is being submitted, or that is in doubt; None if there is none."""
        return next(
            (b for b in self._batches if isinstance(b.state, BatchHanded | BatchDoubted)), None
        )

    def add(self, attempt: AttemptId, terms: Terms, after: Sequence[AttemptId] = ()) -> None:
        """Queue the attempt for submission. `after`: attempts under way that must succeed first."""
        self._fresh[attempt] = terms, tuple(after)
        self._fresh_since = self._fresh_since or time.monotonic()
        self._loop.call_after("slurm:gather", GATHERED, self._gather_what_is_ripe)

    def take_up(self, batch: Batch) -> None:
        """Queue an earlier launcher's batch, and look up whether Slurm has it."""
        batch.state = BatchLeft()
        self._batches.append(batch)
        self._send()

    def drop(self, attempt: AttemptId) -> bool:
        """Take the attempt back; False if Slurm has it, or may have it."""
        if self._fresh.pop(attempt, None) is not None:
            return True
        found = self._with(attempt)
        return found is not None and isinstance(found.state, BatchReady) and not found.state.tried

    def has(self, attempt: AttemptId) -> bool:
        """True while the attempt is in a batch; Slurm may have it already."""
        return self._with(attempt) is not None

    def _with(self, attempt: AttemptId) -> Batch | None:
        return next((batch for batch in self._batches if attempt in batch.attempts), None)

    def one_is_over(self, lane: Lane | None) -> None:
        """Submit what waited for an attempt that has ended, and use the room left in its lane."""
        if self._fresh:
            self._loop.call_after("slurm:gather", GATHERED, self._gather_what_is_ripe)
        if lane is not None:
            self._limits.one_is_over(lane, time.monotonic())
            self._plan()

    def why(self, attempt: AttemptId) -> str:
        """Return Slurm's reason for not taking the attempt now; empty if Slurm gave none."""
        found = self._with(attempt)
        return self._limits.why(found.terms.lane) if found else ""

    def pause(self, on: bool) -> None:
        """Submit nothing more while `on`. A call of sbatch that is under way goes on."""
        self._paused = on
        if not on:
            self._send()

    def look_up(self, rows: Sequence[QueueRow], whole: bool = True) -> None:
        """Settle the batch in doubt by the queue's rows, which were read after the doubt arose.

        `whole`: a batch that the rows lack is one that Slurm does not have, as far as can be told.
        """
        batch = self._sending
        if batch is None or not isinstance(batch.state, BatchDoubted):
            return
        found = next((row.id for row in rows if row.name == batch.title), self._begun_as(batch))
        if found:
            self._sent(batch, found)
        elif whole and time.monotonic() >= self._again_at:
            self._not_there(batch, batch.state)

    def _begun_as(self, batch: Batch) -> str:
        """Return the number under which a node started one of the batch's attempts; else ""."""
        for attempt in batch.attempts:
            with suppress(OSError):
                start = read_start(self._run.start(attempt))
                if isinstance(start, NodeStart):
                    return start.job.partition("_")[0]
        return ""

    def _not_there(self, batch: Batch, doubt: BatchDoubted) -> None:
        """Submit a batch again that Slurm does not have, or refuse it if its failure was real.

        The delay doubles from one doubt to the next.
        """
        tries = doubt.before.tries + 1
        self._again_at = time.monotonic() + min(RAREST, OUTAGE_RETRY_DELAY * 2.0 ** min(tries, 10))
        about_needs = doubt.failed and "dependency" in doubt.said.lower()
        batch.state = BatchReady(tries, tried=True, unneeded=doubt.before.unneeded or about_needs)
        if doubt.failed and tries >= MAX_FOREIGN_FAILURES and not about_needs:
            self._refuse(batch, doubt.said)
        elif doubt.said:
            self._to.waits(f"{doubt.said}; its queue has nothing of it, so it is handed over again")
        self._send()

    # ── Batches ─────────────────────────────────────────────────────────────────────────────────

    def _gather_what_is_ripe(self) -> None:
        """Make batches now, or once more attempts have come or LATEST seconds have passed."""
        late = (self._fresh_since or 0.0) + LATEST - time.monotonic()
        lanes = Counter(terms.lane for terms, _ in self._fresh.values())
        if late <= 0 or any(self._is_wanted_now(lane, count) for lane, count in lanes.items()):
            self._gather()
        else:
            self._loop.call_after("slurm:gather", late, self._gather)

    def _is_wanted_now(self, lane: Lane, count: int) -> bool:
        behind = self._to.waiting(lane)
        return behind < PLENTY or count * SHARE >= behind

    def _gather(self) -> None:
        if self._most is None:
            self._slurm.ask(self._configured)
            return
        self._fresh_since = None
        alike: dict[Terms, list[_Member]] = {}
        for attempt, (terms, after) in list(self._fresh.items()):
            numbers = [self._to.id_of(need) for need in after]
            if "" not in numbers:  # otherwise it waits until all that it needs has a number
                del self._fresh[attempt]
                terms, place = _behind(terms, tuple(filter(None, numbers)))
                alike.setdefault(terms, []).append((place, attempt))
        for terms, members in alike.items():
            for layer in _layers(members) if terms.each else (members,):
                for start in range(0, len(layer), self._most):
                    self._batches.extend(self._made(layer[start : start + self._most], terms))
        self._send()

    def _configured(self, answer: commands.ConfigAnswer) -> None:
        if isinstance(answer, commands.Config):
            self._most = max(1, min(MAX_ARRAY_TASKS, answer.array))
            self._gather()
        else:
            self._to.away(answer.text)
            self._loop.call_after("slurm:gather", OUTAGE_RETRY_DELAY, self._gather)

    def _made(self, members: Sequence[_Member], terms: Terms) -> list[Batch]:
        """Return the members as batches, usually one.

        With `terms.each`, a member whose needed task is over goes alone: Slurm may have forgotten
        that task, and `aftercorr` would then wait for the whole array.
        """
        if not terms.each:
            return [self._batch(members, terms)] if members else []
        numbers = self._to.numbers()
        joint = [member for member in members if numbers.issuperset(terms.needs_at(member[0]))]
        made = [self._batch(joint, terms)] if len(joint) > 1 else []
        done = set(joint) if made else set()
        for member in members:
            if member not in done:
                alone = replace(terms, after=terms.needs_at(member[0]), each=False)
                made.append(self._batch([member], alone))
        return made

    def _batch(self, members: Sequence[_Member], terms: Terms) -> Batch:
        self._count += 1
        name = f"{self._epoch}-{self._count}"
        attempts = tuple(attempt for _, attempt in members)
        places = tuple(place for place, _ in members) if terms.each else range(len(members))
        title = f"{self._prefix}{name}:{batches.names(attempts)}"[:120]
        return Batch(name, title, attempts, terms, tuple(places))

    def _send(self) -> None:
        """Submit the next batch, unless one is being submitted or in doubt."""
        while self._sending is None and (batch := self._next()):
            if not isinstance(batch.state, BatchReady):
                self._doubt(batch, BatchDoubted(BatchReady(tried=True)))
                return
            if self._paused:
                return
            parts = self._left_of(batch)
            if parts != [batch]:
                # Under new names, so that no part is taken for a batch of an earlier launcher.
                self._replace(batch, parts)
                continue
            try:
                batches.write(batch, self._run)
            except OSError as error:
                self._to.waits(f"{error.strerror}: {error.filename}")
                self._loop.call_after("slurm:send", SUBMIT_RETRY_DELAY, self._send)
                return
            if self._probe.comes_first(batch.terms.options, self._send):
                return
            self._hand_over(batch, batch.state)
        self._plan()

    def _next(self) -> Batch | None:
        """Return the next batch: an earlier launcher's, else the first for which there is room."""
        now = time.monotonic()
        for batch in self._batches:
            if isinstance(batch.state, BatchLeft):
                return batch
        for batch in self._batches:
            size = len(batch.attempts)
            if most := self._limits.most(batch.terms.lane, self._most or size, now):
                return self._sized(batch, most)
        return None

    def _sized(self, batch: Batch, most: int) -> Batch:
        """Return a batch of up to `most` attempts, split from or merged with those of its terms."""
        alike = [batch]
        if not batch.terms.each and batch.state == BatchReady():
            behind = self._batches[self._batches.index(batch) + 1 :]
            alike += [o for o in behind if o.terms == batch.terms and o.state == BatchReady()]
        count = 1
        while count < len(alike) and sum(len(one.attempts) for one in alike[:count]) < most:
            count += 1
        members = [member for one in alike[:count] for member in one.members]
        if count == 1 and len(members) <= most:
            return batch
        for other in alike[1:count]:
            self._replace(other, ())
        parts = [*self._made(members[:most], batch.terms)]
        self._replace(batch, [*parts, *self._made(members[most:], batch.terms)])
        return parts[0]

    def _plan(self) -> None:
        """Schedule the next submission for when a limit may have room."""
        self._limits.keep({batch.terms.lane for batch in self._batches})
        if self._sending is None and (at := min(self._limits.next_at(), default=None)) is not None:
            self._loop.call_after("slurm:room", max(0.0, at - time.monotonic()), self._send)

    def _left_of(self, batch: Batch) -> list[Batch]:
        """Return the batch without attempts that are no longer wanted: usually the batch itself."""
        wanted = [member for member in batch.members if self._to.wanted(member[1])]
        if wanted == batch.members:
            needs = (need for place in batch.places for need in batch.terms.needs_at(place))
            if not batch.terms.each or self._to.numbers().issuperset(needs):
                return [batch]
        return self._made(wanted, batch.terms)

    def _replace(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """Put the parts in the batch's place. What Slurm may have of it, it may have of each."""
        assert isinstance(batch.state, BatchReady)
        for part in parts:
            part.state = replace(batch.state, tries=0)
        place = self._batches.index(batch)
        batches.forget(batch, self._run)
        self._batches.remove(batch)
        self._batches[place:place] = parts

    def _hand_over(self, batch: Batch, ready: BatchReady) -> None:
        batch.state = BatchHanded(ready)
        self._slurm.submit(
            (
                *batch.terms.options,
                *_array(batch),
                *self._dependency(batch, ready),
                f"--job-name={batch.title}",
            ),
            self._run.batch_script,
            self._environ,
            self._answered,
            (batch.name,),
        )

    def _answered(self, answer: commands.SubmitAnswer) -> None:
        batch = self._sending
        assert batch is not None
        assert isinstance(batch.state, BatchHanded)
        before = batch.state.before
        match answer:
            case commands.SubmissionAccepted(number):
                self._sent(batch, number)
            case commands.Full(text):
                batch.state = before
                self._too_many(batch, text)
            case commands.SubmissionRefused(text, plain=False):
                self._doubt(batch, BatchDoubted(before, text, failed=True))
            case commands.SubmissionRefused(text) if len(batch.attempts) > 1 and is_about_arrays(
                text
            ):
                batch.state, self._most = before, len(batch.attempts) // 2
                self._send()
            case commands.SubmissionRefused(text) if "dependency" in text.lower():
                # Either a job that it needs has just failed: once that end is handled, the batch is
                # not wanted. Or that job has succeeded, and a newer Slurm no longer knows it.
                batch.state = replace(before, unneeded=True)
                self._loop.call_after("slurm:send", SUBMIT_RETRY_DELAY, self._send)
            case commands.SubmissionRefused(text):
                self._refuse(batch, text)
                self._send()
            case commands.Unreachable(text):
                self._doubt(batch, BatchDoubted(before, text))

    def _refuse(self, batch: Batch, why: str) -> None:
        """Give the batch up and report why. Its file stays.

        Should Slurm have it after all, its node reads there which attempts it is, and finds them
        withdrawn.
        """
        self._done(batch)
        self._to.refused(batch, why)

    def _sent(self, batch: Batch, number: str) -> None:
        self._done(batch)
        self._limits.taken(batch.terms.lane, len(batch.attempts), time.monotonic())
        if batch.terms.share:
            self._sharing[batch.terms.share[0]] = batch
        try:
            batches.confirm(batch, number, self._run)
        except OSError:
            batch.id = number  # without the file a later launcher finds the batch by its title
        self._to.sent(batch)
        if any(after for _, after in self._fresh.values()):
            self._gather()  # attempts that need one of these can name its number now
        else:
            self._send()

    def _too_many(self, batch: Batch, why: str) -> None:
        """Retry a batch that a limit of the site refused: half of it now, or a single one later.

        Before a single one, other batches of its lane have their turn.
        """
        lane, size = batch.terms.lane, len(batch.attempts)
        if self._limits.refused(lane, size, why, time.monotonic()):
            self._to.full(lane, why)
        if size == 1:
            self._yield(batch)
        self._send()

    def _yield(self, batch: Batch) -> None:
        """Move the batch behind others of its lane that have other options.

        The batch itself may be what is too large or too long for the lane.
        """
        others = [
            other
            for other in self._batches
            if other.terms.lane == batch.terms.lane and other.terms.options != batch.terms.options
        ]
        if others:
            self._batches.remove(batch)
            self._batches.insert(self._batches.index(others[-1]) + 1, batch)

    def _doubt(self, batch: Batch, doubt: BatchDoubted) -> None:
        batch.state = doubt
        self._to.doubtful()

    def _done(self, batch: Batch) -> None:
        self._again_at = 0.0
        self._batches.remove(batch)

    def _dependency(self, batch: Batch, ready: BatchReady) -> tuple[str, ...]:
        each, after = batch.terms.each, self._needs(batch, ready)
        needed = ":".join(filter(None, (self._probe.id, *(() if each else after))))
        conditions = [f"afterok:{needed}"] if needed else []
        if each and after:
            conditions.append(f"aftercorr:{after[0]}")
        if last := self._shares_with(batch):
            conditions.append(f"afterany:{last.id}")
        if not conditions:
            return ()
        return (f"--dependency={','.join(conditions)}", "--kill-on-invalid-dep=yes")

    def _needs(self, batch: Batch, ready: BatchReady) -> Sequence[str]:
        """Return Slurm's numbers of what the batch needs; after a refusal, only those under way."""
        if not ready.unneeded:
            return batch.terms.after
        numbers = self._to.numbers()
        if batch.terms.each:
            tasks = {need for place in batch.places for need in batch.terms.needs_at(place)}
            return () if tasks.isdisjoint(numbers) else batch.terms.after
        return [number for number in batch.terms.after if number in numbers]

    def _shares_with(self, batch: Batch) -> Batch | None:
        """Return the batch under way with the same token; None if there is none.

        Slurm bounds the running tasks of one array only: of two arrays, one follows the other.
        """
        if batch.terms.share is None:
            return None
        last = self._sharing.get(batch.terms.share[0])
        under_way = last is not None and any(map(self._to.wanted, last.attempts))
        return last if under_way else None


def _array(batch: Batch) -> tuple[str, ...]:
    if len(batch.attempts) == 1:
        return ()
    at_once = f"%{batch.terms.share[1]}" if batch.terms.share else ""
    return (f"--array={','.join(spans(batch.places))}{at_once}",)


def _behind(terms: Terms, numbers: tuple[str, ...]) -> tuple[Terms, int]:
    """Return the terms of an attempt that needs these numbers, and its place in an array (or 0)."""
    array, _, task = numbers[0].partition("_") if len(numbers) == 1 else ("", "", "")
    if task:
        return replace(terms, after=(array,), each=True), int(task)
    return replace(terms, after=numbers), 0


def _layers(members: Iterable[_Member]) -> list[list[_Member]]:
    """Return the members in lists sorted by place, with no place twice in one list."""
    layers: list[dict[int, AttemptId]] = []
    for place, attempt in members:
        layer = next((layer for layer in layers if place not in layer), None)
        if layer is None:
            layers.append(layer := {})
        layer[place] = attempt
    return [sorted(layer.items()) for layer in layers]
