"""Writes what a run's core was told and what it answered, the events of a turn a line; reads it.

    {"journal":".../events.jsonl","opened":{...},"at":{...},"config":{...}}
    {"at":{...},"events":[{"kind":"granted",...},...],"results":[{"kind":"gpu_changed",...},...]}

Of a job it has what the core reads: no command, no directory, no variable of an environment. The
run never reads the file: `python -m gpulaunch.journal.trace FILE` plays it into a fresh core.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeAlias, get_args

from msgspec import Struct

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core.events import Event, Instruction, Launch, Relisted, Submitted
from gpulaunch.core.facts import Fact, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import (
    AttemptId,
    Container,
    Demand,
    DueTime,
    ImageSource,
    Instant,
    Job,
    Ladder,
    LadderStep,
    RetryPolicy,
    Service,
)
from gpulaunch.core.run import Run
from gpulaunch.core.state import RunConfig
from gpulaunch.core.values import Happening
from gpulaunch.journal.codec import plain, to_json, value_of
from gpulaunch.journal.read import fold, read

Result: TypeAlias = Fact | Instruction


class TracedJob(Struct, frozen=True):
    """What the core reads of a Job. `service`: it is one. `image`: its container's."""

    name: str
    group: int
    params: Mapping[str, str]
    demand: Demand
    needs: tuple[str, ...]
    after: tuple[str, ...]
    priority: int
    cost: float
    expected: float
    retry: RetryPolicy
    not_before: DueTime | None
    success_codes: frozenset[int]
    digest: str
    ladder: Ladder | None = None
    learned: int = 0
    service: bool = False
    image: ImageSource | None = None

    @classmethod
    def of(cls, job: Job) -> TracedJob:
        same = {name: getattr(job, name) for name in _SAME}
        image = None if job.container is None else job.container.source
        return cls(**same, service=job.service is not None, image=image)

    def job(self) -> Job:
        same = {name: getattr(self, name) for name in _SAME}
        service, image = Service("") if self.service else None, self.image
        container = None if image is None else Container(image.image, image.engine, pull=image.pull)
        return Job(run="", **same, service=service, container=container)


_SAME = [name for name in TracedJob.__struct_fields__ if name not in ("service", "image")]


class JobsSubmitted(Happening, frozen=True, tag="jobs_submitted"):
    """A Submitted as it is written."""

    jobs: tuple[TracedJob, ...]
    again: frozenset[str]
    left: frozenset[str]


class JobsRelisted(Happening, frozen=True, tag="jobs_relisted"):
    """A Relisted as it is written."""

    jobs: tuple[TracedJob, ...]
    gone: tuple[str, ...]


class JobLaunched(Happening, frozen=True, tag="job_launched"):
    """A Launch as it is written, without what the job is. `gpus` are UUIDs."""

    attempt: AttemptId
    gpus: tuple[str, ...]
    worker: AttemptId | None
    after: tuple[AttemptId, ...]
    share: Mapping[str, int]
    behind: AttemptId | None = None
    step: LadderStep | None = None
    promised: int = 0


class TraceStart(Struct, frozen=True):
    """The trace's first line: what the run was made of.

    `journal` holds the facts of earlier supervisors, before those of `opened`.
    """

    journal: str
    opened: RunOpened
    at: Instant
    config: RunConfig


class Step(Struct, frozen=True):
    """Events as they were handled together, and the facts and instructions that followed."""

    at: Instant
    events: list[Event]
    results: list[Any]


class TracedRun(Run):
    """A Run that writes events, with what followed, to a file that is not there yet.

    `path`: None for no trace. The first error ends the trace, and `warn` gets a line for people.
    Call `close` at the end.
    """

    def __init__(
        self, path: Path | None, beginning: TraceStart, ledger: Ledger, warn: Callable[[str], None]
    ) -> None:
        super().__init__(beginning.opened.gpus, beginning.config, ledger)
        self._path, self._warn, self._fd = path, warn, -1
        self._beginning: TraceStart | None = beginning

    def handle(self, events: Sequence[Event], now: Instant) -> list[Result]:
        if self._path is not None and self._beginning is not None:
            self._begin(self._path, self._beginning)
            self._beginning = None
        results = super().handle(events, now)
        if self._fd >= 0:
            self._write(
                {
                    "at": plain(now),
                    "events": [plain(_slim(event)) for event in events],
                    "results": [plain(result) for result in as_traced(results)],
                }
            )
        return results

    def _begin(self, path: Path, beginning: TraceStart) -> None:
        try:
            # Never an old one: a job that starts a run of its own inherits the variable.
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            self._failed(error)
        self._write(plain(beginning))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: Any) -> None:
        try:
            data = to_json(line) + b"\n"
            while data and self._fd >= 0:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self.close()
        self._warn(f"GPULAUNCH_TRACE: {self._path}: {error.strerror}; the run is not traced")


def as_traced(results: Sequence[Result]) -> list[Any]:
    """Return facts and instructions as a trace has them, in order."""
    return [_slim(result) for result in results]


def decode_beginning(line: bytes) -> TraceStart:
    """Read a trace's first line. Raises ValueError for any other."""
    return value_of(json.loads(line), TraceStart)


def decode_step(line: bytes) -> Step:
    """Read a further line. Raises ValueError where it is none."""
    given = json.loads(line)
    events = [_full(value_of(event, _events())) for event in given["events"]]
    results = [value_of(result, _results()) for result in given["results"]]
    return Step(value_of(given["at"], Instant), events, results)


@cache
def _events() -> Any:
    kept = [kind for kind in get_args(Event) if kind not in (Submitted, Relisted)]
    return reduce(or_, [*kept, JobsSubmitted, JobsRelisted])


@cache
def _results() -> Any:
    kept = [kind for kind in (*get_args(Fact), *get_args(Instruction)) if kind is not Launch]
    return reduce(or_, [*kept, JobLaunched])


def _slim(value: Event | Result) -> Any:
    """Return what is written in the value's place, without the jobs' commands and variables."""
    match value:
        case Submitted(jobs, again, left):
            return JobsSubmitted(tuple(map(TracedJob.of, jobs)), again, left)
        case Relisted(jobs, gone):
            return JobsRelisted(tuple(map(TracedJob.of, jobs)), gone)
        case Launch(attempt, _, gpus, worker, after, share, behind, step, promised):
            uuids = tuple(gpu.uuid for gpu in gpus)
            shares = dict([share] if share else [])
            return JobLaunched(attempt, uuids, worker, after, shares, behind, step, promised)
    return value


def _full(event: Any) -> Event:
    """Return the event that `_slim` made this of."""
    match event:
        case JobsSubmitted(jobs, again, left):
            return Submitted(tuple(job.job() for job in jobs), again, left)
        case JobsRelisted(jobs, gone):
            return Relisted(tuple(job.job() for job in jobs), gone)
    read: Event = event
    return read


# ── Replay ────────────────────────────────────────────────────────────────────────────────────────


class Difference(Struct, frozen=True):
    """The first line (from 1) at which the core does something else, and both results."""

    line: int
    events: list[Event]
    then: list[Any]
    now: list[Any]


def begun(path: Path) -> Run:
    """Return the run of this trace as it was before its first event."""
    with path.open("rb") as file:
        beginning = decode_beginning(file.readline())
    ledger = _ledger(beginning)
    ledger.apply(beginning.opened, beginning.at)
    return Run(beginning.opened.gpus, beginning.config, ledger)


def replay(path: Path, run: Run) -> tuple[int, Difference | None]:
    """Play the trace into `run`; return how many turns there were, and the first difference.

    A last line that a kill has cut short is left out.
    """
    with path.open("rb") as file:
        file.readline()
        count = 0
        for count, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return count - 1, None
            step = decode_step(line)
            now = as_traced(run.handle(step.events, step.at))
            if step.results != now:
                return count, Difference(count + 1, step.events, step.results, now)
    return count, None


def _ledger(beginning: TraceStart) -> Ledger:
    """Return the state that earlier supervisors left, as the run's journal has it."""
    ledger = Ledger()
    if beginning.opened.epoch > 1:
        for fact, at in read(Path(beginning.journal)):
            if isinstance(fact, RunOpened) and fact.epoch == beginning.opened.epoch:
                break
            fold(ledger, fact, at, beginning.journal)
    return ledger


def main(argv: list[str]) -> int:
    """Report the first events after which the core does something else than in the trace.

    Return 0 if it does the same throughout, 1 if not, 2 if the file is no trace.
    """
    if len(argv) != 1:
        print("usage: python -m gpulaunch.journal.trace FILE", file=sys.stderr)
        return 2
    path = Path(argv[0])
    try:
        count, found = replay(path, begun(path))
    except (OSError, ValueError, KeyError, GpulaunchError) as error:
        print(f"{path}: no trace of a run: {error}", file=sys.stderr)
        return 2
    if found is None:
        print(f"{path}: {count} turns, the same facts and instructions")
        return 0
    print(f"{path}:{found.line}: {', '.join(map(str, found.events))}")
    for mark, results in (("then", found.then), ("now ", found.now)):
        for result in results:
            print(f"  {mark} {result}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
